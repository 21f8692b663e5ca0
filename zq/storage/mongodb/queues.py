# SPDX-License-Identifier: Apache-2.0
"""Queues of the MongoDB store."""

from collections.abc import Sequence

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError

from zq.model import Landmark, Page, Queue, QueueRef, Seconds, Stats
from zq.storage.mongodb import layout
from zq.storage.mongodb.combine import Combiner
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.removal import Removal

THERE = {"n": {"$exists": True}}
ABSENT = {"n": {"$exists": False}}
MANY = 256


class QueueController:
    """``zq.storage.api.QueueController`` on MongoDB."""

    def __init__(self, port: Port, removal: Removal) -> None:
        self._port = port
        self._removal = removal
        self._lookups = Combiner[QueueKey, bytes | None](self._look_up, lambda _: 1, MANY, port.timeout)

    def create(self, queue: QueueRef, metadata: bytes) -> bool:
        key = layout.key(queue)
        step = {"$set": {"n": key.shard, "b": metadata}, "$unset": {"e": ""}}
        with self._port.verb():
            try:
                self._port.messages.update_one({"_id": key.counter, "s": key.shard, **ABSENT}, step, upsert=True)
            except DuplicateKeyError:
                return False
        return True

    def get(self, queue: QueueRef) -> Queue | None:
        with self._port.verb():
            metadata = self._lookups.ask(layout.key(queue))
        return None if metadata is None else Queue(queue, metadata)

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        key = layout.key(queue)
        as_expected = {"_id": key.counter, "s": key.shard, "b": Binary(expected), **THERE}
        with self._port.verb():
            result = self._port.messages.update_one(as_expected, {"$set": {"b": metadata}})
        return result.matched_count == 1

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        prefix = layout.project_prefix(project)
        named = {"n": {"$gt": prefix + layout.text(after), "$lt": layout.after(prefix)}}
        fields = {"_id": 0, "n": 1, "b": 1}
        with self._port.verb():
            found = self._port.find(named, limit=limit, sort={"n": 1}, hint=layout.NAMES, fields=fields)
        names = (layout.original(queue["n"][len(prefix) :]) for queue in found)
        queues = [Queue(QueueRef(project, name), queue["b"]) for name, queue in zip(names, found, strict=True)]
        return Page(queues, queues[-1].ref.name if queues else None)

    def count(self, project: str) -> int:
        prefix = layout.project_prefix(project)
        with self._port.verb():
            return self._port.count({"n": {"$gt": prefix, "$lt": layout.after(prefix)}}, layout.NAMES)

    def delete(self, queue: QueueRef) -> None:
        with self._port.verb():
            doomed = self._removal.doom(layout.key(queue), forget=True)
        self._removal.finish(doomed)

    def purge(self, queue: QueueRef) -> None:
        with self._port.verb():
            doomed = self._removal.doom(layout.key(queue), forget=False)
        self._removal.finish(doomed)

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        moment, key = layout.ms(now), layout.key(queue)
        living = self._port.where(key, e={"$gt": DatetimeMS(moment)})
        held = {"d": {"$gt": moment}, "c.e": {"$gt": moment}}
        with self._port.verb():
            oldest, newest = self._edge(living, 1), self._edge(living, -1)
            if oldest is None:
                return Stats()
            claimed = self._port.count({**living, **held}, layout.CLAIMS)
            total = self._port.count(living, layout.CLAIMS)
        ends = [
            Landmark(layout.original(end["_id"][len(key.project) :]), end["a"] / 1000, int(end["k"]))
            for end in (oldest, newest or oldest)
        ]
        return Stats(claimed, max(0, total - claimed), *ends)

    def entered(self, queue: QueueRef) -> int | None:
        key = layout.key(queue)
        with self._port.verb():
            found = self._port.find({"_id": key.counter, "s": key.shard, **THERE}, limit=1, fields={"k1": 1})
        return int(found[0].get("k1", 0)) if found else None

    def ready(self, queue: QueueRef, most: int, now: Seconds) -> int:
        moment = layout.ms(now)
        ready = self._port.where(layout.key(queue), d={"$lte": moment}, e={"$gt": DatetimeMS(moment)})
        with self._port.verb():
            return self._port.count(ready, layout.CLAIMS, most)

    def due(self, queue: QueueRef, now: Seconds) -> Seconds | None:
        later = self._port.where(layout.key(queue), d={"$gt": layout.ms(now)})
        fields = {"_id": 0, "d": 1}
        with self._port.verb():
            found = self._port.find(later, limit=1, sort={"d": 1, "k": 1}, hint=layout.CLAIMS, fields=fields)
        return found[0]["d"] / 1000 if found else None

    def _edge(self, living: Document, direction: int) -> Document | None:
        """The oldest or the newest message."""
        found = self._port.find(living, limit=1, sort={"k": direction}, hint=layout.OBSERVERS, fields={"a": 1, "k": 1})
        return found[0] if found else None

    def _look_up(self, keys: Sequence[QueueKey]) -> Sequence[bytes | None]:
        """The metadata of each queue."""
        named: Document = {"_id": {"$in": [key.counter for key in keys]}}
        if self._port.sharded:
            named["s"] = {"$in": [key.shard for key in keys]}
        found = {counter["_id"]: counter.get("b") for counter in self._port.find(named, fields={"b": 1})}
        return [found.get(key.counter) for key in keys]
