# SPDX-License-Identifier: Apache-2.0
"""Reading a log: the counter first, then batches of the same moment, so that nothing comes or goes in between.

What has fallen off, or a fail-over, would otherwise make a hole that looks like messages of others. Where writers do
not wait for a majority there is no such moment, so the counter is read again.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from zq.storage.mongodb import layout, log
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port
from zq.topics import EVERYTHING, Batch, Pattern, Reading

Moment = Timestamp | bool
"""Of a snapshot; False = there is none."""
MOST: Final = 1000
"""Batches that one look passes."""
WEIGHT: Final = 1 << 20
"""Bytes that it carries."""


class Span(NamedTuple):
    """What one look goes over: the documents that fit, by an index (``hint``), up to a sequence."""

    conditions: Document
    hint: str
    end: int


class Reader:
    """Reads logs."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def last(self, key: QueueKey) -> int:
        """The last sequence of the log, which no fail-over gives again; 0 = there is none."""
        found = self._port.find(_counter(key), fields={"k1": 1}, committed=True)
        return int(found[0]["k1"]) if found else 0

    def dropped(self, key: QueueKey) -> int:
        """The last sequence that has fallen off."""
        found = self._port.find(_counter(key), fields={"x": 1})
        return int(found[0].get("x", 0)) if found else 0

    def read(self, key: QueueKey, after: int, limit: int, pattern: Pattern) -> Reading:
        """As ``TopicController.read`` says."""
        counters, moment = self._port.snapshot(_counter(key))
        counter: Document = counters[0] if counters else {}
        last, dropped = int(counter.get("k1", 0)), int(counter.get("x", 0))
        start = max(after, dropped)
        if start >= last:
            return Reading([], max(after, last), False, last, dropped)
        span = self._span(key, start, limit, pattern, last, moment)
        most = min(limit, MOST)
        found = self._port.find(
            span.conditions, limit=most, sort={"k": 1}, hint=span.hint, snapshot=moment, most_bytes=WEIGHT
        )
        if not moment:  # what has fallen off meanwhile may be gone from between these, or not
            dropped = max(dropped, self.dropped(key))
        kept = [one for one in found if one["k"] > dropped]
        batches = _portion(kept, start, limit)
        whole = len(batches) == len(kept) and len(found) < most and sum(len(one["b"]) for one in found) < WEIGHT
        position = max(dropped, span.end if whole else batches[-1].last if batches else 0)
        last = max(last, dropped)
        return Reading(batches, position, position < last, last, dropped)

    def _span(self, key: QueueKey, start: int, limit: int, pattern: Pattern, last: int, moment: Moment) -> Span:
        behind: Document = {"$gt": start, "$lte": last}
        if pattern.topic:
            return Span(self._port.where(key, d=layout.text(pattern.topic), k=behind), layout.CLAIMS, last)
        everything = self._port.where(key, k=behind)
        if pattern.text == EVERYTHING:
            return Span(everything, layout.OBSERVERS, last)
        named = self._port.find(
            everything,
            limit=MOST,
            sort={"k": 1},
            hint=layout.OBSERVERS,
            fields={"_id": 0, "k": 1, "d": 1},  # which the index has
            snapshot=moment,
        )
        end = int(named[-1]["k"]) if len(named) == MOST else last
        meant = [one["k"] for one in named if pattern.matches(layout.original(one["d"]))]
        return Span(self._port.where(key, k={"$in": meant[: limit + 1]}), layout.OBSERVERS, end)


def _counter(key: QueueKey) -> Document:
    return {"_id": key.counter, "s": key.shard}


def _portion(found: Sequence[Document], start: int, limit: int) -> list[Batch]:
    """The batches that make so many messages together, or so many bytes, but one at least."""
    batches: list[Batch] = []
    count = weight = 0
    for one in found:
        weight += len(one["b"])
        if batches and (count >= limit or weight > WEIGHT):
            break
        batches.append(log.batch(one))
        count += batches[-1].last - max(start, batches[-1].sequence - 1)
    return batches
