# SPDX-License-Identifier: Apache-2.0
"""Topics of the MongoDB store: see ``log`` for what lies there."""

from collections.abc import Sequence
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.model import Landmark, Once, Seconds, Stats
from zq.storage.mongodb import layout, log
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.live import Live
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.publications import Publication, Publisher
from zq.storage.mongodb.reading import Reader
from zq.storage.mongodb.removal import Removal
from zq.topics import Entry, Keep, Listener, Pattern, Reading, TopicRef

TTL: Final = {"$multiply": [1000, {"$first": "$$this"}]}


class TopicController:
    """``zq.storage.extensions.TopicController`` on MongoDB."""

    def __init__(self, port: Port, removal: Removal, live: Live) -> None:
        self._port = port
        self._removal = removal
        self._reader = Reader(port)
        self._live = live
        self._publisher = Publisher(port, live.published)

    def publish(
        self, topic: TopicRef, entries: Sequence[Entry], now: Seconds, keep: Keep, once: Once | None = None
    ) -> int:
        publication = Publication(log.key(topic.project), topic.name, entries, layout.ms(now), keep, once)
        with self._port.verb():
            return self._publisher.publish(publication)

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> Reading:
        with self._port.verb():
            return self._reader.read(log.key(project), after, limit, pattern)

    def purge(self, topic: TopicRef) -> None:
        key = log.key(topic.project)
        with self._port.verb():
            last = self._reader.last(key)
            if not last:
                return
            note, name = log.purge_note(key, topic.name), {"d": layout.text(topic.name)}
            self._port.upsert(note, {"$set": name, "$max": {"g": last}})
        self._removal.finish({**note, **name, "g": last})

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        moment, key = layout.ms(now), log.key(topic.project)
        with self._port.verb():
            behind = {"$gt": self._reader.dropped(key)}
            living = self._port.where(key, d=layout.text(topic.name), k=behind, e={"$gt": DatetimeMS(moment)})
            oldest, newest = self._edge(living, now, 1), self._edge(living, now, -1)
            if oldest is None:
                return Stats()
            alive = {"$cond": [{"$gt": [{"$add": ["$a", TTL]}, moment]}, {"$last": "$$this"}, 0]}
            count = {"$sum": {"$sum": {"$map": {"input": "$t", "as": "this", "in": alive}}}}
            stages: list[Document] = [{"$match": living}, {"$group": {"_id": None, "count": count}}]
            [counted] = self._port.aggregate(stages, layout.CLAIMS) or [{"count": 1}]
        return Stats(0, counted["count"], oldest, newest or oldest)

    def listen(self, listener: Listener) -> None:
        self._live.listen(listener)

    def follow(self, project: str) -> None:
        with self._port.verb():
            self._live.follow(project)

    def unfollow(self, project: str) -> None:
        self._live.unfollow(project)

    def _edge(self, living: Document, now: Seconds, direction: int) -> Landmark | None:
        """The oldest or the newest message."""
        for found in self._port.find(living, limit=1, sort={"k": direction}, hint=layout.CLAIMS):
            messages = list(log.batch(found).messages(0, now))
            edge = messages[0 if direction > 0 else -1]
            return Landmark(str(edge.sequence), edge.created, edge.sequence)
        return None
