# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs that come with zq in this process, and so in the Spark session of the tests."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from zq.client import Client
from zq.jobs import archive, ingest, report
from zq.jobs.cli_support import JobCommand

JOBS: dict[str, JobCommand] = {"ingest": ingest.ingest, "archive": archive.archive, "report": report.report}


def invoke(name: str, *words: object) -> Result:
    """A job, with an output for programs."""
    return CliRunner().invoke(JOBS[name], ["--json", *map(str, words)], catch_exceptions=False)


def told(result: Result) -> list[dict[str, Any]]:
    """What it has said, if it went well."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies(client: Client, queue: str) -> list[Any]:
    """All that a queue holds."""
    return [message.body for message in client.queue(queue).list(page=1000, delayed=True)]


def drawn(folder: Path) -> list[str]:
    """Names of the pictures in it."""
    return sorted(file.name for file in folder.iterdir() if file.read_bytes().startswith(b"\x89PNG"))
