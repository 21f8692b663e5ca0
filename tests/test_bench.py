# SPDX-License-Identifier: Apache-2.0
"""A short run of the benchmarks: each row of ``bench.table`` for a tenth of a second, on the embedded store."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import capacity, posters, profile, table
from bench.application import Spent, Total
from bench.weight import memory_of
from tests.servers import wait_for
from zq import __version__

ROOT = Path(__file__).parent.parent
CAPACITY = ROOT / "api-ref" / "capacity.md"
GENERATED = re.compile(r"(<!-- \w+ -->\n).*?(?=<!-- / -->)", re.DOTALL)


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the benchmark command and return its result."""
    command = [sys.executable, "-P", "-m", "bench.table", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = page.read_text().partition("<!-- long -->")[0]
    assert len(re.findall(r"^\| embedded", measured, re.MULTILINE)) == 1 + len(capacity.ROWS)
    assert GENERATED.sub(r"\1", page.read_text()) == GENERATED.sub(r"\1", before)
    assert page.read_text() != before


def test_the_page_names_versions_at_most_two_minors_old() -> None:
    """If this test fails, measure again: python -m bench.capacity --write api-ref/capacity.md, also with --backlog."""
    measured = re.findall(r"with zq (\d+)\.(\d+)\.\d+:", CAPACITY.read_text())
    major, minor, _ = __version__.split(".")
    assert len(measured) == 2, "The tables and the table of long queues have a version each."
    for each in measured:
        assert each[0] == major
        assert int(minor) - int(each[1]) <= 2


@pytest.mark.slow
def test_long_queues_of_the_embedded_store_are_measured(tmp_path: Path) -> None:
    """Only their table is replaced; longer queues are extrapolated."""
    page = tmp_path / "capacity.md"
    before = CAPACITY.read_text()
    page.write_text(before)
    command = [sys.executable, "-m", "bench.capacity", "--backlog", "600,1200", "--stores", "embedded"]
    done = subprocess.run(
        [*command, "--write", str(page)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    start, _, rest = page.read_text().partition("<!-- long -->")
    assert re.findall(r"^\| embedded: ([\d,]+) \|", rest, re.MULTILINE) == ["600", "1,200"]
    assert "embedded, 100,000,000 messages, extrapolated: " in rest
    assert start == before.partition("<!-- long -->")[0]
    assert GENERATED.sub(r"\1", page.read_text()) == GENERATED.sub(r"\1", before)


def test_start_and_memory_of_a_longer_queue_grow_as_before() -> None:
    found = [capacity.LongQueue(10, 190.0, ((1.0, 2.0),), 1.0, 100.0), capacity.LongQueue(100, 184.0, (), 1.9, 91.0)]
    longer = capacity.extrapolate(found, 1000)
    assert longer == capacity.LongQueue(1000, 184.0, (), pytest.approx(10.9), 91.0)


def test_a_long_queue_is_skipped_if_there_is_no_space() -> None:
    assert capacity.find_shortage("redis", 0) == ""
    assert "GB of memory" in capacity.find_shortage("redis", 10**12)
    assert "GB of disk" in capacity.find_shortage("rocksdb", 10**12)


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
    assert table.corrected_pause(64.0, achieved, 1000.0) == pytest.approx(44.0)
    assert table.corrected_pause(64.0, achieved, 10_000.0) > 0
    assert table.corrected_pause(64.0, 0.0, 1000.0) == 64.0


def figures(ratio: float, p99: float) -> dict[str, Any]:
    """Return the figures of a row as ``table.line`` returns them."""
    spent = {"server": 300.0, "kernel": 80.0, "store": 0.0}
    zq = {**spent, "per_second": 2000.0 * ratio}
    limit = {"server": 100.0, "kernel": 30.0, "store": 0.0, "per_second": 2000.0}
    half = table.Measured(1000.0, 1.0, p99, p99, 0, 100.0, 300.0, 80.0, 0.0, 0.0)._asdict()
    return {
        **{"store": "rocksdb", "engine": "granian", "row": "post 1", "ratio": ratio, **table.FIRST._asdict()},
        "figures": {"zq": zq, "limit": limit, "half": half},
    }


ALONE = {"zq": {"post 1": Spent(60.0, 50.0, 10.0)}, "limit": {"post 1": Spent(10.0, 40.0, 20.0)}}


def test_a_missed_target_is_explained_by_the_parts_of_the_processor_time(capsys: pytest.CaptureFixture[str]) -> None:
    """The largest difference comes first. The limit's latency stands beside a missed latency."""
    told = figures(0.5, 4.5) | {"libraries": "zq's server by library: Python 50 %.", "limit_tail": 3.0}
    table.explain("rocksdb", [told], ALONE)
    printed = capsys.readouterr().out
    assert "| post 1 | 60 / 10 | 110 / 20 | 50 / 40 | 80 / 30 | 0 / 0 |" in printed
    assert "| post 1 | zq / limit | 0.50 | 0.80 | missed |" in printed
    assert (
        "- rocksdb, post 1: zq / limit is 0.50. zq needs 300 µs of processor time per request, the limit 100: "
        "HTTP server and threads +90, kernel +50, application +50, RocksDB and driver +10. zq and its store use 0.3 "
        "cores, the limit and its store 0.2. zq's server by library: Python 50 %."
    ) in printed
    assert "- rocksdb, post 1: p99 / p50 at half load is 4.50. The limit's is 3.00." in printed


def test_a_met_target_needs_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    table.explain("rocksdb", [figures(0.8, 4.0)], ALONE)
    printed = capsys.readouterr().out
    assert printed.count("| met |") == 2
    assert "\n- " not in printed


def test_targets_apply_to_the_default_values_only() -> None:
    assert len(table.targets_of(figures(0.8, 4.0))) == 2
    assert table.targets_of(figures(0.8, 4.0) | {"connections": 64}) == []
    assert table.targets_of(figures(0.8, 4.0) | {"engine": "gunicorn"}) == []


def test_the_report_of_perf_becomes_a_sentence() -> None:
    report = "    51.20%  libpython3.11.so.1.0\n    30.00%  [kernel.kallsyms]\n     9.10%  _granian.cpython.so\n"
    assert profile.describe_samples(report) == "zq's server by library: Python 51 %, kernel 30 %, Granian 9 %."
    assert profile.describe_samples("") == ""


def test_the_time_of_nested_calls_of_a_store_counts_once() -> None:
    """The outermost call counts, on each thread."""
    total = Total()

    def inner() -> float:
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        return total.seconds

    assert total.timed(total.timed(inner))() == 0
    assert 0.02 <= total.seconds < 0.04


@pytest.mark.parametrize(
    ("ratio", "aborted", "sentence"),
    [
        (0.9, 0.0, "met"),
        (0.8, 0.0, "missed: posts"),
        (0.8, 0.01, "missed: posts, aborts"),
        (1.0, 0.02, "missed: aborts"),
    ],
)
def test_posts_and_aborts_of_several_servers_have_targets(ratio: float, aborted: float, sentence: str) -> None:
    posted = posters.Posted(1000.0, 5.0, 0.1, aborted)
    assert posters.verdict(0.9, ratio, posted) == sentence
    assert posters.verdict(None, ratio, posted) == ""


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
