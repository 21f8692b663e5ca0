# SPDX-License-Identifier: Apache-2.0
"""Counters of queues, which assign the sequence and the available-at time of each message.

The transaction that stores messages also advances the counter. The counter is in the queue's document, together with
the metadata, so this transaction reads the metadata as well.

Each process caches the counters of the queues to which it posts. The next post computes the new values from the cache,
and its update is conditional on the cached values. A conditional update costs mongod and the process a third less than
an update that computes the values and returns them.

If another server has changed the counter, the condition fails and the transaction stores nothing. The modules
``counter_cache`` and ``numbering`` describe what the process does then.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

from zq.errors import QueueNotFound
from zq.model import Grouping
from zq.storage.api import FALSE_FUTURE
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.client import Session, StoreClient, TransactionAborted
from zq.storage.mongodb.counter_cache import CachedCounter, SequenceRange
from zq.storage.mongodb.floors import counters_of, floor_of
from zq.storage.mongodb.layout import BsonDocument, QueueKey

# The metadata of a queue that does not exist or that a post has created.
NO_METADATA: Final = b"{}"
# Maximum number of queues whose metadata one command reads.
MAX_LOOKUPS: Final = 256
# The ``u`` of an update statement: update operators, or pipeline stages.
Step = BsonDocument | list[BsonDocument]


class Arrivals(NamedTuple):
    """The messages that one transaction adds to a queue.

    - ``number``: the number of messages.
    - ``fresh``: the time of the post in milliseconds; None if all messages are delayed.
    - ``messages`` and ``bytes``: the increase of the project's usage. Bytes include ``OVERHEAD`` for each message. A
      move within a project does not increase ``messages``.
    - ``may_create``: whether a missing queue is created.
    """

    number: int
    fresh: int | None
    messages: int = 0
    bytes: int = 0
    may_create: bool = True


class StaleCounter(TransactionAborted):
    """Raised if a stored counter differs from its cached value."""


def find_missing(client: StoreClient, session: Session, keys: Sequence[QueueKey]) -> set[QueueKey]:
    """Return the queues in ``keys`` that do not exist."""
    if not keys:
        return set()
    found = client.find({**counters_of(client, keys), "b": {"$exists": True}}, fields={"_id": 1}, session=session)
    there = {counter["_id"] for counter in found}
    return {key for key in keys if key.counter not in there}


def advance_cached(
    client: StoreClient,
    session: Session,
    arrivals: Mapping[QueueKey, Arrivals],
    remembered: Mapping[QueueKey, CachedCounter],
) -> Mapping[QueueKey, SequenceRange]:
    """Reserve sequences as ``advance`` does, with conditional updates for the cached counters in ``remembered``.

    Raises ``StaleCounter`` if a stored counter differs from its cached value.
    """
    known = sorted(arrivals.keys() & remembered.keys(), key=lambda key: key.counter)
    if not known:
        return advance(client, session, arrivals)
    rest = {key: arrival for key, arrival in arrivals.items() if key not in remembered}
    ranges: dict[QueueKey, SequenceRange] = dict(advance(client, session, rest)) if rest else {}
    statements = []
    for key in known:
        statement, ranges[key] = _conditional_update(key, arrivals[key], remembered[key])
        statements.append(statement)
    if client.update(statements, session) != len(statements):
        raise StaleCounter
    for key in known:
        client.counters.record(key.counter, ranges[key].sequence - 1, ranges[key].last)
    return ranges


def _conditional_update(key: QueueKey, arrival: Arrivals, known: CachedCounter) -> tuple[BsonDocument, SequenceRange]:
    """Return an update statement that advances the counter, and the range of sequences that it reserves.

    The statement matches no document if the stored counter differs from the cached value ``known``.
    """
    available = known.available
    if arrival.fresh is not None:
        believed = available <= arrival.fresh + FALSE_FUTURE * 1000
        available = max(available, arrival.fresh) if believed else arrival.fresh
    where = {**_identity(key), "k1": known.sequence, "d1": known.available, "b": known.metadata}
    # The queue may have been purged, or deleted and created again, since its counter was cached.
    # A purge before the first post sets a floor of 0.
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
    """Reserve sequences for the ``arrivals`` (new messages) of each queue, and create queues that do not exist.

    Raises ``QueueNotFound`` if a missing queue must not be created; the transaction must then be aborted.

    Until the transaction ends, no other transaction can reserve sequences in these queues. The counters are written in
    the order of their names, so two transactions on the same queues cannot deadlock.
    """
    steps = {key: _step(key, arrival) for key, arrival in arrivals.items()}
    existing = {key for key, arrival in arrivals.items() if not arrival.may_create}
    counters = increment(client, session, steps, {"k1": 1, "d1": 1, "b": 1, "h": 1, "m0": 1, "g": 1}, existing)
    if len(counters) < len(steps):
        raise QueueNotFound
    ranges = {key: _range(counter, arrivals[key].number) for key, counter in counters.items()}
    for key, one in ranges.items():
        client.counters.record(key.counter, one.sequence - 1, one.last)
    return ranges


def increment(
    client: StoreClient,
    session: Session,
    steps: Mapping[QueueKey, Step],
    fields: Mapping[str, int],
    existing: Set[QueueKey] = frozenset(),
) -> Mapping[QueueKey, BsonDocument]:
    """Update or create counters in the order of their names. ``steps`` has an update for each queue.

    Return the new values of the ``fields`` (a projection) for each queue. The counters of missing queues in
    ``existing`` are not created, and the result does not have them.
    """
    keys = sorted(steps, key=lambda key: key.counter)
    where = {key: {**_identity(key), **({"b": {"$exists": True}} if key in existing else {})} for key in keys}
    if len(keys) == 1:
        (key,) = keys
        command = {"query": where[key], "update": steps[key], "upsert": key not in existing, "new": True}
        updated = client.modify({**command, "fields": fields}, session)
        found = [] if updated is None else [updated]
    else:
        client.update([{"q": where[key], "u": steps[key], "upsert": key not in existing} for key in keys], session)
        named = {**counters_of(client, keys), "b": {"$exists": True}} if existing else counters_of(client, keys)
        found = client.find(named, fields=fields, session=session)
    counters = {counter["_id"]: counter for counter in found}
    return {key: counters[key.counter] for key in keys if key.counter in counters}


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
        made["d1"] = available_at(arrival.fresh)
    return [{"$set": made}, {"$unset": "e"}]


def available_at(now: int) -> BsonDocument:
    """Return the expression for the available-at time of messages that are posted at ``now`` without a delay."""
    believed = {"$lte": ["$d1", now + FALSE_FUTURE * 1000]}
    return {"$cond": [believed, {"$max": ["$d1", now]}, now]}


class QueueDetails(NamedTuple):
    metadata: bytes
    grouping: Grouping
    floor: int


class MetadataLookup:
    """A reader of queue metadata for all threads of a process. It combines concurrent lookups into one command."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._group_commit = GroupCommit[QueueKey, QueueDetails | None](
            self._read, capacity=MAX_LOOKUPS, timeout=client.timeout
        )

    def get(self, key: QueueKey) -> QueueDetails | None:
        """Return a queue's metadata, grouping and last removed sequence, or None if the queue does not exist."""
        return self._group_commit.submit(key)

    def _read(self, keys: Sequence[QueueKey]) -> Sequence[QueueDetails | None]:
        named = counters_of(self._client, keys)
        fields = {"b": 1, "h": 1, "m0": 1, "g": 1}
        counters = self._client.find({**named, "b": {"$exists": True}}, fields=fields)
        found = {one["_id"]: QueueDetails(one["b"], Grouping(one.get("h", "")), floor_of(one)) for one in counters}
        return [found.get(key.counter) for key in keys]
