# SPDX-License-Identifier: Apache-2.0
"""Topic logs of the embedded store: keys, trimming, and the state after a restart or a failure."""

import math
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from tests.servers import wait_for
from zq.errors import Unavailable
from zq.model.documents import DocumentRef
from zq.model.expiry import Steps
from zq.model.topics import EVERYTHING, Batch, Entry, Pattern, Retention, TopicRef
from zq.storage.ordered import documents, layout, reclaim, startup, topics
from zq.storage.ordered.documents import StoredDocument
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import check, connect
from zq.storage.rocksdb.store import Store

NOW = 1_700_000_000.0
KEEP = Retention(1 << 20, 80)
ALL = Pattern(EVERYTHING)
A, B = TopicRef("acme", "a"), TopicRef("acme", "b")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def storage(path: Path) -> Iterator[OrderedStorage]:
    opened = connect(f"rocksdb://{path}", sync="never", max_clock_jump=0)
    yield opened
    opened.close()


def publish(storage: OrderedStorage, count: int, topic: TopicRef = A, ttl: int = 600, keep: Retention = KEEP) -> int:
    """Publish batches of one message and return the sequence of the last one."""
    return [storage.topics.publish(topic, [Entry(b"1", ttl)], NOW, keep) for _ in range(count)][-1]


def keys(storage: OrderedStorage, family: str) -> list[bytes]:
    with storage._handle as (store, _):
        return [key for key, _ in store.scan(family, b"", b"\xff" * 64)]


def fallen(storage: OrderedStorage) -> int:
    """Return the number of logs that have trimmed batches to remove."""
    return sum(1 for key in keys(storage, "default") if key.startswith(layout.TRIMMED_LOG))


def test_keys_end_in_the_last_sequence_and_keep_topics_apart(storage: OrderedStorage):
    """A scan from a marker first finds the batch that contains it; no topic's key range contains those of another."""
    odd = [TopicRef("acme", name) for name in ("a", "a\0", "a\0\0\0\0\0\0\0\0", "\udcff", "")]
    for topic in odd:
        storage.topics.publish(topic, [Entry(b"1", 600)] * 3, NOW, KEEP)
    assert [layout.pair.unpack(key)[1] for key in keys(storage, "batches")] == [3, 6, 9, 12, 15]
    for number, topic in enumerate(odd):
        assert storage.topics.stats(topic, NOW).free == 3
        newest = storage.topics.stats(topic, NOW).newest
        assert newest is not None
        assert newest.sequence == 3 * number + 3


def test_a_log_is_trimmed_by_slices_in_one_range(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """One range is removed for an eighth of the retained batches, not for each publish; no trimmed batch remains."""
    ranges: list[object] = []
    write = Store.write
    monkeypatch.setattr(
        Store, "write", lambda store, writes, gone=(): (ranges.extend(gone), write(store, writes, gone))
    )
    for _ in range(300):
        publish(storage, 1)
        found = storage.topics.read("acme", 0, 1000, ALL)
        assert len(found.batches) == min(found.last, found.last - found.dropped) <= 90
        assert found.last < 90 or len(found.batches) >= 80
        assert [layout.pair.unpack(key)[1] for key in keys(storage, "batches")] == [b.last for b in found.batches]
    assert 20 <= len(ranges) <= 22


def test_a_sweep_removes_index_entries_of_trimmed_batches(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """The index entries are removed in steps of any size, for all topics; afterwards the log is not scanned again."""
    publish(storage, 100, A)
    publish(storage, 50, B)
    publish(storage, 30, TopicRef("acme", "c"))
    assert len(keys(storage, "due")) == 180
    assert fallen(storage) == 1
    storage.maintain(NOW, None, Steps(7, 100_000))
    living = len(keys(storage, "batches"))
    assert 80 <= living <= 90
    assert len(keys(storage, "due")) == len(keys(storage, "topics")) == living
    assert fallen(storage) == 0
    monkeypatch.setattr(reclaim, "_trimmed_entries", None)
    storage.maintain(NOW)


def test_batches_trimmed_during_a_pass_are_removed_by_the_next(storage: OrderedStorage):
    """If further batches are trimmed during a pass, the log stays listed for the next pass."""
    publish(storage, 180)
    with storage._handle as opened:
        storage._active_expiry._batch_reclaim.clear_trimmed(opened, 5, Steps())
    publish(storage, 100)
    for left in (True, False):
        with storage._handle as opened:
            storage._active_expiry._batch_reclaim.clear_trimmed(opened, 1000, Steps())
        assert bool(fallen(storage)) == left
    assert len(keys(storage, "topics")) == len(keys(storage, "batches"))


def test_expired_batches_count_until_they_are_trimmed(storage: OrderedStorage):
    """The space is reclaimed at once, but retained totals count expired batches; a reader gets no gap for them."""
    publish(storage, 85, ttl=1)
    storage.maintain(NOW + 1)
    assert keys(storage, "batches") == keys(storage, "topics") == []
    publish(storage, 6)
    assert storage.topics.read("acme", 0, 100, ALL).dropped == 0
    publish(storage, 90)
    assert storage.topics.read("acme", 0, 100, ALL).dropped > 85


@pytest.mark.parametrize("early", [True, False], ids=["before the scan", "during the scan"])
def test_a_reader_gets_a_gap_for_a_trim_during_its_read(
    storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch, early: bool
):
    """The reader gets a gap whether it has read the batches or not; they are never missing without one."""
    publish(storage, 85)
    batches = topics._scan_batches

    def overtaken(*arguments: Any) -> Iterator[tuple[int, Batch | None]]:
        met = [] if early else list(batches(*arguments))
        publish(storage, 6)
        return batches(*arguments) if early else iter(met)

    monkeypatch.setattr(topics, "_scan_batches", overtaken)
    found = storage.topics.read("acme", 0, 100, ALL)
    assert found.dropped == 11
    assert [batch.sequence for batch in found.batches] == list(range(12, 86))
    assert (found.position, found.last, found.more) == (85, 85, False)


def test_the_space_of_removed_batches_comes_back_without_more_writes(storage: OrderedStorage):
    """The removals are flushed to files, so that RocksDB compacts although they are few."""

    def size() -> int:
        with storage._handle as (store, _):
            return store.get_property("batches", "total-sst-files-size")

    large = [Entry(os.urandom(100_000), 60)]
    for _ in range(20):
        storage.topics.publish(A, large, NOW, Retention(1 << 30, 80))
    storage._handle.reopen()  # which flushes the memtables to files
    assert size() > 2_000_000
    for _ in range(2):
        storage._housekeeping._checked_at = -math.inf
        storage.maintain(NOW + 60)
    wait_for(lambda: size() < 100_000, 60, "the space is back")


def test_a_restart_skips_sequences_without_a_gap(storage: OrderedStorage, path: Path):
    """Sequences that a power failure may have lost are never used again.

    A reader at the old end has missed nothing, even when all earlier batches are trimmed.
    """
    old = publish(storage, 10)
    storage.topics.purge(B)
    for start in (1, 2):
        storage._handle.reopen()
        assert storage.topics.read("acme", old, 100, ALL).position == old + start * startup.EPOCH_STRIDE
    new = publish(storage, 1)
    assert new == old + 2 * startup.EPOCH_STRIDE + 1
    publish(storage, 100)
    assert storage.topics.read("acme", 0, 100, ALL).dropped >= old
    storage._handle.reopen()
    again = publish(storage, 1, keep=Retention(1 << 20, 1))
    assert storage.topics.read("acme", 0, 100, ALL).dropped == again - startup.EPOCH_STRIDE - 1


def test_a_killed_store_agrees_with_itself(storage: OrderedStorage, path: Path, tmp_path: Path):
    """The copies of the open directory are as after a kill, at several points of trimming, purging and sweeping."""
    for number in range(4):
        publish(storage, 50, (A, B)[number % 2])
        if number == 1:
            storage.topics.purge(A)
        if number == 2:
            storage.maintain(NOW, None, Steps(10, 20))
        copy = tmp_path / f"copy{number}"
        shutil.copytree(path, copy)
        report = check(f"rocksdb://{copy}")
        assert report.examples == []
        last = storage.topics.read("acme", 0, 1, ALL).last
        opened = connect(f"rocksdb://{copy}", max_clock_jump=0)
        assert opened.topics.stats(A, NOW) == storage.topics.stats(A, NOW)
        assert publish(opened, 1) == last + startup.EPOCH_STRIDE + 1
        opened.close()


def test_a_batch_of_an_earlier_version_agrees_with_its_index(storage: OrderedStorage, path: Path):
    """Entries of that version have no attributes."""
    publish(storage, 1)
    with storage._handle as (store, _):
        [(key, value)] = store.scan("batches", b"", b"\xff" * 64)
        *head, entries = msgpack.decode(value)
        assert [len(entry) for entry in entries] == [6]
        store.write([("batches", key, msgpack.encode([*head, [entry[:5] for entry in entries]]))])
    storage.close()
    report = check(f"rocksdb://{path}")
    assert report is not None
    assert (report.contradictions, report.examples) == (0, [])


def test_a_floor_is_removed_with_the_batches_below_it(storage: OrderedStorage):
    """A purge of an empty topic stores no floor; other topics are not affected."""
    storage.topics.purge(A)
    publish(storage, 3, B)
    storage.topics.purge(A)
    assert keys(storage, "floors") == []
    publish(storage, 30, A)
    storage.topics.purge(A)
    publish(storage, 1, A)
    storage._handle.reopen()
    assert storage.topics.stats(A, NOW).free == 1
    storage.maintain(NOW, None, Steps(7, 1000))
    assert keys(storage, "floors") == []
    assert len(keys(storage, "batches")) == len(keys(storage, "topics")) == len(keys(storage, "due")) == 4
    assert (storage.topics.stats(A, NOW).free, storage.topics.stats(B, NOW).free) == (1, 3)


def test_a_purge_during_a_sweep_is_not_forgotten_with_the_one_before(storage: OrderedStorage):
    """The sweep has removed the batches of the first purge, and finds another floor than the one that it read."""
    publish(storage, 3)
    storage.topics.purge(A)
    with storage._handle as (store, registry):
        log = registry.logs.ensure("acme")
        known = next(store.scan("floors", b"", b"\xff"))
        publish(storage, 3)
        storage.topics.purge(A)
        storage._active_expiry._batch_reclaim._clear_topic(store, log, known, 10, Steps())
    assert len(keys(storage, "floors")) == 1
    assert storage.topics.read("acme", 0, 10, ALL).batches == []


def test_batches_are_passed_on_in_order_by_any_publisher(path: Path):
    """Many publishers share syncs; each batch is passed on once, in order of sequences, after it is on disk."""
    storage = connect(f"rocksdb://{path}", sync="always", max_clock_jump=0)
    told: list[int] = []
    storage.topics.subscribe("acme", lambda batch, _: told.append(batch.sequence if batch else 0))
    threads = [threading.Thread(target=publish, args=(storage, 50)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == list(range(1, 401))
    storage.close()


def test_a_batch_waits_until_it_is_durable(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """A publisher whose batch is durable passes on the batches up to its own, not those that were published since."""
    told: list[int] = []
    storage.topics.subscribe("acme", lambda batch, _: told.append(batch.sequence if batch else 0))
    gates = {"first": threading.Event(), "second": threading.Event()}
    monkeypatch.setattr(Store, "wait_durable", lambda _: gates[threading.current_thread().name].wait(30))
    threads = [threading.Thread(target=publish, args=(storage, 1), name=name) for name in gates]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_for(lambda last=number: storage.topics.read("acme", 0, 10, ALL).last == last, 60, "the batch is published")
    assert told == []
    for number, thread in enumerate(threads, 1):
        gates[thread.name].set()
        thread.join()
        assert told == list(range(1, number + 1))


def test_a_batch_that_is_not_durable_is_never_passed_on(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """Subscribers are notified of a loss instead, and receive batches again after the store is reopened."""
    told: list[Batch | None] = []
    storage.topics.subscribe("acme", lambda batch, _: told.append(batch))

    def fail(_: Store) -> None:
        raise Unavailable("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "wait_durable", fail)
        with pytest.raises(Unavailable):
            publish(storage, 1)
    assert told == [None]
    storage._handle.reopen()
    publish(storage, 1)
    assert [batch and batch.sequence for batch in told] == [None, startup.EPOCH_STRIDE + 2]


def test_a_record_that_was_given_a_longer_life_is_not_swept(storage: OrderedStorage):
    """A sweeper that found the record due before checks it again."""
    ref = DocumentRef("acme", "kind", "name")
    storage.documents.put(ref, b"1", NOW, expires=NOW + 60)
    key = keys(storage, "records")[0]
    active_expiry = threading.Thread(target=storage.maintain, args=(NOW + 60,))
    with storage.documents._stripes.locked(documents.lock_name(key)), storage._handle as (store, _):
        active_expiry.start()
        active_expiry.join(0.2)
        assert active_expiry.is_alive()
        longer = StoredDocument(b"1", "v", layout.ms(NOW + 600))
        store.write([("due", keys(storage, "due")[0], None), *documents.document_writes(key, longer)])
    active_expiry.join(30)
    found = storage.documents.get(ref, NOW + 60)
    assert found is not None
    assert found.version == "v"
    assert len(keys(storage, "due")) == 1
    storage.maintain(NOW + 600)
    assert keys(storage, "records") == keys(storage, "due") == []
