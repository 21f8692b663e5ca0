# SPDX-License-Identifier: Apache-2.0
"""Counters of queues: they give messages their sequence and moment in the transaction in which these enter the queue.

A queue's document is its counter and holds its metadata too, so whoever advances it learns of both. A process remembers
how its posts have left a counter. The next group of posts only says what it is to become if it still stands so, which
costs mongod and the process a third less than to have it computed and to read it. Where another server, or a move, came
in between, nothing is stored; then it is computed and read, and for a while not remembered.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from cachetools import LRUCache

from zq.errors import QueueNotFound
from zq.model import Grouping
from zq.model.moments import FALSE_FUTURE
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.client import Aborted, Session, StoreClient
from zq.storage.mongodb.floors import counters_of, floor_of
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# Of a missing queue, and of one that a post has made.
NO_METADATA: Final = b"{}"
# Queues whose metadata one command reads.
LOOKUPS_AT_ONCE: Final = 256
# An update.
Step = BsonDocument | list[BsonDocument]


class Arrivals(NamedTuple):
    """How many messages (``number``) enter a queue; ``fresh`` = at which moment, if one of them has no delay.

    What the project has stored grows by so many ``messages`` and, with ``OVERHEAD`` for each, so many ``bytes``: what
    moves inside it was there before.
    """

    number: int
    fresh: int | None
    messages: int = 0
    bytes: int = 0


class SequenceRange(NamedTuple):
    """Where messages enter a queue: the first one's sequence, and the moment from which those without delay are
    available; the queue's metadata, grouping and floor."""

    sequence: int
    available: int
    metadata: bytes
    grouping: Grouping
    floor: int


class Stale(Aborted):
    """A counter differs from the remembered one."""


# Counters that are remembered, and the largest metadata that are sent along to be compared.
MOST_REMEMBERED: Final = 10_000
LARGEST_METADATA: Final = 1024
# Seconds for which a counter that others write as well is not remembered.
SHARED: Final = 1.0


class Remembered(NamedTuple):
    """A counter as this process has left it: the last sequence given, the last available-at without delay, the queue's
    metadata, grouping and floor."""

    sequence: int
    available: int
    metadata: bytes
    grouping: Grouping
    floor: int


class CounterMemory:
    """How the posts of one process have left the counters of queues. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters = LRUCache[str, Remembered](MOST_REMEMBERED)
        self._shared = LRUCache[str, float](MOST_REMEMBERED)

    def of(self, keys: Sequence[QueueKey]) -> Mapping[QueueKey, Remembered]:
        """Those of the queues that are remembered."""
        with self._lock:
            return {key: self._counters[key.counter] for key in keys if key.counter in self._counters}

    def learn(self, ranges: Mapping[QueueKey, "SequenceRange"], numbers: Mapping[QueueKey, int]) -> None:
        """A transaction that took these ranges, of so many sequences, was committed."""
        now = time.monotonic()
        with self._lock:
            for key, (sequence, available, metadata, grouping, floor) in ranges.items():
                if available and len(metadata) <= LARGEST_METADATA and self._shared.get(key.counter, 0.0) < now:
                    last = sequence + numbers[key] - 1
                    self._counters[key.counter] = Remembered(last, available, metadata, grouping, floor)

    def forget(self, keys: Sequence[QueueKey]) -> None:
        """Others write the counter of one of these queues."""
        until = time.monotonic() + SHARED
        with self._lock:
            for key in keys:
                self._counters.pop(key.counter, None)
                self._shared[key.counter] = until


class Arriving(Protocol):
    """What enters a queue, which it may ``create``."""

    @property
    def key(self) -> QueueKey: ...
    @property
    def create(self) -> bool: ...


Request = TypeVar("Request", bound=Arriving)
Answer = TypeVar("Answer")


def unless_missing(
    client: StoreClient,
    session: Session,
    remembered: Mapping[QueueKey, Remembered],
    effect: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
    requests: Sequence[Request],
) -> Sequence[Answer | Exception]:
    """Do ``effect`` for the requests whose queues exist or may be created, if there are any; the answer to each. That
    those stand that are remembered is found out later."""
    asked = list({one.key for one in requests if not one.create and one.key not in remembered})
    if not asked:
        return effect(requests)
    found = client.find({**counters_of(client, asked), "b": {"$exists": True}}, fields={"_id": 1}, session=session)
    absent = {key.counter for key in asked} - {counter["_id"] for counter in found}
    refused = [not one.create and one.key.counter in absent for one in requests]
    rest = [one for one, is_refused in zip(requests, refused, strict=True) if not is_refused]
    answers = iter(effect(rest) if rest else ())
    return [QueueNotFound() if is_refused else next(answers) for is_refused in refused]


def advance_remembered(
    client: StoreClient,
    session: Session,
    arrivals: Mapping[QueueKey, Arrivals],
    remembered: Mapping[QueueKey, Remembered],
) -> Mapping[QueueKey, SequenceRange]:
    """As ``advance``, where a part of the counters is remembered. Raises ``Stale``."""
    if not remembered:
        return advance(client, session, arrivals)
    rest = {key: arrival for key, arrival in arrivals.items() if key not in remembered}
    ranges: dict[QueueKey, SequenceRange] = dict(advance(client, session, rest)) if rest else {}
    statements = []
    for key in sorted(remembered, key=lambda key: key.counter):
        statement, ranges[key] = _believing(key, arrivals[key], remembered[key])
        statements.append(statement)
    if client.update(statements, session) != len(statements):
        raise Stale
    return ranges


def _believing(key: QueueKey, arrival: Arrivals, known: Remembered) -> tuple[BsonDocument, SequenceRange]:
    """The statement that advances a counter if it stands as remembered, and the range that it then gives."""
    available = known.available
    if arrival.fresh is not None:
        believed = available <= arrival.fresh + FALSE_FUTURE * 1000
        available = max(available, arrival.fresh) if believed else arrival.fresh
    where = {**_identity(key), "k1": known.sequence, "d1": known.available, "b": known.metadata}
    # Since it was remembered, the queue may have been purged, or deleted and made anew.
    # A purge before the first post has left a floor of 0.
    where |= {"h": known.grouping or None, "m0": known.floor or {"$in": [None, 0]}}
    known_range = SequenceRange(known.sequence + 1, available, known.metadata, known.grouping, known.floor)
    change: BsonDocument = {"$set": {"k1": known.sequence + arrival.number, "d1": available}}
    if arrival.messages or arrival.bytes:
        change["$inc"] = {"n1": arrival.messages, "w1": arrival.bytes}
    return {"q": where, "u": change, "hint": "_id_"}, known_range


def advance(
    client: StoreClient, session: Session, arrivals: Mapping[QueueKey, Arrivals]
) -> Mapping[QueueKey, SequenceRange]:
    """Make room in the queues, which are created if they are missing; no other transaction can until this one ends.

    Always in the order of names, so that two that need the same queues do not each hold what the other waits for.
    """
    steps = {key: _step(key, arrival) for key, arrival in arrivals.items()}
    counters = increment(client, session, steps, {"k1": 1, "d1": 1, "b": 1, "h": 1, "m0": 1, "g": 1})
    return {key: _range(counter, arrivals[key].number) for key, counter in counters.items()}


def increment(
    client: StoreClient, session: Session, steps: Mapping[QueueKey, Step], fields: Mapping[str, int]
) -> Mapping[QueueKey, BsonDocument]:
    """Change counters, or make them, always in the order of names; the fields that are asked for, as they are now."""
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
    return SequenceRange(first, counter.get("d1", 0), counter["b"], grouping, floor_of(counter))


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
    """Reads what the documents of queues say, for all threads of a process: concurrent lookups are coalesced."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._group_commit = GroupCommit[QueueKey, Known | None](
            self._read, capacity=LOOKUPS_AT_ONCE, timeout=client.timeout
        )

    def get(self, key: QueueKey) -> Known | None:
        """What is known of the queue; None if there is no such queue."""
        return self._group_commit.submit(key)

    def _read(self, keys: Sequence[QueueKey]) -> Sequence[Known | None]:
        named = counters_of(self._client, keys)
        fields = {"b": 1, "h": 1, "m0": 1, "g": 1}
        counters = self._client.find({**named, "b": {"$exists": True}}, fields=fields)
        found = {one["_id"]: Known(one["b"], Grouping(one.get("h", "")), floor_of(one)) for one in counters}
        return [found.get(key.counter) for key in keys]
