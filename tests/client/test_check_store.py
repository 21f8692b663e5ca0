# SPDX-License-Identifier: Apache-2.0
"""The output and the exit codes of ``zq-server check-store``."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.blocks import ROOT, blocks
from tests.commands import Done, run_apart
from tests.damaged import flip, flushed, table_of
from tests.reader import SHELL, follow
from tests.servers import ZqServer, ask, every_message
from zq.model import Draft, QueueRef, new_ids
from zq.storage.ordered import layout
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def uri(tmp_path) -> str:
    return f"rocksdb://{tmp_path}/store"


def check_store(uri: str) -> Done:
    return run_apart("check-store", "--store", uri)


def fill(uri: str) -> None:
    storage, now = connect(uri), time.time()
    storage.messages.post(QueueRef("acme", "jobs"), [Draft(id, b"1", 3600, 0, "alice") for id in new_ids(3, now)], now)
    storage.close()


def test_a_sound_store_is_counted_and_the_command_ends_with_0(uri: str) -> None:
    """The output has the number of entries of each kind."""
    fill(uri)
    done = check_store(uri)
    assert done.code == 0, done.error
    lines = [line.split(maxsplit=1) for line in done.said.splitlines()]
    assert ["0", "contradictions"] in lines
    assert ["3", "messages"] in lines


def test_a_contradiction_is_shown_and_the_command_ends_with_1(uri: str, tmp_path) -> None:
    """The store has an index entry of a message that does not exist."""
    fill(uri)
    store = Store(tmp_path / "store", layout.FAMILIES, "never", 0)
    store.write([("ids", layout.id_key(layout.project_prefix("acme"), "nobody"), layout.pair.pack(1, 77))])
    store.close()
    done = check_store(uri)
    assert done.code == 1
    assert "1 contradictions" in done.said
    assert "ids" in done.said.splitlines()[-1]


def commands_of_the_page() -> list[str]:
    """Return the commands that the page gives for a damaged store."""
    (block,) = (block for block in blocks(ROOT / "api-ref/storage-rocksdb.md") if "zq-server salvage" in block.text)
    return [line for line in block.text.splitlines() if not line.startswith("#")]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page with its paths in ``folder``."""
    return follow([*SHELL, command.replace("/var/lib/", f"{folder}/").split(" > ")[0]], folder)


def test_the_steps_of_the_page_save_all_but_what_is_named_as_lost(tmp_path: Path) -> None:
    """The bodies have a corrupt block, and salvage reports exactly the messages that the new store lacks.

    The new store is consistent and can be served, and the old store is unchanged.
    """
    old, new = tmp_path / "zq/store", tmp_path / "zq/salvaged"
    old.parent.mkdir()
    ids = fill_and_flush(old)
    flip(table_of(old, "bodies"))
    before = {file: file.read_bytes() for file in old.iterdir()}
    check, salvage, check_again, serve = commands_of_the_page()

    checked = run(check, tmp_path)
    assert checked.returncode == 1
    assert re.search(r"\d+\.sst, family bodies, keys from [0-9a-f]+ to [0-9a-f]+: about \d+ entries", checked.stdout)
    assert ["1", "unreadable places"] in [line.split(maxsplit=1) for line in checked.stdout.splitlines()]
    assert ["0", "contradictions"] in [line.split(maxsplit=1) for line in checked.stdout.splitlines()]

    saved = run(salvage, tmp_path)
    assert saved.returncode == 1
    lost = set(
        re.findall(r"Message (\w{32}) of queue jobs of project 'acme' is lost: its body is unreadable\.", saved.stdout)
    )
    assert 1 <= len(lost) <= 40, "a block of data has a dozen bodies"
    assert {file: file.read_bytes() for file in old.iterdir()} == before

    assert run(check_again, tmp_path).returncode == 0
    with ZqServer(serve.split()[-1].replace("/var/lib/", f"{tmp_path}/")) as server:
        left = [message["href"].rpartition("/")[2] for message in every_message(server.url, "jobs")]
        assert sorted(left) == sorted(ids - lost)
        assert ask(server.url, "GET", "/readyz").status == 200
    assert run(salvage, tmp_path).returncode == 2, "the target is there now"
    assert new.is_dir()


def fill_and_flush(path: Path) -> set[str]:
    """Fill a queue with 1,000 messages in many blocks and return their ids."""
    storage, now = connect(f"rocksdb://{path}", sync="never"), time.time()
    ids = new_ids(1000, now)
    for begin in range(0, len(ids), 100):
        bodies = [b'"' + os.urandom(300).hex().encode() + b'"' for _ in range(100)]
        drafts = [Draft(id, body, 3600, 0, "a") for id, body in zip(ids[begin : begin + 100], bodies, strict=True)]
        storage.messages.post(QueueRef("acme", "jobs"), drafts, now)
    storage.close()
    flushed(path)
    return set(ids)


def test_a_salvage_without_a_target_or_of_another_store_is_refused(tmp_path: Path) -> None:
    """Each error is one line."""
    for command in (
        "zq-server salvage --store rocksdb:///nowhere",
        "zq-server salvage --store redis://x/0 --to /nowhere",
    ):
        done = run(command, tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("zq-server: ")
        assert len(done.stderr.splitlines()) == 1


def test_a_store_that_a_server_has_open_is_not_salvaged(uri: str, tmp_path: Path) -> None:
    """The command creates no target folder."""
    with ZqServer(uri):
        done = run(f"zq-server salvage --store {uri} --to {tmp_path}/new", tmp_path)
    assert done.returncode == 2
    assert "in use by another process" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("store", ["rocksdb:///nowhere/at/all", "redis://127.0.0.1:1/0"])
def test_what_cannot_be_checked_is_one_sentence_and_2(store: str) -> None:
    """A missing store, which is not created, and a store of another kind are rejected."""
    done = check_store(store)
    assert done.code == 2
    assert done.error.startswith("zq-server: ")
    assert len(done.error.splitlines()) == 1


def test_a_store_that_a_server_has_open_is_not_checked(uri: str) -> None:
    """Only one process can open the store."""
    with ZqServer(uri):
        done = check_store(uri)
    assert done.code == 2
    assert "in use by another process" in done.error
