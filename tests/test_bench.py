# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs: each row of ``bench.table`` for a tenth of a second, on the embedded store."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import table

ROOT = Path(__file__).parent.parent


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command and what it wrote."""
    command = [sys.executable, "-P", "-m", "bench.table", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.ability("wrk")
def test_each_row_is_measured(tmp_path: Path) -> None:
    """Requests are answered, none fails, and whoever takes from zq finds enough to take."""
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
    """Before anything is measured."""
    with pytest.raises(SystemExit):
        table.read([argument])
    assert sentence in capsys.readouterr().err
