# SPDX-License-Identifier: Apache-2.0
"""``zq-server check-store`` as an operator runs it: what it prints, and how it ends."""

import subprocess
import sys
import time

import pytest

from tests.servers import ZqServer
from zq.model import Draft, QueueRef, new_ids
from zq.storage.rocksdb import connect, layout
from zq.storage.rocksdb.port import Store


@pytest.fixture
def uri(tmp_path) -> str:
    return f"rocksdb://{tmp_path}/store"


def check_store(uri: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zq.server", "check-store", "--store", uri]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def fill(uri: str) -> None:
    storage, now = connect(uri), time.time()
    storage.messages.post(QueueRef("acme", "jobs"), [Draft(id, b"1", 3600, 0, "alice") for id in new_ids(3, now)], now)
    storage.close()


def test_a_sound_store_is_counted_and_the_command_ends_with_0(uri: str) -> None:
    """What lies in it is told by kind."""
    fill(uri)
    done = check_store(uri)
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert ["0", "contradictions"] in lines
    assert ["3", "messages"] in lines


def test_a_contradiction_is_shown_and_the_command_ends_with_1(uri: str, tmp_path) -> None:
    """An index entry that points at nothing."""
    fill(uri)
    store = Store(tmp_path / "store", layout.FAMILIES, "never", 0)
    store.write([("ids", layout.id_key(layout.project_prefix("acme"), "nobody"), layout.pair.pack(1, 77))])
    store.close()
    done = check_store(uri)
    assert done.returncode == 1
    assert "1 contradictions" in done.stdout
    assert "ids" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("store", ["rocksdb:///nowhere/at/all", "redis://127.0.0.1:1/0"])
def test_what_cannot_be_checked_is_one_sentence_and_2(store: str) -> None:
    """A folder without a store, which is not created, and a store of another kind."""
    done = check_store(store)
    assert done.returncode == 2
    assert done.stderr.startswith("zq-server: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_store_that_a_server_has_open_is_not_checked(uri: str) -> None:
    """One process owns it."""
    with ZqServer(uri):
        done = check_store(uri)
    assert done.returncode == 2
    assert "in use by another process" in done.stderr
