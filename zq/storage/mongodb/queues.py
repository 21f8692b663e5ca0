# SPDX-License-Identifier: Apache-2.0
"""Queues in MongoDB, and metrics: depths, store sizes, and expired messages that are not removed yet."""

from typing import Final

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError, OperationFailure

from zq.model import EndMessage, Grouping, Page, Queue, QueueRef, ReadyMessages, Seconds, Stats
from zq.model.stats import Depth, Measure
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.counters import MetadataLookup
from zq.storage.mongodb.expiry import PendingDeletes
from zq.storage.mongodb.floors import above, below, counters_of, find_pending, floor_of
from zq.storage.mongodb.layout import CLAIM_ORDER, BsonDocument, QueueKey
from zq.storage.mongodb.open_posts import OpenPosts
from zq.storage.mongodb.startup import UNAUTHORIZED
from zq.storage.mongodb.unions import aggregate_with
from zq.storage.mongodb.usage import UsageEstimates

EXISTING_FILTER = {"n": {"$exists": True}}
MISSING_FILTER = {"n": {"$exists": False}}
# The fields of a queue's document that statistics need.
STATISTICS_FIELDS: Final = {"n": 1, "k1": 1, "m0": 1, "g": 1}


class QueueController:
    """The MongoDB implementation of ``zq.storage.api.QueueController``."""

    def __init__(
        self,
        client: StoreClient,
        lookup: MetadataLookup,
        pending_deletes: PendingDeletes,
        usages: UsageEstimates,
        open_posts: OpenPosts,
    ) -> None:
        self._client = client
        self._open_posts = open_posts
        self._pending_deletes = pending_deletes
        self._lookup = lookup
        self._usages = usages

    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        key = layout.key(queue)
        made = {"n": key.shard, "b": metadata, **({"h": grouping.value} if grouping else {})}
        step = {"$set": made, "$unset": {"e": ""}}
        with self._client.verb():
            try:
                self._client.messages.update_one(
                    {"_id": key.counter, "s": key.shard, **MISSING_FILTER}, step, upsert=True
                )
            except DuplicateKeyError:
                return False
        return True

    def get(self, queue: QueueRef) -> Queue | None:
        with self._client.verb():
            known = self._lookup.get(layout.key(queue))
        return None if known is None else Queue(queue, known.metadata, known.grouping)

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        key = layout.key(queue)
        as_expected = {"_id": key.counter, "s": key.shard, "b": Binary(expected), **EXISTING_FILTER}
        with self._client.verb():
            result = self._client.messages.update_one(as_expected, {"$set": {"b": metadata}})
            is_updated = result.matched_count == 1
            if is_updated:
                self._client.counters.drop([key])
                self._open_posts.settle(key)
        return is_updated

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        prefix = layout.project_prefix(project)
        named = {"n": {"$gt": prefix + layout.encode_text(after), "$lt": layout.after(prefix)}}
        fields = {"_id": 0, "n": 1, "b": 1, "h": 1}
        with self._client.verb():
            found = self._client.find(named, limit=limit, sort={"n": 1}, hint=layout.NAMES, fields=fields)
        refs = [QueueRef(project, layout.decode_text(queue["n"][len(prefix) :])) for queue in found]
        queues = [Queue(ref, queue["b"], Grouping(queue.get("h", ""))) for ref, queue in zip(refs, found, strict=True)]
        return Page(queues, queues[-1].ref.name if queues else None)

    def count(self, project: str) -> int:
        prefix = layout.project_prefix(project)
        with self._client.verb():
            return self._client.count({"n": {"$gt": prefix, "$lt": layout.after(prefix)}}, layout.NAMES)

    def delete(self, queue: QueueRef) -> None:
        with self._client.verb():
            self._pending_deletes.delete(layout.key(queue))
        self._usages.forget(queue.project)

    def purge(self, queue: QueueRef) -> None:
        with self._client.verb():
            self._pending_deletes.purge(layout.key(queue))
        self._usages.forget(queue.project)

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        moment, key = layout.ms(now), layout.key(queue)
        named = counters_of(self._client, [key])
        with self._client.verb():
            counters = self._client.find(named, fields=STATISTICS_FIELDS)
            while True:
                before: BsonDocument = counters[0] if counters else {}
                living = above(self._client.where(key, e={"$gt": DatetimeMS(moment)}), floor_of(before))
                oldest = self._edge(living, 1)
                newest = self._edge(living, -1) if oldest else None
                held = {**living, "d": {"$gt": moment}, "c.e": {"$gt": moment}}
                claimed = self._client.count(held, layout.CLAIMS) if oldest else 0
                counting: list[BsonDocument] = [{"$match": living}, {"$count": "n"}]
                counted, counters = aggregate_with(self._client, named, counting, layout.OBSERVERS)
                counter = counters[0] if counters else {}
                if floor_of(counter) == floor_of(before):
                    break
        entered = int(counter.get("k1", 0)) if "n" in counter else None
        total = counted[0]["n"] if counted else 0
        if oldest is None:
            return Stats(entered=entered)
        return Stats(
            claimed=claimed,
            free=max(0, total - claimed),
            oldest=_edge(key, oldest),
            newest=_edge(key, newest or oldest),
            entered=entered,
        )

    def ready(self, queue: QueueRef, max_count: int, now: Seconds) -> ReadyMessages:
        moment, key = layout.ms(now), layout.key(queue)
        with self._client.verb():
            known = self._lookup.get(key)
            if known is None:
                return ReadyMessages(0, None)
            floor, grouping = known.floor, known.grouping
            count = self._ready(key, grouping, max_count, moment, floor) if max_count else 0
            # When the claimed head of a group expires, the next message is ready. Only the group's entry has this time.
            indexed = [key.messages, key.entries] if grouping is Grouping.ORDERED else [key.messages]
            later = [first for one in indexed if (first := self._later(key, one, moment, floor)) is not None]
        return ReadyMessages(count, min(later) / 1000 if later else None)

    def _later(self, key: QueueKey, indexed: str, now: int, floor: int) -> int | None:
        later = above({**self._client.where(key, d={"$gt": now}), "q": indexed}, floor)
        found = self._client.find(later, limit=1, sort={"d": 1, "k": 1}, hint=layout.CLAIMS, fields={"_id": 0, "d": 1})
        return int(found[0]["d"]) if found else None

    def _ready(self, key: QueueKey, grouping: Grouping, max_count: int, now: int, floor: int) -> int:
        """Count the ready messages that a claim could take, up to ``max_count``."""
        present = above(self._client.where(key, d={"$lte": now}, e={"$gt": DatetimeMS(now)}), floor)
        count = self._client.count(present, layout.CLAIMS, max_count)
        if not count or grouping is not Grouping.ORDERED:
            return count
        return groups.count_ready(self._client, key, count, now, floor)

    def _edge(self, living: BsonDocument, direction: int) -> BsonDocument | None:
        found = self._client.find(
            living, limit=1, sort={"k": direction}, hint=layout.OBSERVERS, fields={"a": 1, "k": 1}
        )
        return found[0] if found else None


def _edge(key: QueueKey, found: BsonDocument) -> EndMessage:
    return EndMessage(layout.message_id(key, found), found["a"] / 1000, int(found["k"]))


# Maximum number of expired messages that are counted.
MAX_EXPIRED: Final = 100_000
# To count claimed and delayed messages, a depth reads this number of messages for each message in the result ...
STEPS_PER_MESSAGE: Final = 4
# ... but at least this number.
MIN_STEPS: Final = 1000


class StoreStats:
    """The metrics of one MongoDB store."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def depths(self, now: int, queues: int, max_count: int) -> list[tuple[QueueRef, Depth]]:
        """Return the depths (message counts by state) of up to ``queues`` queues, in the order of project and name."""
        if not queues:
            return []
        with self._client.verb():
            fields = {"_id": 0, "n": 1, "m0": 1, "g": 1}
            named = self._client.find(EXISTING_FILTER, limit=queues, sort={"n": 1}, hint=layout.NAMES, fields=fields)
            expired = self._expired(now, min(MAX_EXPIRED, queues * max_count))
        depths = []
        for one in named:
            key = layout.key(layout.queue_of(one["n"]))
            with self._client.verb():
                depth = self._depth(key, now, max_count, expired.get(key.messages, 0), floor_of(one))
            depths.append((key.ref, depth))
        return depths

    def depth(self, key: QueueKey, now: int, max_count: int) -> Depth:
        """Return the message counts of one queue by state. Expired messages are not counted, so ``expired`` is 0."""
        with self._client.verb():
            return self._depth(key, now, max_count, 0)

    def measures(self, now: int) -> list[Measure]:
        due = {"e": {"$lte": DatetimeMS(now)}}
        waiting, lag = 0, 0.0
        with self._client.verb():
            oldest = self._client.find(due, limit=1, sort={"e": 1}, hint=layout.EXPIRY, fields={"e": 1})
            if oldest:
                waiting = sum(self._expired(now, MAX_EXPIRED).values())
                lag = (now - int(oldest[0]["e"])) / 1000
            sizes = self._sizes()
        mine = [Measure("expired_waiting", waiting), Measure("sweep_lag_seconds", lag)]
        counted = [*self._client.removals.measures(), *self._client.transactions.measures()]
        return [*counted, *mine, *sizes]

    def _expired(self, now: int, max_messages: int) -> dict[str, int]:
        due: BsonDocument = {"e": {"$lte": DatetimeMS(now)}, "q": {"$gte": "m", "$lt": "n"}}
        if removed := below("m", find_pending(self._client)):
            due["$nor"] = removed
        by_queue: BsonDocument = {"$group": {"_id": "$q", "count": {"$sum": 1}}}
        stages: list[BsonDocument] = [{"$match": due}, {"$limit": max_messages}, by_queue]
        return {one["_id"]: one["count"] for one in self._client.aggregate(stages, layout.EXPIRY)}

    def _depth(self, key: QueueKey, now: int, max_count: int, expired: int, floor: int = 0) -> Depth:
        named = counters_of(self._client, [key])
        while True:
            found, counters = aggregate_with(
                self._client, named, self._stages(key, now, max_count, floor), layout.CLAIMS
            )
            known, floor = floor, floor_of(counters[0]) if counters else 0
            if known == floor:
                break
        parts = {one["_id"]: one for one in found}
        front, rest = parts.get("ready", NO_COUNTS), parts.get("waiting", NO_COUNTS)
        first = front["first"] / 1000 if front["count"] else None
        return Depth(front["count"], rest["count"] - rest["claimed"], rest["claimed"], expired, first)

    def _stages(self, key: QueueKey, now: int, max_count: int, floor: int) -> list[BsonDocument]:
        living: BsonDocument = {"e": {"$gt": DatetimeMS(now)}}
        ready = above(self._client.where(key, d={"$lte": now}, **living), floor)
        waiting = above(self._client.where(key, d={"$gt": now}, **living), floor)
        claimed = {"$cond": [{"$gt": ["$c.e", now]}, 1, 0]}  # a missing ``c.e`` compares as less than every number
        walked: list[BsonDocument] = [
            {"$match": waiting},
            {"$sort": CLAIM_ORDER},
            {"$limit": max(MIN_STEPS, STEPS_PER_MESSAGE * max_count)},
            {"$group": {"_id": "waiting", "count": {"$sum": 1}, "claimed": {"$sum": claimed}}},
        ]
        return [
            {"$match": ready},
            {"$sort": CLAIM_ORDER},
            {"$limit": max_count},
            {"$group": {"_id": "ready", "count": {"$sum": 1}, "first": {"$min": "$d"}}},
            {"$unionWith": {"coll": layout.MESSAGES, "pipeline": walked}},
        ]

    def _sizes(self) -> list[Measure]:
        """Return the size metrics of the collection, or an empty list if the user has no permission to read them."""
        try:
            reply = self._client.database.command({"collStats": layout.MESSAGES})
        except OperationFailure as error:
            if error.code == UNAUTHORIZED:
                return []
            raise
        parts = {"data": reply["storageSize"], "indexes": reply["totalIndexSize"]}
        sizes = [Measure("store_bytes", size, (("part", part),)) for part, size in parts.items()]
        return [*sizes, Measure("store_messages", reply["count"])]


NO_COUNTS: Final[BsonDocument] = {"count": 0, "claimed": 0}
