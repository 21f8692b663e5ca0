# SPDX-License-Identifier: Apache-2.0
"""Permissions of an embedded store: only zq's user can read it, because it has the messages of all tenants."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import run_apart
from tests.servers import ZqServer, ask

POST = {"messages": [{"body": "secret", "ttl": 600}]}


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """Set the umask of most machines."""
    former = os.umask(0o022)
    yield
    os.umask(former)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    return [f"{file.name} {mode(file):o}" for file in folder.rglob("*") if mode(file) & 0o077]


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_store_is_its_users_alone_whatever_the_umask(tmp_path: Path, engine: str) -> None:
    """The folder has mode 0700 and its files 0600, at run time, after shutdown and after restart, without a warning."""
    folder = tmp_path / "store"
    for _ in range(2):
        with ZqServer(f"rocksdb://{folder}", "--engine", engine) as server:
            assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
            assert mode(folder) == 0o700
            assert len(list(folder.iterdir())) >= 5
            assert open_to_others(folder) == []
            assert server.terminate() == 0
        assert open_to_others(folder) == []
        assert "chmod" not in server.output


@pytest.mark.parametrize("wide", [0o755, 0o750, 0o701])
def test_a_folder_that_others_may_enter_is_warned_of_and_served(tmp_path: Path, wide: int) -> None:
    """The warning at start names the command to fix it; new files are private nevertheless."""
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(wide)
    with ZqServer(f"rocksdb://{folder}") as server:
        assert f"chmod 700 {folder}" in server.output
        assert "WARNING" in next(line for line in server.output.splitlines() if "chmod" in line)
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert open_to_others(folder) == []
    assert mode(folder) == wide


def test_a_salvaged_store_is_private_too(tmp_path: Path) -> None:
    """The command creates folder and files like the server."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert server.terminate() == 0
    command = ["salvage", "--store", f"rocksdb://{tmp_path}/store", "--to", f"{tmp_path}/new"]
    done = run_apart(*command)
    assert done.code == 0, done
    assert mode(tmp_path / "new") == 0o700
    assert open_to_others(tmp_path / "new") == []
