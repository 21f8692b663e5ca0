# SPDX-License-Identifier: Apache-2.0
"""Reading a log of topics: along the log, or along the batches of one topic. No lock is taken.

What the log's view tells is read before the scan begins and ``dropped`` once more behind it: so a reader whose batches
fell off meanwhile learns that they did. What was removed in front is crossed once: see ``Log.heads``.
"""

from collections.abc import Iterator
from typing import Final

from zq.model import Landmark, Seconds, Stats
from zq.storage.rocksdb import batches, layout
from zq.storage.rocksdb.log import Log, View
from zq.storage.rocksdb.port import Store
from zq.topics import Batch, Pattern, Published, Reading

MOST_LOOKED: Final = 1000
"""Batches looked at in one call."""
MOST_SIZE: Final = 1 << 20
"""Bytes of bodies in one answer, unless its first batch has more."""

Looks = Iterator[tuple[int, Batch | None]]
"""(last sequence, batch), in order; None for one that is not wanted."""


def read(store: Store, log: Log, after: int, limit: int, pattern: Pattern) -> Reading:
    """As ``TopicController.read``."""
    view = log.view
    last = view.record.last
    found: list[Batch] = []
    count = size = 0
    position = after
    for looked, (end, batch) in enumerate(_looks(store, log, view, after, pattern), 1):
        if batch is not None:
            size += batch.size
            if found and size > MOST_SIZE:
                break
            found.append(batch)
            count += end - max(after, batch.sequence - 1)
        position = end
        if count >= limit or looked == MOST_LOOKED:
            break
    else:
        position = max(after, last)
    dropped = log.dropped
    return Reading([batch for batch in found if batch.last > dropped], position, position < last, last, dropped)


def stats(store: Store, log: Log, topic: str, now: Seconds) -> Stats:
    """As ``TopicController.stats``; batches are read only if some of their messages have expired."""
    number, moment = log.history, layout.ms(now)
    count = 0
    ends: list[bytes] = []
    for key, value in _entries(store, log, log.view, topic, 0):
        expires, first, earliest = layout.triple.unpack(value)
        batch = layout.number.pack(number) + key[-8:]
        if earliest > moment:
            living = layout.number.unpack(key[-8:])[0] - first + 1
        else:
            living = len(_living(store, batch, now)) if expires > moment else 0
        count += living
        if living:
            ends[1:] = [batch]
    if not ends:
        return Stats()
    return Stats(0, count, _landmark(store, ends[0], now, 0), _landmark(store, ends[-1], now, -1))


def newest(store: Store, log: Log, topic: str) -> int | None:
    """The last sequence of a topic; None if nothing of it is left."""
    prefix, last = batches.key_of(log.history, topic), log.view.record.last
    lower, upper = (prefix + layout.number.pack(at + 1) for at in (_head(log, log.view, topic), last))
    found = next(store.scan("topics", lower, upper, backwards=True), None)
    if found is None:
        log.learn(topic, last)
        return None
    return _sequence(found[0])


def _looks(store: Store, log: Log, view: View, after: int, pattern: Pattern) -> Looks:
    if after >= view.record.last:
        return iter(())
    if pattern.topic:
        return _along_topic(store, log, view, after, pattern.topic)
    return _along(store, log, view, after, pattern)


def _along_topic(store: Store, log: Log, view: View, after: int, topic: str) -> Looks:
    number = layout.number.pack(log.history)
    for key, _ in _entries(store, log, view, topic, after):
        value = store.get("batches", number + key[-8:])  # it may go meanwhile
        yield _sequence(key), None if value is None else batches.decode_stored(value).batch


def _along(store: Store, log: Log, view: View, after: int, pattern: Pattern) -> Looks:
    for key, value in _entries(store, log, view, None, after):
        end = _sequence(key)
        stored = batches.decode_stored(value)
        topic = stored.topic.decode("utf-8", "surrogatepass")
        yield end, stored.batch if pattern.matches(topic) and end > view.floors.get(topic, 0) else None


def _entries(store: Store, log: Log, view: View, topic: str | None, after: int) -> Iterator[tuple[bytes, bytes]]:
    """Entries in ``topics``, or for None in ``batches``, above ``after`` that can be read."""
    number = layout.number.pack(log.history)
    family, prefix = ("batches", number) if topic is None else ("topics", batches.key_of(log.history, topic))
    head, last = _head(log, view, topic), view.record.last
    begin = max(after, head)
    first = None
    for key, value in store.scan(family, prefix + layout.number.pack(begin + 1), prefix + layout.number.pack(last + 1)):
        if first is None:
            first = _sequence(key)
            if begin == head < first - 1:
                log.learn(topic, first - 1)
        yield key, value
    if first is None and begin == head < last:
        log.learn(topic, last)


def _head(log: Log, view: View, topic: str | None) -> int:
    """Nothing of a topic, or (None) of all, can be read up to there."""
    known = max(view.record.dropped, log.heads.get(None, 0), log.heads.get(topic, 0))
    return known if topic is None else max(known, view.floors.get(topic, 0))


def _sequence(key: bytes) -> int:
    """The last sequence of the batch that an entry is about."""
    end: int = layout.number.unpack(key[-8:])[0]
    return end


def _living(store: Store, key: bytes, now: Seconds) -> list[Published]:
    value = store.get("batches", key)
    return [] if value is None else list(batches.decode_stored(value).batch.messages(0, now))


def _landmark(store: Store, key: bytes, now: Seconds, at: int) -> Landmark | None:
    living = _living(store, key, now)
    return Landmark(str(living[at].sequence), living[at].created, living[at].sequence) if living else None
