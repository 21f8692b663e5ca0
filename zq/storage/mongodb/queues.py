# SPDX-License-Identifier: Apache-2.0
"""Queues of the MongoDB store, and the figures for monitoring: depths, sizes, what has expired and waits."""

from typing import Final

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError, OperationFailure

from zq.model import Edge, Grouping, Page, Queue, QueueRef, Ready, Seconds, Stats
from zq.model.stats import Depth, Measure
from zq.storage.mongodb import layout, lines
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.counters import MetadataLookup
from zq.storage.mongodb.expiry import PendingDeletes
from zq.storage.mongodb.layout import CLAIM_ORDER, BsonDocument, QueueKey
from zq.storage.mongodb.startup import UNAUTHORIZED
from zq.storage.mongodb.usage import Usages

THERE = {"n": {"$exists": True}}
ABSENT = {"n": {"$exists": False}}


class QueueController:
    """``zq.storage.api.QueueController`` on MongoDB."""

    def __init__(
        self, client: StoreClient, lookup: MetadataLookup, pending_deletes: PendingDeletes, usages: Usages
    ) -> None:
        self._client = client
        self._pending_deletes = pending_deletes
        self._lookup = lookup
        self._usages = usages

    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        key = layout.key(queue)
        made = {"n": key.shard, "b": metadata, **({"h": grouping.value} if grouping else {})}
        step = {"$set": made, "$unset": {"e": ""}}
        with self._client.verb():
            try:
                self._client.messages.update_one({"_id": key.counter, "s": key.shard, **ABSENT}, step, upsert=True)
            except DuplicateKeyError:
                return False
        return True

    def get(self, queue: QueueRef) -> Queue | None:
        with self._client.verb():
            known = self._lookup.get(layout.key(queue))
        return None if known is None else Queue(queue, known.metadata, known.grouping)

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        key = layout.key(queue)
        as_expected = {"_id": key.counter, "s": key.shard, "b": Binary(expected), **THERE}
        with self._client.verb():
            result = self._client.messages.update_one(as_expected, {"$set": {"b": metadata}})
        return result.matched_count == 1

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        prefix = layout.project_prefix(project)
        named = {"n": {"$gt": prefix + layout.text(after), "$lt": layout.after(prefix)}}
        fields = {"_id": 0, "n": 1, "b": 1, "h": 1}
        with self._client.verb():
            found = self._client.find(named, limit=limit, sort={"n": 1}, hint=layout.NAMES, fields=fields)
        refs = [QueueRef(project, layout.original(queue["n"][len(prefix) :])) for queue in found]
        queues = [Queue(ref, queue["b"], Grouping(queue.get("h", ""))) for ref, queue in zip(refs, found, strict=True)]
        return Page(queues, queues[-1].ref.name if queues else None)

    def count(self, project: str) -> int:
        prefix = layout.project_prefix(project)
        with self._client.verb():
            return self._client.count({"n": {"$gt": prefix, "$lt": layout.after(prefix)}}, layout.NAMES)

    def delete(self, queue: QueueRef) -> None:
        with self._client.verb():
            pending = self._pending_deletes.mark(layout.key(queue), forget=True)
        self._pending_deletes.carry_out(pending)
        self._usages.forget(queue.project)

    def purge(self, queue: QueueRef) -> None:
        with self._client.verb():
            pending = self._pending_deletes.mark(layout.key(queue), forget=False)
        self._pending_deletes.carry_out(pending)
        self._usages.forget(queue.project)

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        moment, key = layout.ms(now), layout.key(queue)
        living = self._client.where(key, e={"$gt": DatetimeMS(moment)})
        held = {"d": {"$gt": moment}, "c.e": {"$gt": moment}}
        with self._client.verb():
            counters = self._client.find({"_id": key.counter, "s": key.shard, **THERE}, limit=1, fields={"k1": 1})
            entered = int(counters[0].get("k1", 0)) if counters else None
            oldest, newest = self._edge(living, 1), self._edge(living, -1)
            if oldest is None:
                return Stats(entered=entered)
            claimed = self._client.count({**living, **held}, layout.CLAIMS)
            total = self._client.count(living, layout.CLAIMS)
        return Stats(
            claimed=claimed,
            free=max(0, total - claimed),
            oldest=_edge(key, oldest),
            newest=_edge(key, newest or oldest),
            entered=entered,
        )

    def ready(self, queue: QueueRef, most: int, now: Seconds) -> Ready:
        moment, key = layout.ms(now), layout.key(queue)
        with self._client.verb():
            count = self._ready(key, most, moment) if most else 0
            known = self._lookup.get(key)
            is_ordered = known is not None and known.grouping is Grouping.ORDERED
            # Once the claimed head of a line has expired, the message behind it is ready: only the entry tells when.
            indexed = [key.messages, key.entries] if is_ordered else [key.messages]
            later = [first for one in indexed if (first := self._later(key, one, moment)) is not None]
        return Ready(count, min(later) / 1000 if later else None)

    def _later(self, key: QueueKey, indexed: str, now: int) -> int | None:
        """The first moment after now in the index of claims, of the queue's messages or of its lines' entries."""
        later = {**self._client.where(key, d={"$gt": now}), "q": indexed}
        found = self._client.find(later, limit=1, sort={"d": 1, "k": 1}, hint=layout.CLAIMS, fields={"_id": 0, "d": 1})
        return int(found[0]["d"]) if found else None

    def _ready(self, key: QueueKey, most: int, now: int) -> int:
        """How many messages are ready, counted up to ``most``; in lines, what claims would find."""
        present = self._client.where(key, d={"$lte": now}, e={"$gt": DatetimeMS(now)})
        count = self._client.count(present, layout.CLAIMS, most)
        known = self._lookup.get(key) if count else None
        if known is None or known.grouping is not Grouping.ORDERED:
            return count
        return lines.ready(self._client, key, count, now)

    def _edge(self, living: BsonDocument, direction: int) -> BsonDocument | None:
        """The oldest or the newest message."""
        found = self._client.find(
            living, limit=1, sort={"k": direction}, hint=layout.OBSERVERS, fields={"a": 1, "k": 1}
        )
        return found[0] if found else None


def _edge(key: QueueKey, found: BsonDocument) -> Edge:
    return Edge(layout.message_id(key, found), found["a"] / 1000, int(found["k"]))


# Expired messages that are counted.
MOST: Final = 100_000
# Index entries that are read to tell claimed messages from delayed ones: so many for each that is counted ...
STEPS_PER_MESSAGE: Final = 4
# ... and so many at least.
FEWEST_STEPS: Final = 1000


class Figures:
    """The figures of one store."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def depths(self, now: int, queues: int, most: int) -> list[tuple[QueueRef, Depth]]:
        """The first queues, in the order of projects' and queues' names, and what is in each."""
        if not queues:
            return []
        with self._client.verb():
            named = self._client.find(
                {"n": {"$exists": True}}, limit=queues, sort={"n": 1}, hint=layout.NAMES, fields={"_id": 0, "n": 1}
            )
            expired = self._expired(now, min(MOST, queues * most))
        depths = []
        for one in named:
            key = layout.key(layout.queue_of(one["n"]))
            with self._client.verb():
                depths.append((key.ref, self._depth(key, now, most, expired.get(key.messages, 0))))
        return depths

    def depth(self, key: QueueKey, now: int, most: int) -> Depth:
        """What is in one queue; its expired messages are not counted."""
        with self._client.verb():
            return self._depth(key, now, most, 0)

    def measures(self, now: int) -> list[Measure]:
        due = {"e": {"$lte": DatetimeMS(now)}}
        waiting, lag = 0, 0.0
        with self._client.verb():
            oldest = self._client.find(due, limit=1, sort={"e": 1}, hint=layout.EXPIRY, fields={"e": 1})
            if oldest:
                waiting = sum(self._expired(now, MOST).values())
                lag = (now - int(oldest[0]["e"])) / 1000
            sizes = self._sizes()
        mine = [Measure("expired_waiting", waiting), Measure("sweep_lag_seconds", lag)]
        return [*self._client.removals.measures(), *mine, *sizes]

    def _expired(self, now: int, most: int) -> dict[str, int]:
        """How many messages of which queue, as ``q`` names it, have expired and are there still."""
        due = {"$match": {"e": {"$lte": DatetimeMS(now)}, "q": {"$gte": "m", "$lt": "n"}}}
        by_queue: BsonDocument = {"$group": {"_id": "$q", "count": {"$sum": 1}}}
        return {
            one["_id"]: one["count"] for one in self._client.aggregate([due, {"$limit": most}, by_queue], layout.EXPIRY)
        }

    def _depth(self, key: QueueKey, now: int, most: int, expired: int) -> Depth:
        living: BsonDocument = {"e": {"$gt": DatetimeMS(now)}}
        ready = self._client.where(key, d={"$lte": now}, **living)
        waiting = self._client.where(key, d={"$gt": now}, **living)
        claimed = {"$cond": [{"$gt": ["$c.e", now]}, 1, 0]}  # a missing end is less than any
        walked: list[BsonDocument] = [
            {"$match": waiting},
            {"$sort": CLAIM_ORDER},
            {"$limit": max(FEWEST_STEPS, STEPS_PER_MESSAGE * most)},
            {"$group": {"_id": "waiting", "count": {"$sum": 1}, "claimed": {"$sum": claimed}}},
        ]
        stages: list[BsonDocument] = [
            {"$match": ready},
            {"$sort": CLAIM_ORDER},
            {"$limit": most},
            {"$group": {"_id": "ready", "count": {"$sum": 1}, "first": {"$min": "$d"}}},
            {"$unionWith": {"coll": layout.MESSAGES, "pipeline": walked}},
        ]
        found = {one["_id"]: one for one in self._client.aggregate(stages, layout.CLAIMS)}
        head_hint, rest = found.get("ready", NONE), found.get("waiting", NONE)
        first = head_hint["first"] / 1000 if head_hint["count"] else None
        return Depth(head_hint["count"], rest["count"] - rest["claimed"], rest["claimed"], expired, first)

    def _sizes(self) -> list[Measure]:
        """Nothing where the user must not ask. Whatever else there is counts as a message: it is an estimate."""
        try:
            told = self._client.database.command({"collStats": layout.MESSAGES})
        except OperationFailure as error:
            if error.code == UNAUTHORIZED:
                return []
            raise
        parts = {"data": told["storageSize"], "indexes": told["totalIndexSize"]}
        sizes = [Measure("store_bytes", size, (("part", part),)) for part, size in parts.items()]
        return [*sizes, Measure("store_messages", told["count"])]


NONE: Final[BsonDocument] = {"count": 0, "claimed": 0}
