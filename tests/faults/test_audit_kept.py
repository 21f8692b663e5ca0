# SPDX-License-Identifier: Apache-2.0
"""The audit log after a clean shutdown of a server and of a command: it has all changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import OWN_PORT_ONLY, PROJECT, ZqServer, ask
from zq.client import Client

pytestmark = pytest.mark.store_of_the_day
SLOW = """\
import time
from zq.core.trail import Trail
write = Trail._write
Trail._write = lambda self, entry: (time.sleep(0.2), write(self, entry))
"""


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that writes audit entries slowly."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SLOW)
    return {"PYTHONPATH": str(folder)}


def listed(server: ZqServer, **options: str) -> list[str]:
    with Client(server.url, **options) as client:
        return [f"{entry.rule} {entry.object}" for entry in client.audit()]


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_server_that_ends_writes_what_waits_first(store_uri: str, engine: str, slow: dict[str, str]) -> None:
    with ZqServer(store_uri, engine=engine, env=slow) as server:
        names = [f"q{number}" for number in range(5)]
        for name in names:
            assert ask(server.url, "DELETE", f"/v2/queues/{name}").status == 204
        assert server.terminate() == 0
        server.start()
        assert listed(server, project=PROJECT) == [f"queues:delete queue {name}" for name in reversed(names)]
        assert "is lost" not in server.output


def test_a_command_on_the_store_writes_its_entry(store_uri: str, slow: dict[str, str]) -> None:
    env = {**os.environ, **OWN_PORT_ONLY, **slow}
    command = [sys.executable, "-m", "zq.serving.server", "token", "create", "--admin", "--store", store_uri]
    made = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    with ZqServer(store_uri, config="[DEFAULT]\nauth_strategy = token\n") as server:
        (line,) = listed(server, token=made.stdout.strip())
    assert line.startswith("admin:tokens token ")
