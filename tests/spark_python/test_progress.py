# SPDX-License-Identifier: Apache-2.0
"""Progress of jobs, on a terminal and elsewhere."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError

from tests.blocks import ROOT
from tests.servers import wait_for
from zq.cli import progress as module
from zq.cli.progress import Progress, show_progress
from zq.spark.session import task_progress

LIVE = """
import sys
from zq.cli.progress import show_progress

with show_progress("ingest", False) as progress:
    progress.stage = "file 1 of 2, a\\x1b.json"
    progress.add(1200)
    sys.stdin.read()
"""


class Tracker:
    """Two active stages of Spark, of which one is known, or a tracker that fails during a stop."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def getActiveStageIds(self) -> list[int]:
        if self.error is not None:
            raise self.error
        return [4, 5]

    def getStageInfo(self, number: int) -> Any:
        return SimpleNamespace(numCompletedTasks=3, numTasks=8, numFailedTasks=1) if number == 4 else None


def spark_with(tracker: Tracker) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


def test_a_line_says_what_is_done_and_how_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is a recent one, so that a long wait does not reduce it; the time counts from Spark's start."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    told = Progress("ingest", "messages")
    now[0] += 8
    assert told.line(told.tasks()) == "ingest: starting Spark; 8 s"
    with told.follow_tasks(lambda: task_progress(spark_with(Tracker()))):
        told.stage = "file 2 of 3"
        for _ in range(20):
            now[0] += 1
            told.add(100)
        busy = "ingest: file 2 of 3; 2,000 messages, 100/s; 3 of 8 tasks, 1 failed and retried; 20 s"
        assert told.line(told.tasks()) == busy
        now[0] += 980
        told.add(0)
        for _ in range(20):
            now[0] += 1
            told.add(50)
    assert told.line(told.tasks()) == "ingest: file 2 of 3; 3,000 messages, 50/s; 1,020 s"
    assert told.summary() == "ingest: 3,000 messages in 1,020.0 s, 3/s."


def test_a_session_that_is_just_being_stopped_has_no_tasks() -> None:
    """No traceback is printed when a job ends successfully."""
    assert task_progress(spark_with(Tracker(Py4JError("gone")))) == ""


def test_an_unchanged_line_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that waits for messages does not fill a log; a long step is printed again while tasks run."""
    lines: list[str] = []
    monkeypatch.setattr(module, "note", lines.append)
    told = Progress("raw.clean", "messages")

    def looks() -> Iterator[bool]:
        yield from (False, False, False)
        assert len(lines) == 1
        told.add(7)
        yield from (False, False)
        assert len(lines) == 2
        monkeypatch.setattr(told, "tasks", lambda: "1 of 2 tasks")
        yield from (False, False, True)

    given = looks()
    ended: Any = SimpleNamespace(wait=lambda _: next(given))
    module._print_lines(told, ended)
    assert len(lines) == 4


def test_a_failed_job_has_no_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is the error message."""

    def fails() -> None:
        with show_progress("ingest", False) as told:
            told.add(5)
            raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        fails()
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_live_line() -> None:
    """The line is redrawn and erased in the end. Control characters in a file's name are not sent to the terminal."""
    here, there = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    shown = bytearray()
    with subprocess.Popen(
        [sys.executable, "-c", LIVE], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stderr=there
    ) as job:
        os.close(there)
        reading = threading.Thread(target=read_all, args=(here, shown))
        reading.start()
        wait_for(lambda: shown.count(b"1,200 messages, ") > 1 or job.poll() is not None, 60, "it is drawn")
        job.communicate(timeout=60)
        reading.join(60)
    assert job.returncode == 0
    text = shown.decode()
    assert "ingest: file 1 of 2, a\ufffd.json; 1,200 messages, " in text
    assert text.rindex("zq: ingest: 1,200 messages in ") > text.rindex("\x1b[2K")  # an erased line


def read_all(here: int, shown: bytearray) -> None:
    """Collect the output to a terminal until it is closed."""
    try:
        while some := os.read(here, 4096):
            shown += some
    except OSError:
        return
    finally:
        os.close(here)
