# SPDX-License-Identifier: Apache-2.0
"""Topic logs of the embedded store: gaps during a publish, and the costs of reading and of removal."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import wait_for
from zq.errors import Unavailable
from zq.model.expiry import Steps
from zq.model.topics import EVERYTHING, Entry, LogSlice, Pattern, Retention, TopicRef
from zq.storage.ordered import layout, logs
from zq.storage.ordered.logs import Log
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store

NOW = 1_700_000_000.0
KEEP = Retention(1 << 30, 80)
ALL, ONE = Pattern(EVERYTHING), Pattern("a")
A, B = TopicRef("acme", "a"), TopicRef("acme", "b")


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[OrderedStorage]:
    opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    yield opened
    opened.close()


def publish(storage: OrderedStorage, count: int, topic: TopicRef = A, ttl: int = 600, keep: Retention = KEEP) -> int:
    """Publish batches of one message and return the sequence of the last one."""
    return [storage.topics.publish(topic, [Entry(b"1", ttl)], NOW, keep) for _ in range(count)][-1]


def log_of(storage: OrderedStorage, project: str = "acme") -> Log:
    with storage._handle as (_, registry):
        return registry.logs.ensure(project)


def entries(storage: OrderedStorage, project: str) -> int:
    """Return the number of a log's batches in the index of topics."""
    prefix = layout.number.pack(log_of(storage, project).history)
    with storage._handle as (store, _):
        return sum(1 for _ in store.scan("topics", prefix, layout.prefix_end(prefix)))


@pytest.mark.parametrize("pattern", [ALL, ONE], ids=["glob", "topic"])
def test_a_gap_is_reported_as_soon_as_it_exists(
    storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch, pattern: Pattern
):
    """A reader sees the gap between the write that trims batches and the rest of the publish."""
    write, met = Store.write, []

    def watched(store: Store, writes: Any, gone: Any = ()) -> None:
        write(store, writes, gone)
        if gone:
            met.append(storage.topics.read("acme", 0, 1, pattern))

    monkeypatch.setattr(Store, "write", watched)
    publish(storage, 91)
    [found] = met
    assert isinstance(found, LogSlice)
    assert found.batches[0].sequence == found.dropped + 1 == 12


def test_a_failed_publish_trims_nothing(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """A failed write causes no gap."""
    publish(storage, 90)

    def refuse(*_: object) -> None:
        raise Unavailable("The store is too busy.")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", refuse)
        with pytest.raises(Unavailable):
            publish(storage, 1)
    found = storage.topics.read("acme", 0, 1, ALL)
    assert (found.dropped, found.batches[0].sequence, found.last) == (0, 1, 90)


def test_logs_take_turns_when_they_are_cleared(storage: OrderedStorage):
    """A log with many topics does not delay others; only removals count for the pace; a round ends."""
    for topic in range(320):
        publish(storage, 1, TopicRef("big", f"t{topic}"), keep=Retention(1 << 30, 300))
    publish(storage, 40, TopicRef("big", "u"), keep=Retention(1 << 30, 300))
    publish(storage, 100, TopicRef("small", "t"))
    fallen = {project: log_of(storage, project).view.record.dropped for project in ("big", "small")}
    assert min(fallen.values()) > 0
    steps, pace = 0, Steps(10, 100_000)
    with storage._handle as opened:
        while entries(storage, "small") > 100 - fallen["small"]:
            storage._active_expiry._batch_reclaim.clear_trimmed(opened, 10, pace)
            steps += 1
        assert steps <= 2 * math.ceil(fallen["small"] / 10)
        while storage._active_expiry._batch_reclaim.clear_trimmed(opened, 10, pace) == 10:
            publish(storage, 5, TopicRef("small", "t"), keep=Retention(1 << 30, 8))
            steps += 1
            assert steps < 200
    assert entries(storage, "big") == 360 - fallen["big"]
    assert 100_000 - pace.left <= sum(fallen.values()) + 10


def test_space_of_trimmed_batches_of_an_idle_log_is_reclaimed(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """RocksDB does not compact after a removed range by itself; while batches are still trimmed, zq does not either."""
    monkeypatch.setattr(logs, "MIN_COMPACTED", 1 << 20)

    def size() -> int:
        with storage._handle as (store, _):
            return store.get_property("batches", "total-sst-files-size")

    for _ in range(40):
        storage.topics.publish(A, [Entry(os.urandom(100_000), 600)], NOW, Retention(1 << 30, 80))
    storage._handle.reopen()  # which flushes the memtables to files
    publish(storage, 1, keep=Retention(1000, 80))
    sizes = []
    for _ in range(2):
        storage._housekeeping._checked_at = -math.inf
        storage.maintain(NOW)
        sizes.append(size())
    assert sizes[0] > 4_000_000
    wait_for(lambda: size() < 100_000, 60, "the space is back")
    assert log_of(storage).take_trimmed_range() is None
    publish(storage, 1)
    assert storage.topics.read("acme", 0, 10, ALL).batches[-1].sequence == log_of(storage).view.record.last


def test_a_purge_copies_no_table(storage: OrderedStorage):
    """A purge adds to the existing table; removals take many entries out at once."""
    topics = [TopicRef("acme", f"t{number}") for number in range(10)]
    for topic in topics:
        publish(storage, 1, topic)
    floors = log_of(storage).view.floors
    for topic in topics:
        storage.topics.purge(topic)
    assert log_of(storage).view.floors is floors
    assert len(floors) == 10
    publish(storage, 1, topics[0])
    storage.maintain(NOW)
    assert log_of(storage).view.floors == {}
    assert len(storage.topics.read("acme", 0, 10, ALL).batches) == 1


def test_a_running_read_omits_batches_purged_and_removed_in_between(
    storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch
):
    """The scan still finds the purged batches, and the topic's floor is already removed."""
    publish(storage, 1, B)
    publish(storage, 3, A)
    scan = Store.scan

    def overtaken(store: Store, family: str, *bounds: Any, **way: Any) -> Iterator[tuple[bytes, bytes]]:
        for number, item in enumerate(scan(store, family, *bounds, **way)):
            if family == "batches" and number == 1:
                monkeypatch.setattr(Store, "scan", scan)
                storage.topics.purge(A)
                storage.maintain(NOW)
            yield item

    monkeypatch.setattr(Store, "scan", overtaken)
    assert [batch.topic for batch in storage.topics.read("acme", 0, 10, ALL).batches] == ["b"]


@pytest.mark.parametrize("pattern", [ALL, ONE], ids=["glob", "topic"])
def test_swept_batches_at_the_front_are_skipped_once(
    storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch, pattern: Pattern
):
    """The second read starts at the first batch, or at the end if there is none, also after further sweeps."""
    publish(storage, 50, ttl=1)
    storage.maintain(NOW + 1)
    begins: list[int] = []
    scan = Store.scan

    def watched(store: Store, family: str, lower: bytes, *more: Any, **way: Any) -> Iterator[tuple[bytes, bytes]]:
        begins.append(int.from_bytes(lower[-8:]))
        return scan(store, family, lower, *more, **way)

    monkeypatch.setattr(Store, "scan", watched)

    def looked() -> list[int]:
        return [batch.sequence for batch in storage.topics.read("acme", 0, 10, pattern).batches]

    assert looked() == []
    publish(storage, 3)
    assert looked() == [51, 52, 53]
    log_of(storage)._heads.clear()
    assert looked() == looked() == [51, 52, 53]
    assert begins == [1, 51, 1, 51]
    assert [batch.sequence for batch in storage.topics.read("acme", 51, 10, pattern).batches] == [52, 53]
    assert looked() == [51, 52, 53]
    publish(storage, 1, B)
    storage.topics.purge(A)
    publish(storage, 1)
    storage.maintain(NOW + 1)
    assert looked() == ([54, 55] if pattern is ALL else [55])


def test_the_cached_starts_of_topics_are_bounded(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """A forgotten start costs a longer scan and loses no message."""
    monkeypatch.setattr(logs, "MAX_HEADS", 5)
    topics = [TopicRef("acme", f"t{number}") for number in range(20)]
    for topic in topics:
        publish(storage, 1, topic)
    for topic in topics:
        assert len(storage.topics.read("acme", 0, 10, Pattern(topic.name)).batches) == 1
    assert len(log_of(storage)._heads) == 5
