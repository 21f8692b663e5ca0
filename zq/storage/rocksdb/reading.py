# SPDX-License-Identifier: Apache-2.0
"""Reading a log of topics: along the log, or along the batches of one topic. No lock is taken.

What the log's view tells is read before the scan begins and ``dropped`` once more behind it: so a reader whose batches
fell off meanwhile learns that they did.
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
    for looked, (end, batch) in enumerate(_looks(store, view, after, pattern), 1):
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
    dropped = log.view.record.dropped
    return Reading([batch for batch in found if batch.last > dropped], position, position < last, last, dropped)


def stats(store: Store, view: View, topic: str, now: Seconds) -> Stats:
    """As ``TopicController.stats``; batches are read only if some of their messages have expired."""
    number, moment = view.record.number, layout.ms(now)
    count = 0
    ends: list[bytes] = []
    for key, value in store.scan("topics", *_range(view, topic, 0)):
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


def newest(store: Store, view: View, topic: str) -> int | None:
    """The last sequence of a topic; None if nothing of it is left."""
    found = next(store.scan("topics", *_range(view, topic, 0), backwards=True), None)
    return None if found is None else layout.number.unpack(found[0][-8:])[0]


def _looks(store: Store, view: View, after: int, pattern: Pattern) -> Looks:
    if after >= view.record.last:
        return iter(())
    return _along_topic(store, view, after, pattern.topic) if pattern.topic else _along(store, view, after, pattern)


def _along_topic(store: Store, view: View, after: int, topic: str) -> Looks:
    number = layout.number.pack(view.record.number)
    for key, _ in store.scan("topics", *_range(view, topic, after)):
        value = store.get("batches", number + key[-8:])  # it may go meanwhile
        yield layout.number.unpack(key[-8:])[0], None if value is None else batches.decode_stored(value).batch


def _along(store: Store, view: View, after: int, pattern: Pattern) -> Looks:
    number, last = view.record.number, view.record.last
    begin = max(after, view.record.dropped) + 1
    for key, value in store.scan("batches", layout.pair.pack(number, begin), layout.pair.pack(number, last + 1)):
        end = layout.pair.unpack(key)[1]
        stored = batches.decode_stored(value)
        topic = stored.topic.decode("utf-8", "surrogatepass")
        yield end, stored.batch if pattern.matches(topic) and end > view.floors.get(topic, 0) else None


def _range(view: View, topic: str, after: int) -> tuple[bytes, bytes]:
    """Entries of a topic above ``after`` that can be read."""
    prefix = batches.key_of(view.record.number, topic)
    begin = max(after, view.begin(topic))
    return prefix + layout.number.pack(begin + 1), prefix + layout.number.pack(view.record.last + 1)


def _living(store: Store, key: bytes, now: Seconds) -> list[Published]:
    value = store.get("batches", key)
    return [] if value is None else list(batches.decode_stored(value).batch.messages(0, now))


def _landmark(store: Store, key: bytes, now: Seconds, at: int) -> Landmark | None:
    living = _living(store, key, now)
    return Landmark(str(living[at].sequence), living[at].created, living[at].sequence) if living else None
