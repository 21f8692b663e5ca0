# SPDX-License-Identifier: Apache-2.0
"""A short run of the benchmarks: each row of ``bench.table`` for a tenth of a second, on the embedded store."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import capacity, table
from bench.weight import memory_of
from tests.servers import wait_for
from zq import __version__

ROOT = Path(__file__).parent.parent
CAPACITY = ROOT / "api-ref" / "capacity.md"
GENERATED = re.compile(r"(<!-- \w+ -->\n).*?(?=<!-- / -->)", re.DOTALL)


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the benchmark command and return its result."""
    command = [sys.executable, "-P", "-m", "bench.table", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.ability("wrk")
def test_each_row_is_measured(tmp_path: Path) -> None:
    """No request fails, and consumers find enough messages."""
    short = ("--rounds", "1", "--seconds", "0.1", "--queues", "2", "--tenants", "2", "--connections", "4")
    done = bench("--stores", "embedded", *short, "--json", str(tmp_path / "json"), "--plots", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed" not in done.stdout
    assert not (ROOT / "rocksdb:").exists(), "A store lies outside the temporary folder."
    told = json.loads((tmp_path / "json").read_text())
    assert [each["row"] for each in told] == [row.name for row in table.ROWS]
    for each, row in zip(told, table.ROWS, strict=True):
        assert set(each["figures"]) >= set(row.sides.split()) - {"zaqar"}
        assert each["figures"]["zq"]["p50"] > 0
        assert row.method == "SETTLE" or not each["figures"]["zq"]["dry"]  # a tenth of a second is short for both parts
    assert (tmp_path / "performance-granian.svg").exists()


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--stores=rocks", "'rocks' is no store: there are rocksdb, redis, mongodb."),
        ("--engines=granian,uwsgi", "'uwsgi' is no engine: there are granian, gunicorn."),
        ("--rows=post 2", "'post 2' is no row: there are post 1, post 10"),
        ("--sides=limit", "zq must be one of the sides"),
    ],
)
def test_a_wrong_name_is_refused(argument: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command is rejected before any measurement."""
    with pytest.raises(SystemExit):
        table.read([argument])
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.ability("wrk")
def test_the_capacity_of_the_embedded_store_is_measured(tmp_path: Path) -> None:
    """The command replaces each table of the page and changes nothing else."""
    page = tmp_path / "capacity.md"
    before = CAPACITY.read_text()
    page.write_text(before)
    command = [sys.executable, "-m", "bench.capacity", "--quick", "--stores", "embedded", "--write", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^\| embedded", page.read_text(), re.MULTILINE)) == 1 + len(capacity.ROWS) + 2
    assert GENERATED.sub(r"\1", page.read_text()) == GENERATED.sub(r"\1", before)
    assert page.read_text() != before


def test_the_page_names_a_version_at_most_two_minors_old() -> None:
    """If this test fails, measure again: python -m bench.capacity --write api-ref/capacity.md."""
    measured = re.findall(r"with zq (\d+)\.(\d+)\.\d+:", CAPACITY.read_text())
    major, minor, _ = __version__.split(".")
    assert len(measured) == 1
    assert measured[0][0] == major
    assert int(minor) - int(measured[0][1]) <= 2


def test_a_partial_measurement_does_not_replace_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tables of the page have one date."""
    page = tmp_path / "capacity.md"
    monkeypatch.setattr(capacity, "demand", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["capacity", "--parts", "space", "--write", str(page)])
    with pytest.raises(SystemExit):
        capacity.main()
    assert "--write needs all parts and stores" in capsys.readouterr().err


def test_the_sentences_of_the_page_follow_from_its_numbers() -> None:
    page = CAPACITY.read_text()
    rows = re.findall(r"^\| (embedded|Redis) \| (.+) \|$", page.partition("## Rates")[0], re.MULTILINE)
    stores = {name: store for store, name in capacity.NAMES.items()}
    found = {stores[name]: [float(cell.replace(",", "")) for cell in cells.split(" | ")] for name, cells in rows}
    assert f"\n{capacity.example(found)}\n" in page
    (rate,) = re.findall(r"sweeps ([\d,]+) messages", page)
    assert capacity.expiry_sentence(float(rate.replace(",", ""))) in page


def test_the_pause_is_corrected_by_the_latency() -> None:
    """With a latency of 20 ms, 64 connections with a pause are slower than the pause implies."""
    achieved = 64 / (0.064 + 0.020)
    assert capacity.corrected_pause(64.0, achieved, 1000.0) == pytest.approx(44.0)
    assert capacity.corrected_pause(64.0, achieved, 10_000.0) > 0


def test_the_memory_of_a_process_counts_shared_pages_once() -> None:
    """The memory of a process without children is less than its resident memory."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        wait_for(lambda: memory_of(child.pid) > 1_000_000, 10, "it runs")
        resident = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert memory_of(child.pid) < resident
        child.communicate(b"\n")


def test_a_page_without_the_part_is_rejected() -> None:
    with pytest.raises(ValueError, match="0 parts space"):
        capacity.replace("# Capacity\n", "space", "")
