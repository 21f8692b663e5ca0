# SPDX-License-Identifier: Apache-2.0
"""Topics: publishing, subscriptions, and lock-free reads of a log or of one topic.

A reader gets ``Log.view`` before its scan and ``Log.dropped`` after it, so that it notices a concurrent trim. A reader
begins after ``Log.head``, because all batches up to this sequence are removed.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from zq.errors import Unavailable
from zq.model import EndMessage, IdempotencyKey, Seconds, Stats
from zq.model.topics import Batch, Entry, Listener, LogSlice, Pattern, PublishedMessage, Retention, TopicRef
from zq.storage.ordered import layout, logs
from zq.storage.ordered.handle import StoreHandle
from zq.storage.ordered.idempotency import check_key, key_writes
from zq.storage.ordered.logs import Log, LogView
from zq.storage.ordered.store import Store, Write


class TopicController:
    """The implementation of ``zq.storage.capabilities.TopicController`` over an ordered store."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._feed = Feed()

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            log = registry.logs.ensure(topic.project)
            with log.lock:
                check_key(store, log, idempotency_key, int, moment)
                batch = Batch(topic.name, log.view.record.last + 1, moment / 1000, list(entries))
                keys: list[Write] = []
                if idempotency_key is not None:  # its result does not count as usage; the log has its own limit
                    keys, _ = key_writes(log, idempotency_key, batch.sequence, moment, counts=False)
                log.append(store, batch, retention, keys)
                self._feed.enqueue(log, batch.last, batch)
            self._announce(store, log, batch.last)
        return batch.sequence

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        after = max(after, 0)
        with self._handle as (store, registry):
            log = registry.logs.find(project)
            if log is None:
                return LogSlice([], after, False, 0, 0, registry.logs.origin)
            return read_log(store, log, after, limit, pattern)

    def purge(self, topic: TopicRef) -> None:
        with self._handle as (store, registry):
            log = registry.logs.find(topic.project)
            if log is None:
                return
            with log.lock:
                last = log.view.record.last
                last_batch = find_newest(store, log, topic.name)
                if last_batch is not None:
                    log.set_floor(store, topic.name, last_batch)
                    self._feed.enqueue(log, last, None)
            self._announce(store, log, last)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        with self._handle as (store, registry):
            log = registry.logs.find(topic.project)
            return Stats() if log is None else topic_stats(store, log, topic.name, now)

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        return self._feed.subscribe(project, listener)

    def _announce(self, store: Store, log: Log, last: int) -> None:
        try:
            store.wait_durable()
        except Unavailable:
            self._feed.notify_gap(log)
            raise
        self._feed.notify(log, last)


class Feed:
    """The subscriptions of all projects. Listeners are notified of durable batches in log order.

    A publisher enqueues the notification of its batch under the log's lock. When the batch is durable, all earlier
    batches are durable too. The publisher's thread then sends all notifications up to its own batch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[str, tuple[Listener, ...]] = {}

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        """Notify the listener of the project's new batches. Return a function that ends the subscription."""
        with self._lock:
            self._listeners[project] = (*self._listeners.get(project, ()), listener)

        def end() -> None:
            with self._lock:
                left = tuple(other for other in self._listeners.get(project, ()) if other is not listener)
                self._listeners[project] = left
                if not left:
                    del self._listeners[project]

        return end

    def enqueue(self, log: Log, last: int, batch: Batch | None) -> None:
        """Enqueue the notification of a batch, or of a purge (None). The caller holds the log's lock."""
        if log.project in self._listeners:
            log.pending.append((last, batch))

    def notify(self, log: Log, last: int) -> None:
        """Send the enqueued notifications up to the durable sequence ``last``."""
        if not log.pending:
            return
        with log.notifying:
            while log.pending and log.pending[0][0] <= last:
                self._notify(log.project, log.pending.popleft()[1])

    def notify_gap(self, log: Log) -> None:
        """Notify the log's listeners that they may miss batches."""
        self._notify(log.project, None)

    def _notify(self, project: str, batch: Batch | None) -> None:
        for listener in self._listeners.get(project, ()):
            listener(batch, batch.sequence - 1 if batch else 0)


# Maximum number of batches that one call of ``read_log`` reads, including batches of other topics.
MAX_READ: Final = 1000
# Maximum size in bytes of the bodies in one slice, unless its first batch is larger.
MAX_SIZE: Final = 1 << 20

# Batches in order, each as (last sequence, batch). The batch is None if it was removed or does not match.
Batches = Iterator[tuple[int, Batch | None]]


def read_log(store: Store, log: Log, after: int, limit: int, pattern: Pattern) -> LogSlice:
    view = log.view
    last = view.record.last
    found: list[Batch] = []
    count = size = 0
    position = after
    for number, (end, batch) in enumerate(_scan_batches(store, log, view, after, pattern), 1):
        if batch is not None:
            size += batch.size
            if found and size > MAX_SIZE:
                break
            found.append(batch)
            count += end - max(after, batch.sequence - 1)
        position = end
        if count >= limit or number == MAX_READ:
            break
    else:
        position = max(after, last)
    # Leave out batches that were purged or trimmed during the scan, because the scan may have missed some of them.
    dropped, floors = log.dropped, (view.floors, log.view.floors)
    kept = [batch for batch in found if batch.last > max(dropped, *(each.get(batch.topic, 0) for each in floors))]
    return LogSlice(kept, position, position < last, last, dropped)


def topic_stats(store: Store, log: Log, topic: str, now: Seconds) -> Stats:
    """Return the topic's statistics. Only batches with both expired and unexpired messages are read."""
    while (stats := _count_stats(store, log, topic, now)) is None:
        pass
    return stats


def _count_stats(store: Store, log: Log, topic: str, now: Seconds) -> Stats | None:
    """Return the topic's statistics, or None if batches of the topic were purged or trimmed during the scan."""
    floor = log.view.floors.get(topic, 0)
    number, moment = log.history, layout.ms(now)
    count = 0
    ends: list[bytes] = []
    for key, value in _scan_entries(store, log, log.view, topic, 0):
        expires, first, earliest = layout.triple.unpack(value)
        batch = layout.number.pack(number) + key[-8:]
        if earliest > moment:
            living = layout.number.unpack(key[-8:])[0] - first + 1
        else:
            living = len(_read_live(store, batch, now)) if expires > moment else 0
        count += living
        if living:
            ends[1:] = [batch]
    if log.view.floors.get(topic, 0) != floor:
        return None
    if not ends:
        return Stats()
    oldest, newest = _build_edge(store, ends[0], now, 0), _build_edge(store, ends[-1], now, -1)
    return None if oldest is None or newest is None else Stats(0, count, oldest, newest)


def find_newest(store: Store, log: Log, topic: str) -> int | None:
    """Return the last sequence of a topic, or None if the topic has no batches."""
    prefix, last = logs.topic_key(log.history, topic), log.view.record.last
    lower, upper = (prefix + layout.number.pack(at + 1) for at in (_known_head(log, log.view, topic), last))
    found = next(store.scan("topics", lower, upper, backwards=True), None)
    if found is None:
        log.cache_head(topic, last)
        return None
    return _decode_sequence(found[0])


def _scan_batches(store: Store, log: Log, view: LogView, after: int, pattern: Pattern) -> Batches:
    if after >= view.record.last:
        return iter(())
    if pattern.topic:
        return _scan_topic(store, log, view, after, pattern.topic)
    return _scan_log(store, log, view, after, pattern)


def _scan_topic(store: Store, log: Log, view: LogView, after: int, topic: str) -> Batches:
    number = layout.number.pack(log.history)
    for key, _ in _scan_entries(store, log, view, topic, after):
        value = store.get("batches", number + key[-8:])  # None if the batch was trimmed after the scan
        yield _decode_sequence(key), None if value is None else logs.decode_stored(value).batch


def _scan_log(store: Store, log: Log, view: LogView, after: int, pattern: Pattern) -> Batches:
    for key, value in _scan_entries(store, log, view, None, after):
        end = _decode_sequence(key)
        stored = logs.decode_stored(value)
        topic = stored.topic.decode("utf-8", "surrogatepass")
        yield end, stored.batch if pattern.matches(topic) and end > view.floors.get(topic, 0) else None


def _scan_entries(
    store: Store, log: Log, view: LogView, topic: str | None, after: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of batches above the sequence ``after``, as (key, value).

    The entries come from the family ``topics``, or from the family ``batches`` if ``topic`` is None. Trimmed batches
    are skipped. If a topic is given, purged batches are skipped too.
    """
    number = layout.number.pack(log.history)
    family, prefix = ("batches", number) if topic is None else ("topics", logs.topic_key(log.history, topic))
    head, last = _known_head(log, view, topic), view.record.last
    begin = max(after, head)
    first = None
    for key, value in store.scan(family, prefix + layout.number.pack(begin + 1), prefix + layout.number.pack(last + 1)):
        if first is None:
            first = _decode_sequence(key)
            if begin == head < first - 1:
                log.cache_head(topic, first - 1)
        yield key, value
    if first is None and begin == head < last:
        log.cache_head(topic, last)


def _known_head(log: Log, view: LogView, topic: str | None) -> int:
    """Return the sequence up to which a topic is known to have no batches.

    If ``topic`` is None, return the sequence for the whole log.
    """
    known = max(view.record.dropped, log.head(None), log.head(topic))
    return known if topic is None else max(known, view.floors.get(topic, 0))


def _decode_sequence(key: bytes) -> int:
    end: int = layout.number.unpack(key[-8:])[0]
    return end


def _read_live(store: Store, key: bytes, now: Seconds) -> list[PublishedMessage]:
    value = store.get("batches", key)
    return [] if value is None else list(logs.decode_stored(value).batch.messages(0, now))


def _build_edge(store: Store, key: bytes, now: Seconds, at: int) -> EndMessage | None:
    living = _read_live(store, key, now)
    return EndMessage(str(living[at].sequence), living[at].created, living[at].sequence) if living else None
