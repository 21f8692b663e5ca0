# SPDX-License-Identifier: Apache-2.0
"""Celery on zq's SQS protocol: the application of ``api-ref/sqs.md``, and one whose worker is killed."""

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench import celery_on_sqs
from tests.blocks import ROOT, blocks
from tests.reader import INSTALLED, environment
from tests.servers import wait_for
from zq import testing

pytestmark = pytest.mark.timeout(600)


def block(start: str) -> str:
    """Return the page's only block that begins with `start`."""
    [found] = [one.text for one in blocks(ROOT / "api-ref" / "sqs.md") if one.text.startswith(start)]
    return found


def test_the_application_of_the_page_works(tmp_path: Path) -> None:
    """The worker runs the task of the caller."""
    said = tmp_path / "said"
    reader = environment(tmp_path, f"{INSTALLED}{os.pathsep}{os.environ['PATH']}")
    with testing.server(sqs=True) as server, said.open("w") as output:
        program = block("from celery").replace("localhost:8888", urlsplit(server.url).netloc)
        (tmp_path / "tasks.py").write_text(program)
        worker, caller = block("celery -A").replace(" &", "").splitlines()
        working = subprocess.Popen(worker.split(), cwd=tmp_path, env=reader, stdout=output, stderr=subprocess.STDOUT)
        try:
            subprocess.run(caller, shell=True, cwd=tmp_path, env=reader, check=True, timeout=120)
            wait_for(lambda: "Hello Anna" in said.read_text(), 120, "the worker greets")
        finally:
            working.terminate()
            working.wait(120)


def test_each_task_is_done_though_a_worker_is_killed() -> None:
    """Tasks with countdowns and retries run, and the queue is empty at the end."""
    assert celery_on_sqs.main() == 0
