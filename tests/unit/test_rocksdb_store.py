# SPDX-License-Identifier: Apache-2.0
"""The key-value store of the driver: the properties of the RocksDB binding on which it relies."""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from zq.errors import Repeated, Unavailable
from zq.model import Commit, Draft, IdempotencyKey, ListFilter, QueueRef, new_ids
from zq.storage import connect, rocksdb
from zq.storage.ordered import layout
from zq.storage.rocksdb import tuning
from zq.storage.rocksdb.store import GroupSync, Store

JOBS = QueueRef("acme", "jobs")


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    opened = Store(tmp_path / "store", ("default", "other"), "always", 1)
    yield opened
    opened.close()


def test_scans_stay_within_their_bounds_in_both_directions(store: Store):
    """The binding ignores a lower bound when it iterates backwards."""
    store.write([("other", bytes([key]), b"") for key in (1, 2, 5, 8)])
    assert [key for key, _ in store.scan("other", b"\x02", b"\x08")] == [b"\x02", b"\x05"]
    assert [key for key, _ in store.scan("other", b"\x02", b"\x08", backwards=True)] == [b"\x05", b"\x02"]
    assert list(store.scan("other", b"\x03", b"\x05", backwards=True)) == []


def test_a_scan_backwards_through_nothing_does_not_begin(store: Store, monkeypatch: pytest.MonkeyPatch):
    """The iteration would read all removed entries below its range."""
    store.write([("other", b"\x01", b"")])
    ways: list[bool] = []
    other = store._views["other"]

    class Watched:
        """The family, recording the direction of each iteration."""

        def items(self, backwards: bool, *bounds: Any) -> Any:
            ways.append(backwards)
            return other.items(backwards, *bounds)

        def iter(self, bounds: Any) -> Any:
            return other.iter(bounds)

    monkeypatch.setitem(store._views, "other", Watched())
    assert list(store.scan("other", b"\x02", b"\x08", backwards=True)) == []
    assert ways == [False]


def test_no_flush_succeeds_after_a_failed_one(store: Store, monkeypatch: pytest.MonkeyPatch):
    """The operating system may have dropped the data of the failed flush, and reports the error only once."""
    store.write([("default", b"a", b"1")])
    real, started, gate = store._db, threading.Event(), threading.Event()

    class Failing:
        """A database whose first sync fails."""

        def flush_wal(self, sync: bool) -> None:
            if not started.is_set():
                started.set()
                assert gate.wait(60)
                raise Exception("IO error: fsync")
            real.flush_wal(sync)

    refused = []

    def settle() -> None:
        with pytest.raises(Unavailable):
            store.wait_durable()
        refused.append(True)

    monkeypatch.setattr(store, "_db", Failing())
    threads = [threading.Thread(target=settle) for _ in range(3)]
    threads[0].start()
    assert started.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(store._group_sync._waiting) < 2:
        pass
    gate.set()
    for thread in threads:
        thread.join(60)
    monkeypatch.undo()
    assert len(refused) == 3
    store.failure = None


def test_a_batch_is_applied_as_a_whole_over_all_families(store: Store):
    """Puts and deletes of one write become visible together."""
    store.write([("default", b"a", b"1"), ("other", b"a", b"2")])
    store.write([("default", b"a", None), ("other", b"b", b"3")])
    assert store.get("default", b"a") is None
    assert store.get_many("other", [b"b", b"missing", b"a"]) == [b"3", None, b"2"]


def test_a_failed_write_closes_the_store_for_writes(store: Store, monkeypatch: pytest.MonkeyPatch):
    """After an I/O error, reads continue but nothing is written until the store is reopened."""
    store.write([("default", b"a", b"1")])

    class Full:
        """A database whose disk is full; the fault tests use a full disk."""

        def write(self, *_: object) -> None:
            raise Exception("IO error: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_db", Full())
        with pytest.raises(Unavailable):
            store.write([("default", b"b", b"2")])
    with pytest.raises(Unavailable):
        store.write([("default", b"c", b"3")])
    assert store.get("default", b"a") == b"1"
    store.failure = None


def test_a_stalled_write_is_repeated_until_it_gets_through(store: Store, monkeypatch: pytest.MonkeyPatch):
    """The driver retries instead of using RocksDB's own wait, which would block every thread."""
    real, stalls = store._db, iter([True, True, False])

    class Stalling:
        """A database that refuses two writes like RocksDB during a stall."""

        def write(self, batch: object, options: object) -> None:
            if next(stalls):
                raise Exception("Result incomplete: Write stall")
            real.write(batch, options)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_db", Stalling())
        store.write([("default", b"a", b"1")])
    assert store.get("default", b"a") == b"1"
    assert store.failure is None


def test_one_flush_serves_all_earlier_requests():
    """Sixteen threads that wait during a flush share the next ones; each returns only after a later flush."""
    gate, flushes = threading.Event(), []

    def flush() -> None:
        flushes.append(threading.current_thread().name)
        assert gate.wait(60)

    group_sync = GroupSync(flush)
    threads = [threading.Thread(target=group_sync.wait) for _ in range(17)]
    threads[0].start()
    while not flushes:
        pass
    for thread in threads[1:]:
        thread.start()
    while len(group_sync._waiting) < 16:
        pass
    gate.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert len(flushes) == 2


def test_a_failed_flush_is_raised_to_all_that_wait_for_it():
    """No waiting thread takes a failed flush for a success."""
    gate, told, started = threading.Event(), [], threading.Event()

    def flush() -> None:
        started.set()
        assert gate.wait(60)
        raise Unavailable("no")

    group_sync = GroupSync(flush)

    def ask() -> None:
        with pytest.raises(Unavailable):
            group_sync.wait()
        told.append(True)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    threads[0].start()
    assert started.wait(60)
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(60)
    assert len(told) == 8


def test_a_large_commit_does_not_fill_the_write_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Published messages are flushed between two slices as soon as the buffers exceed the limit.

    The memory of the buffers is returned to the system.
    """
    trimmed = []
    monkeypatch.setattr(rocksdb, "MAX_BUFFERED", 8 << 20)
    monkeypatch.setattr(tuning, "trim_heap", lambda: trimmed.append(len(buffered)))
    storage: Any = connect(f"rocksdb:{tmp_path}/store")
    now, queue = storage.now(), QueueRef("p", "out")
    for _ in range(4):
        drafts = [Draft(id, b"x" * 4000, 3600, 0, "c") for id in new_ids(1000, now)]
        storage.transactions.stage("p", "s", queue, drafts, now, 3600, 1 << 30)
    buffered = []
    assert storage.transactions.commit(Commit("p", "etl", 1, ["s"], [], 3600), now).open
    more = True
    while more:
        more = storage.transactions.continue_commit("p", "etl", 200, now)
        opened = storage._housekeeping._opened
        buffered.append(sum(opened.get_property(family, "cur-size-active-mem-table") for family in layout.FAMILIES))
    assert max(buffered) <= 8 << 20
    assert 1 <= len(trimmed) < len(buffered) == 20
    assert len(storage.messages.list(queue, 0, 5000, ListFilter(), now).items) == 4000
    storage.close()


def test_a_repeated_post_waits_until_the_first_attempt_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first post waits for its sync, and its repeat must not be answered before."""
    storage = connect(f"rocksdb://{tmp_path}/store")
    waiting, gate, answered = queue.Queue[str](), threading.Event(), list[str]()
    [draft] = [Draft(id, b"1", 3600, 0, "alice") for id in new_ids(1, storage.now())]

    def wait_durable(_: Store, always: bool = False) -> None:
        waiting.put(threading.current_thread().name)
        gate.wait(60)

    def post() -> None:
        with suppress(Repeated):
            storage.messages.post(
                QueueRef("acme", "jobs"), [draft], storage.now(), idempotency_key=IdempotencyKey("k", b"", 60)
            )
        answered.append(threading.current_thread().name)
        waiting.put("")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "wait_durable", wait_durable)
        threads = [threading.Thread(target=post, name=name) for name in ("first", "repeat")]
        try:
            for thread in threads:
                thread.start()
                assert waiting.get(timeout=60) == thread.name
            assert answered == []
        finally:
            gate.set()
        for thread in threads:
            thread.join(60)
    assert sorted(answered) == ["first", "repeat"]
    storage.close()
