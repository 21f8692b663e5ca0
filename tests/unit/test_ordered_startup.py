# SPDX-License-Identifier: Apache-2.0
"""Starts of the embedded store: no sequence is used twice after a power failure; which stores can be opened."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from zq.errors import Deposed, StartRefused, Unavailable
from zq.model import Draft, ListFilter, QueueRef, new_ids
from zq.model.topics import Entry, Retention, TopicRef
from zq.storage import check
from zq.storage.ordered import handle, layout, startup
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import Directory, connect
from zq.storage.rocksdb.store import Store

NOW = 1_700_000_000.0
JOBS = QueueRef("acme", "jobs")


def publish(storage: OrderedStorage) -> int:
    """Publish a message to a topic and return its sequence."""
    return storage.topics.publish(TopicRef("acme", "a"), [Entry(b"1", 600)], NOW, Retention(1 << 20, 80))


def post(storage: OrderedStorage) -> int:
    """Post a message to a queue and return its sequence."""
    storage.messages.post(JOBS, [Draft(id, b"1", 600, 0, "alice") for id in new_ids(1, NOW)], NOW)
    return max(message.sequence for message in storage.messages.list(JOBS, 0, 100, ListFilter(), NOW).items)


def finish(storage: OrderedStorage) -> int:
    """Finish a message and return the position of its history entry."""
    post(storage)
    storage.messages.pop(JOBS, 1, NOW, history=600)
    with storage._handle as (store, _):
        return max(layout.pair.unpack(key)[1] for key, _ in store.scan("history", b"", b"\xff" * 16))


@pytest.mark.parametrize("known", [True, False], ids=["known before", "new"])
@pytest.mark.parametrize("give", [publish, post, finish])
def test_no_start_reuses_sequences_that_another_lost(
    tmp_path: Path, give: Callable[[OrderedStorage], int], known: bool
):
    """Three starts in a row each lose everything except the boot epoch."""
    path, spare = tmp_path / "store", tmp_path / "spare"
    storage = connect(f"rocksdb://{path}", sync="interval", max_clock_jump=0)
    given = [give(storage)] if known else []
    storage.close()
    for _ in range(3):
        storage = connect(f"rocksdb://{path}", sync="interval", max_clock_jump=0)
        shutil.copytree(path, spare)
        given += [give(storage), give(storage)]
        storage.close()
        shutil.rmtree(path)
        spare.rename(path)
    assert given == sorted(set(given))


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_a_start_is_on_disk_before_anything_is_given_out(tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch):
    """The start is flushed in every sync mode, at the first start and when the store is reopened."""
    flushed: list[int] = []
    flush = Store._flush

    def watched(store: Store) -> None:
        flush(store)
        flushed.append(int.from_bytes(store.get("default", startup.STARTS) or b""))

    monkeypatch.setattr(Store, "_flush", watched)
    storage = connect(f"rocksdb://{tmp_path}/store", sync=sync, max_clock_jump=0, sync_interval=1000)
    assert flushed == [1]
    storage._handle.reopen()
    assert flushed == [1, 1, 2]  # closing syncs too
    storage.close()


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OrderedStorage]:
    """A store that failed and could not be reopened once, so that the next operation tries again."""
    storage = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    with storage._handle as (store, _):
        store.failure = Unavailable()

    def fail(directory: Directory, filtered: str) -> Store:
        raise Unavailable

    monkeypatch.setattr(handle, "REOPEN_INTERVAL", 0)
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "_make", fail)
        with pytest.raises(Unavailable):
            post(storage)
    yield storage
    storage.close()


def test_a_failed_store_that_another_process_has_opened_is_not_reopened(
    closed: OrderedStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other process may have moved its data. A restarted server checks that.

    Each operation raises ``Deposed``, so that the maintenance of a busy server notices it.
    """
    uri = f"rocksdb://{tmp_path}/store"
    with closing(connect(uri, sync="never", max_clock_jump=0)) as other:
        post(other)
    for interval in (0, 600):
        monkeypatch.setattr(handle, "REOPEN_INTERVAL", interval)
        with pytest.raises(Deposed, match="Another process has opened the store since this process closed it"):
            post(closed)
    with closing(connect(uri, sync="never", max_clock_jump=0)) as restarted:
        assert len(restarted.messages.list(JOBS, 0, 100, ListFilter(), NOW).items) == 1


def test_a_failed_store_that_is_missing_is_not_created_again(closed: OrderedStorage, tmp_path: Path):
    """Its disk may be unmounted. The store is reopened when it is back."""
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(Unavailable):
        post(closed)
    assert not (tmp_path / "store").exists()
    (tmp_path / "away").rename(tmp_path / "store")
    post(closed)


@pytest.mark.parametrize("version", [b"3", b"4"])
def test_a_store_of_a_former_layout_is_refused_and_left_alone(tmp_path: Path, version: bytes):
    """The error names the store's layout and that of this version, for an integrity check too."""
    uri = f"rocksdb://{tmp_path}/store"
    storage = connect(uri, sync="never", max_clock_jump=0)
    post(storage)
    with storage._handle as (store, _):
        store.write([("default", b"version", version)])
    storage.close()
    for opened in (connect, check):
        with pytest.raises(StartRefused, match=f"has layout {version.decode()}, but this version of zq requires 5"):
            opened(uri)
    store = Store(tmp_path / "store", layout.FAMILIES, "never", 0)
    assert store.get("default", b"version") == version
    store.close()
