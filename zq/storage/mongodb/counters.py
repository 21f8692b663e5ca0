# SPDX-License-Identifier: Apache-2.0
"""Counters of queues: they give messages their sequence and available-at in the transaction that stores the messages.

A queue's document is its counter and holds its metadata, so a transaction that advances the counter reads both. A
process remembers the counters as its posts have left them. The next group of posts sends the new values, on condition
that the stored ones are as remembered. This costs mongod and the process a third less than an update that computes the
values and returns them. If another server, or a move, has written the counter since, nothing is stored. Then the update
computes the values, and the process does not remember the counter for a while.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cachetools import LRUCache

from zq.model import Grouping
from zq.model.moments import FALSE_FUTURE
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.client import Aborted, Session, StoreClient
from zq.storage.mongodb.floors import counters_of, floor_of
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# The metadata of a missing queue, and of a queue that a post has created.
NO_METADATA: Final = b"{}"
# Queues whose metadata one command reads.
LOOKUPS_AT_ONCE: Final = 256
# The change of an update: operators, or the stages of a pipeline.
Step = BsonDocument | list[BsonDocument]


class Arrivals(NamedTuple):
    """The messages that enter a queue: their ``number``, and ``fresh``, the moment of the post if one has no delay.

    ``messages`` and ``bytes`` (with ``OVERHEAD`` for each message) are added to the project's usage. A message that
    moves within its project adds none.
    """

    number: int
    fresh: int | None
    messages: int = 0
    bytes: int = 0


class SequenceRange(NamedTuple):
    """The sequences that messages get in a queue: the first one and their number.

    ``available`` is the available-at of messages without delay. The metadata, grouping and floor are the queue's.
    """

    sequence: int
    number: int
    available: int
    metadata: bytes
    grouping: Grouping
    floor: int


class Stale(Aborted):
    """A counter differs from the remembered one."""


# Counters that a process remembers.
MOST_REMEMBERED: Final = 10_000
# Bytes of the largest metadata that are sent with a remembered counter, to be compared.
LARGEST_METADATA: Final = 1024
# Seconds for which a counter is not remembered after another process has written it.
SHARED: Final = 1.0


class Remembered(NamedTuple):
    """A counter as this process has left it: the last sequence, and the last available-at without delay.

    The metadata, grouping and floor are the queue's.
    """

    sequence: int
    available: int
    metadata: bytes
    grouping: Grouping
    floor: int


class CounterMemory:
    """The counters of queues as the posts of one process have left them. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = LRUCache[str, Remembered](MOST_REMEMBERED)
        self._shared = LRUCache[str, float](MOST_REMEMBERED)

    def of(self, keys: Sequence[QueueKey]) -> Mapping[QueueKey, Remembered]:
        """Return the remembered counters of these queues."""
        with self._lock:
            return {key: self._counters[key.counter] for key in keys if key.counter in self._counters}

    def learn(self, ranges: Mapping[QueueKey, SequenceRange]) -> None:
        """Remember the counters as a committed transaction has left them, which took these ranges."""
        now = time.monotonic()
        with self._lock:
            for key, (sequence, number, available, metadata, grouping, floor) in ranges.items():
                if available and len(metadata) <= LARGEST_METADATA and self._shared.get(key.counter, 0.0) < now:
                    last = sequence + number - 1
                    self._counters[key.counter] = Remembered(last, available, metadata, grouping, floor)

    def forget(self, keys: Sequence[QueueKey]) -> None:
        """Forget the counters for a while: another process writes one of them."""
        until = time.monotonic() + SHARED
        with self._lock:
            for key in keys:
                self._counters.pop(key.counter, None)
                self._shared[key.counter] = until


def missing(client: StoreClient, session: Session, keys: Sequence[QueueKey]) -> set[QueueKey]:
    """Return the queues that do not exist."""
    if not keys:
        return set()
    found = client.find({**counters_of(client, keys), "b": {"$exists": True}}, fields={"_id": 1}, session=session)
    there = {counter["_id"] for counter in found}
    return {key for key in keys if key.counter not in there}


def advance_remembered(
    client: StoreClient,
    session: Session,
    arrivals: Mapping[QueueKey, Arrivals],
    remembered: Mapping[QueueKey, Remembered],
) -> Mapping[QueueKey, SequenceRange]:
    """Take sequences as ``advance`` does, where some counters are remembered.

    Raise ``Stale`` if a remembered counter differs from the stored one.
    """
    known = sorted(arrivals.keys() & remembered.keys(), key=lambda key: key.counter)
    if not known:
        return advance(client, session, arrivals)
    rest = {key: arrival for key, arrival in arrivals.items() if key not in remembered}
    ranges: dict[QueueKey, SequenceRange] = dict(advance(client, session, rest)) if rest else {}
    statements = []
    for key in known:
        statement, ranges[key] = _believing(key, arrivals[key], remembered[key])
        statements.append(statement)
    if client.update(statements, session) != len(statements):
        raise Stale
    return ranges


def _believing(key: QueueKey, arrival: Arrivals, known: Remembered) -> tuple[BsonDocument, SequenceRange]:
    """Return the statement that advances a counter if it is as remembered, and the range that it takes then."""
    available = known.available
    if arrival.fresh is not None:
        believed = available <= arrival.fresh + FALSE_FUTURE * 1000
        available = max(available, arrival.fresh) if believed else arrival.fresh
    where = {**_identity(key), "k1": known.sequence, "d1": known.available, "b": known.metadata}
    # The queue may have been purged, or deleted and created again, since it was cached.
    # A purge before the first post has left a floor of 0.
    where |= {"h": known.grouping or None, "m0": known.floor or {"$in": [None, 0]}}
    first, number = known.sequence + 1, arrival.number
    known_range = SequenceRange(first, number, available, known.metadata, known.grouping, known.floor)
    change: BsonDocument = {"$set": {"k1": known.sequence + arrival.number, "d1": available}}
    if arrival.messages or arrival.bytes:
        change["$inc"] = {"n1": arrival.messages, "w1": arrival.bytes}
    return {"q": where, "u": change, "hint": "_id_"}, known_range


def advance(
    client: StoreClient, session: Session, arrivals: Mapping[QueueKey, Arrivals]
) -> Mapping[QueueKey, SequenceRange]:
    """Take sequences in the queues, and create the queues that are missing.

    No other transaction can take sequences there until this one ends. The counters are written in the order of names,
    so that of two transactions with the same queues neither holds a counter that the other one waits for.
    """
    steps = {key: _step(key, arrival) for key, arrival in arrivals.items()}
    counters = increment(client, session, steps, {"k1": 1, "d1": 1, "b": 1, "h": 1, "m0": 1, "g": 1})
    return {key: _range(counter, arrivals[key].number) for key, counter in counters.items()}


def increment(
    client: StoreClient, session: Session, steps: Mapping[QueueKey, Step], fields: Mapping[str, int]
) -> Mapping[QueueKey, BsonDocument]:
    """Update counters, or create them, in the order of names. Return the ``fields`` of each as they are now."""
    keys = sorted(steps, key=lambda key: key.counter)
    if len(keys) == 1:
        (key,) = keys
        command = {"query": _identity(key), "update": steps[key], "upsert": True, "new": True, "fields": fields}
        found = [client.modify(command, session) or {}]
    else:
        client.update([{"q": _identity(key), "u": steps[key], "upsert": True} for key in keys], session)
        found = client.find(counters_of(client, keys), fields=fields, session=session)
    counters = {counter["_id"]: counter for counter in found}
    return {key: counters[key.counter] for key in keys}


def _range(counter: BsonDocument, number: int) -> SequenceRange:
    grouping = Grouping(counter.get("h", ""))
    first = counter["k1"] - number + 1
    return SequenceRange(first, number, counter.get("d1", 0), counter["b"], grouping, floor_of(counter))


def _identity(key: QueueKey) -> BsonDocument:
    return {"_id": key.counter, "s": key.shard}


def _step(key: QueueKey, arrival: Arrivals) -> list[BsonDocument]:
    made: BsonDocument = {
        "n": key.shard,
        "b": {"$ifNull": ["$b", NO_METADATA]},
        "k1": {"$add": [{"$ifNull": ["$k1", 0]}, arrival.number]},
    }
    if arrival.messages or arrival.bytes:
        made["n1"] = {"$add": [{"$ifNull": ["$n1", 0]}, arrival.messages]}
        made["w1"] = {"$add": [{"$ifNull": ["$w1", 0]}, arrival.bytes]}
    if arrival.fresh is not None:
        believed = {"$lte": ["$d1", arrival.fresh + FALSE_FUTURE * 1000]}
        made["d1"] = {"$cond": [believed, {"$max": ["$d1", arrival.fresh]}, arrival.fresh]}
    return [{"$set": made}, {"$unset": "e"}]


class Known(NamedTuple):
    """A queue's metadata, grouping and floor."""

    metadata: bytes
    grouping: Grouping
    floor: int


class MetadataLookup:
    """Lookups of queues' metadata for all threads of a process; concurrent ones share a command."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._group_commit = GroupCommit[QueueKey, Known | None](
            self._read, capacity=LOOKUPS_AT_ONCE, timeout=client.timeout
        )

    def get(self, key: QueueKey) -> Known | None:
        """Return the queue's metadata, grouping and floor, or None if the queue does not exist."""
        return self._group_commit.submit(key)

    def _read(self, keys: Sequence[QueueKey]) -> Sequence[Known | None]:
        named = counters_of(self._client, keys)
        fields = {"b": 1, "h": 1, "m0": 1, "g": 1}
        counters = self._client.find({**named, "b": {"$exists": True}}, fields=fields)
        found = {one["_id"]: Known(one["b"], Grouping(one.get("h", "")), floor_of(one)) for one in counters}
        return [found.get(key.counter) for key in keys]
