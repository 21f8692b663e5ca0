# SPDX-License-Identifier: Apache-2.0
"""The client and the command line without Unix features, as simulated by ``elsewhere``."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import elsewhere
from tests.cli.conftest import Process, Zq
from tests.servers import wait_for

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, elsewhere.__file__]


class Elsewhere:
    """The command line in the simulation, with the project of another command line."""

    def __init__(self, zq: Zq, folder: Path) -> None:
        self._env = {**os.environ, **zq.env}
        self._folder = folder

    def __call__(self, *words: str, given: str = "") -> list[object]:
        """Run ``zq`` successfully and return the JSON lines of standard output."""
        done = subprocess.run(
            [*PROGRAM, *words], env=self._env, cwd=self._folder, input=given, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, *words: str) -> Process:
        return Process([*PROGRAM, *words], env=self._env, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def there(zq: Zq, tmp_path: Path) -> Elsewhere:
    return Elsewhere(zq, tmp_path)


def test_every_module_can_be_imported() -> None:
    """The modules of Spark's commands can be imported without Spark."""
    done = subprocess.run(PROGRAM, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    names = set(done.stdout.split())
    root = Path(__file__).parent.parent.parent
    files = [file for part in ("client", "cli") for file in (root / "zq" / part).glob("*.py") if file.stem[0] != "_"]
    assert names == {f"zq.{file.parent.name}.{file.stem}" for file in files} | {"zq.cli.declared"}


def test_messages_are_posted_listed_and_worked_on(there: Elsewhere, tmp_path: Path) -> None:
    """The command of ``zq consume`` gets the bodies."""
    there("post", "jobs", "1")
    there("post", "jobs", "-", given="2\n3\n")
    assert [message["body"] for message in there("list", "jobs")] == [1, 2, 3]
    keep = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    command = shlex.join([sys.executable, "-c", keep, "{}.body"])
    there("consume", "jobs", "--exec", command, "--until-empty", "--wait", "0")
    assert there("list", "jobs", "--claimed") == []
    assert sorted(file.read_text() for file in tmp_path.glob("*.body")) == ["1", "2", "3"]
    assert there("health") != []


def test_a_file_is_posted_and_exported(there: Elsewhere, tmp_path: Path) -> None:
    """The resume file is deleted at the end, and no open file is replaced."""
    (tmp_path / "events.ndjson").write_text("1\n" * 3000)
    assert there("post", "events", "--file", "events.ndjson")[0]["stored"] == 3000
    assert [file.name for file in tmp_path.glob("events*")] == ["events.ndjson"]
    for _ in range(2):
        there("export", "--to", "kept")
    assert len((tmp_path / "kept").read_text().splitlines()) == 3002


def test_an_upload_goes_on_where_it_stopped(there: Elsewhere, zq: Zq, tmp_path: Path) -> None:
    """The second run uses the resume file of the first."""
    zq("queue", "create", "events", "_max_messages_post_size=400")
    file = tmp_path / "events.ndjson"
    file.write_text("1\n" * 1500 + json.dumps("x" * 500) + "\n")
    with there.start("post", "events", "--file", str(file)) as process:
        stderr = process.communicate(timeout=60)[1]
    stopped = int(re.findall(r"Messages posted so far: ([\d,]+) ", stderr)[0].replace(",", ""))
    assert stopped > 1000
    file.write_text("1\n" * 1500 + "2\n")
    assert there("post", "events", "--file", str(file))[0]["stored"] == 1501 - stopped
    assert zq("queue", "stats", "events")[0]["total"] == 1501


def test_a_second_signal_ends_the_command(there: Elsewhere, zq: Zq, tmp_path: Path) -> None:
    """The signal ends only the command itself, because there are no process groups."""
    there("post", "jobs", "1")
    sleep = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(f'{os.getpid()}.'); time.sleep(600)"
    command = shlex.join([sys.executable, "-c", sleep, str(tmp_path / "pid")])
    with there.start("consume", "jobs", "--exec", command) as process:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()[-1:], 60, "the command runs")

        def ended() -> bool:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(1)
            except subprocess.TimeoutExpired:
                return False
            return True

        wait_for(ended, 60, "it ends")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()[:-1]), 0)
    assert [message["body"] for message in zq("list", "jobs", "--delayed", "--claimed")] == [1]
