# SPDX-License-Identifier: Apache-2.0
"""What whoever watches the store is told: the depths of its queues, its size, and how far the sweep is behind."""

from typing import Final

from bson.datetime_ms import DatetimeMS
from pymongo.errors import OperationFailure

from zq.measures import Depth, Measure
from zq.model import QueueRef
from zq.storage.mongodb import layout
from zq.storage.mongodb.address import UNAUTHORIZED
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port

MOST: Final = 100_000
"""Expired messages that are counted."""
STEPS_PER_MESSAGE: Final = 4
FEWEST_STEPS: Final = 1000
"""What is neither ready nor expired is walked over, so many entries in all, to tell claimed from delayed ones."""
BY_PLACE: Final = {"d": 1, "k": 1}


class Figures:
    """The figures of one store."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def depths(self, now: int, queues: int, most: int) -> list[tuple[QueueRef, Depth]]:
        """The first queues, in the order of projects' and queues' names, and what is in each."""
        if not queues:
            return []
        with self._port.verb():
            named = self._port.find(
                {"n": {"$exists": True}}, limit=queues, sort={"n": 1}, hint=layout.NAMES, fields={"_id": 0, "n": 1}
            )
            expired = self._expired(now, min(MOST, queues * most))
        depths = []
        for one in named:
            key = layout.key(layout.queue_of(one["n"]))
            with self._port.verb():
                depths.append((key.ref, self._depth(key, now, most, expired.get(key.messages, 0))))
        return depths

    def measures(self, now: int) -> list[Measure]:
        due = {"e": {"$lte": DatetimeMS(now)}}
        waiting, lag = 0, 0.0
        with self._port.verb():
            oldest = self._port.find(due, limit=1, sort={"e": 1}, hint=layout.EXPIRY, fields={"e": 1})
            if oldest:
                waiting = sum(self._expired(now, MOST).values())
                lag = (now - int(oldest[0]["e"])) / 1000
            sizes = self._sizes()
        mine = [Measure("expired_waiting", waiting), Measure("sweep_lag_seconds", lag)]
        return [*self._port.removals.measures(), *mine, *sizes]

    def _expired(self, now: int, most: int) -> dict[str, int]:
        """How many messages of which queue, as ``q`` names it, have expired and are there still."""
        due = {"$match": {"e": {"$lte": DatetimeMS(now)}, "q": {"$gte": "m", "$lt": "n"}}}
        by_queue: Document = {"$group": {"_id": "$q", "count": {"$sum": 1}}}
        return {
            one["_id"]: one["count"] for one in self._port.aggregate([due, {"$limit": most}, by_queue], layout.EXPIRY)
        }

    def _depth(self, key: QueueKey, now: int, most: int, expired: int) -> Depth:
        living: Document = {"e": {"$gt": DatetimeMS(now)}}
        ready = self._port.where(key, d={"$lte": now}, **living)
        waiting = self._port.where(key, d={"$gt": now}, **living)
        claimed = {"$cond": [{"$gt": ["$c.e", now]}, 1, 0]}  # a missing end is less than any
        walked: list[Document] = [
            {"$match": waiting},
            {"$sort": BY_PLACE},
            {"$limit": max(FEWEST_STEPS, STEPS_PER_MESSAGE * most)},
            {"$group": {"_id": "waiting", "count": {"$sum": 1}, "claimed": {"$sum": claimed}}},
        ]
        stages: list[Document] = [
            {"$match": ready},
            {"$sort": BY_PLACE},
            {"$limit": most},
            {"$group": {"_id": "ready", "count": {"$sum": 1}, "first": {"$min": "$d"}}},
            {"$unionWith": {"coll": layout.MESSAGES, "pipeline": walked}},
        ]
        found = {one["_id"]: one for one in self._port.aggregate(stages, layout.CLAIMS)}
        front, rest = found.get("ready", NONE), found.get("waiting", NONE)
        first = front["first"] / 1000 if front["count"] else None
        return Depth(front["count"], rest["count"] - rest["claimed"], rest["claimed"], expired, first)

    def _sizes(self) -> list[Measure]:
        """Nothing where the user must not ask. Whatever else there is counts as a message: it is an estimate."""
        try:
            told = self._port.database.command({"collStats": layout.MESSAGES})
        except OperationFailure as error:
            if error.code == UNAUTHORIZED:
                return []
            raise
        parts = {"data": told["storageSize"], "indexes": told["totalIndexSize"]}
        sizes = [Measure("store_bytes", size, (("part", part),)) for part, size in parts.items()]
        return [*sizes, Measure("store_messages", told["count"])]


NONE: Final[Document] = {"count": 0, "claimed": 0}
