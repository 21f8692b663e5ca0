# SPDX-License-Identifier: Apache-2.0
"""The jobs of zq, run in this process and therefore in the tests' Spark session."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from zq.client import Client
from zq.jobs import archive, ingest, report
from zq.jobs.cli_support import JobCommand

JOBS: dict[str, JobCommand] = {"ingest": ingest.ingest, "archive": archive.archive, "report": report.report}


def invoke(name: str, *words: object) -> Result:
    """Run a job with machine-readable output."""
    return CliRunner().invoke(JOBS[name], ["--json", *map(str, words)], catch_exceptions=False)


def told(result: Result) -> list[dict[str, Any]]:
    """Assert that the job succeeded and return its output."""
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies(client: Client, queue: str) -> list[Any]:
    """Return the bodies of all messages in a queue."""
    return [message.body for message in client.queue(queue).list(page=1000, delayed=True)]


def drawn(folder: Path) -> list[str]:
    """Return the names of the pictures in the folder."""
    return sorted(file.name for file in folder.iterdir() if file.read_bytes().startswith(b"\x89PNG"))
