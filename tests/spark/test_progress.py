# SPDX-License-Identifier: Apache-2.0
"""The progress that a job prints while Spark works."""

import re

import pytest

pytest.importorskip("pyspark")

from tests.spark.jobs import invoke
from zq.cli import progress as module
from zq.cli.output import note


def test_a_job_prints_its_progress_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, spark, server, project, tmp_path
) -> None:
    """A job prints a line from time to time, and one at the end; standard output has only results."""
    heard: list[str] = []
    monkeypatch.setattr(module, "NOTE_INTERVAL", 0.01)
    monkeypatch.setattr(module, "note", lambda line: (heard.append(line), note(line)))
    for number in range(3):
        (tmp_path / f"{number}.json").write_text("1\n2\n")
    place = ("--url", server.url, "--project", project)
    done = invoke("ingest", *place, tmp_path, "--queue", "in")
    assert done.exit_code == 0, done.stderr
    assert any(re.match(r"ingest: file 3 of 3, 2\.json; 4 messages, \d+/s; .*\d+ s$", line) for line in heard)
    assert any(re.search(r"; \d+ of \d+ tasks; ", line) for line in heard)
    assert re.match(r"zq: ingest: 6 messages in [\d.]+ s, \d+/s\.$", done.stderr.splitlines()[-1])
    assert len(done.stdout.splitlines()) == 1
    again = invoke("ingest", *place, tmp_path, "--queue", "in", "--key", "2", "--quiet")
    assert (again.exit_code, again.stderr) == (0, "")
