# SPDX-License-Identifier: Apache-2.0
"""Jobs without Spark: options, errors, and what an archive or a report does if a part of it fails."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zq import errors
from zq.cli.session import Session

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.jobs import invoke
from zq.jobs import archive, report
from zq.jobs.cli_support import extract_error, source_options


def test_the_server_options_of_a_job_reach_spark() -> None:
    """The retry time is passed on too."""
    session = Session({"url": "http://zq:1", "project": "acme", "token": "x", "retry": 7})
    assert source_options(session) == {"url": "http://zq:1", "project": "acme", "token": "x", "retryFor": "7"}


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("[X] It failed.\n at org.apache", errors.ZqError, "[X] It failed."),
        (
            "An error occurred while calling o7.save.\n: java.io.IOException: full",
            errors.ZqError,
            "java.io.IOException: full",
        ),
        ("Job aborted: zq.errors.ClaimNotFound: No.\n", errors.ClaimNotFound, "No."),
        ("[X]\nTraceback (most recent call last):\n  File\nValueError: 7", errors.ZqError, "ValueError: 7"),
    ],
)
def test_the_line_with_the_reason_is_found_in_the_errors_of_spark(text: str, kind: type, line: str) -> None:
    """An error of zq is found as such, another one by its own line rather than the line before a traceback."""
    found = extract_error(Py4JError(text))
    assert (type(found), str(found)) == (kind, line)


def test_a_queue_that_cannot_be_archived_does_not_hold_up_others(monkeypatch, tmp_path: Path) -> None:
    """The job names the queue and the reason, and exits with the code of a failure."""
    lost = "Query ended: Traceback (most recent call last):\n  File\nzq.spark.tail.MessagesLost: Records may be gone.\n"

    def archive_queue(_spark: Any, _path: str, given: dict[str, str], *_: Any) -> archive.Counts:
        if given["queue"] == "in":
            raise StreamingQueryException(lost)
        return {"posted": 2, "finished": 1}

    conf = SimpleNamespace(get=lambda *_: "UTC", set=lambda *_: None)
    session = SimpleNamespace(conf=conf, dataSource=SimpleNamespace(register=lambda _: None))
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: session)
    monkeypatch.setattr(archive, "archive_queue", archive_queue)
    failed = invoke("archive", "--project", "acme", "--quiet", "--queue", "in", "--queue", "other", tmp_path)
    assert (failed.exit_code, json.loads(failed.stdout)) == (1, {"queue": "other", "posted": 2, "finished": 1})
    assert failed.stderr.splitlines() == ["zq: in: Records may be gone.", "zq: These queues were not archived: in."]


def test_a_report_without_matplotlib_names_the_extra_and_goes_on(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.delattr("zq.jobs.plots", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "zq.jobs.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report.draw(tmp_path / "plots", [], [], 1)
    assert "pip install 'zq-queue[report]'" in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()
