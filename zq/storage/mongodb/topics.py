# SPDX-License-Identifier: Apache-2.0
"""Topics in MongoDB. The module ``topic_log`` describes the stored documents.

Concurrent publications share a group commit, after which the listeners are notified. Each transaction updates the
counter of the log. Batches therefore become visible in the order of their sequences, and only one transaction at a
time can trim the log.

A log is trimmed when it exceeds its retention by an eighth. Trimming only stores the last trimmed sequence, and a purge
only stores the last purged sequence of the topic. The module ``expiry`` deletes the documents later.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from bson.datetime_ms import DatetimeMS

from zq.model import EndMessage, IdempotencyKey, Seconds, Stats
from zq.model.topics import Entry, Listener, LogSlice, Pattern, Retention, TopicRef
from zq.storage.mongodb import layout, topic_log
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.counters import increment
from zq.storage.mongodb.feed import Feed
from zq.storage.mongodb.group_commit import (
    BEFORE_ALL,
    MIN_WEIGHT,
    ShardGroups,
    find_refusal,
    merge_results,
    recall,
    remember,
    select_admitted,
)
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.topic_log import Reader

COUNTER: Final = {"k1": 1, "z1": 1, "x": 1, "k0": 1, "z0": 1}


class Publication(NamedTuple):
    """A request to publish a batch to a topic. ``now`` is in milliseconds."""

    key: QueueKey
    topic: str
    entries: Sequence[Entry]
    now: int
    keep: Retention
    idempotency_key: IdempotencyKey | None = None

    @property
    def size(self) -> int:
        """The total size of the messages in bytes."""
        return sum(entry.size for entry in self.entries)


class PublishResult(NamedTuple):
    """The result of one transaction of publications: the first sequence of each batch, and the stored documents."""

    answers: Sequence[int | Exception]
    documents: Sequence[BsonDocument]

    def trace(self) -> BsonDocument:
        """Return a filter that matches the first stored document, or an empty filter if no documents were stored."""
        return {field: one[field] for one in self.documents[:1] for field in ("_id", "s", "w")}


class Publisher:
    """A publisher, which stores the batches of all threads of a process in the topic logs of their projects.

    Before ``publish`` returns, ``notify`` is called with the project and the stored documents of each log, in order.
    """

    def __init__(self, client: StoreClient, notify: Callable[[str, Sequence[BsonDocument]], None]) -> None:
        self._client = client
        self._notify = notify
        self._groups = ShardGroups[Publication, int](client, self._publish, _weight)

    def publish(self, publication: Publication) -> int:
        """Store a batch, and return its first sequence after the batch is durable."""
        return self._groups.submit(publication)

    def _publish(self, publications: Sequence[Publication]) -> Sequence[int | Exception]:
        published = self._client.transaction(partial(self._append, publications), PublishResult.trace)
        by_log: defaultdict[str, list[BsonDocument]] = defaultdict(list)
        for document in published.documents:
            by_log[document["s"]].append(document)
        for shard, documents in by_log.items():
            self._notify(topic_log.project_of(shard), documents)
        return published.answers

    def _append(self, publications: Sequence[Publication], session: Session) -> PublishResult:
        known = recall(self._client, session, publications, int)
        refusals = [find_refusal(publication, known) for publication in publications]
        fresh = select_admitted(publications, refusals)
        if not fresh:
            return PublishResult(merge_results(refusals, ()), [])
        by_log: defaultdict[QueueKey, list[Publication]] = defaultdict(list)
        for one in fresh:
            by_log[one.key].append(one)
        counters = increment(self._client, session, {key: _step(its) for key, its in by_log.items()}, COUNTER)
        writer = uuid4().hex
        positions = {key: _position(counters[key], its, writer) for key, its in by_log.items()}
        placed: list[tuple[Publication, topic_log.LogPosition]] = []
        documents: list[BsonDocument] = []
        for one in fresh:
            position = positions[one.key]
            placed.append((one, position))
            documents += topic_log.documents(one.key, one.topic, one.entries, one.now, position)
            positions[one.key] = topic_log.LogPosition(
                position.sequence + len(one.entries), position.before + one.size, writer
            )
        self._client.insert(documents, session)
        for key, (newest, position) in {one.key: (one, position) for one, position in placed}.items():
            LogTrimmer(self._client, session, key, counters[key]).trim(newest.keep, position)
        remember(self._client, session, [(one, position.sequence, BEFORE_ALL) for one, position in placed])
        return PublishResult(merge_results(refusals, [position.sequence for _, position in placed]), documents)


class LogTrimmer:
    """A trimmer, which marks the oldest messages of a topic log as removed.

    It works in the transaction that updates the log's counter.
    """

    def __init__(self, client: StoreClient, session: Session, key: QueueKey, counter: BsonDocument) -> None:
        self._client = client
        self._session = session
        self._key = key
        self._counter = counter

    def trim(self, keep: Retention, newest: topic_log.LogPosition) -> None:
        """Trim the log to the limits ``keep`` once the log exceeds a limit by more than an eighth."""
        messages, size = self._counter["k1"], self._counter["z1"]
        seen = max(0, self._counter.get("k0", 0)), max(0, self._counter.get("z0", 0))
        if messages - seen[0] <= keep.messages * 9 // 8 and size - seen[1] <= keep.size * 9 // 8:
            return
        floors = {"k0": min(messages - keep.messages, newest.sequence - 1), "z0": min(size - keep.size, newest.before)}
        noted: BsonDocument = dict(floors)
        if trimmed := self._find_last(floors, newest.sequence - 1):
            noted |= {"x": trimmed, "g": trimmed}
        self._client.update(
            [{"q": {"_id": self._key.counter, "s": self._key.shard}, "u": {"$set": noted}}], self._session
        )

    def _find_last(self, floors: BsonDocument, end: int) -> int:
        """Return the last sequence to trim, at most ``end``, or 0 if nothing needs to be trimmed.

        ``floors`` has the numbers of published messages (``k0``) and bytes (``z0``) that the log no longer has to keep.
        """
        start, trimmed = self._counter.get("x", 0) + 1, 0
        while start <= end:
            middle = (start + end) // 2
            behind = self._client.where(self._key, k={"$gte": middle, "$lte": end})
            fields = {"k": 1, "f": 1, "z": 1}
            found = self._client.find(
                behind, limit=1, sort={"k": 1}, hint=layout.OBSERVERS, fields=fields, session=self._session
            )
            if found and (found[0]["f"] <= floors["k0"] or found[0]["z"] < floors["z0"]):
                trimmed = found[0]["k"]
                start = trimmed + 1
            else:
                end = middle - 1
        return trimmed


def _step(publications: Sequence[Publication]) -> BsonDocument:
    return {"$inc": {"k1": sum(len(one.entries) for one in publications), "z1": sum(one.size for one in publications)}}


def _position(counter: BsonDocument, publications: Sequence[Publication], writer: str) -> topic_log.LogPosition:
    step = _step(publications)["$inc"]
    return topic_log.LogPosition(counter["k1"] - step["k1"] + 1, counter["z1"] - step["z1"], writer)


def _weight(publication: Publication) -> int:
    return max(MIN_WEIGHT, publication.size)


TTL: Final = {"$multiply": [1000, {"$first": "$$this"}]}


class TopicController:
    """The MongoDB implementation of ``zq.storage.capabilities.TopicController``."""

    def __init__(self, client: StoreClient, feed: Feed) -> None:
        self._client = client
        self._reader = Reader(client)
        self._feed = feed
        self._publisher = Publisher(client, feed.publish)

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        publication = Publication(
            topic_log.key(topic.project), topic.name, entries, layout.ms(now), retention, idempotency_key
        )
        with self._client.verb():
            return self._publisher.publish(publication)

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        with self._client.verb():
            return self._reader.read(topic_log.key(project), after, limit, pattern)

    def purge(self, topic: TopicRef) -> None:
        key = topic_log.key(topic.project)
        with self._client.verb():
            last = self._reader.last(key)
            if not last:
                return
            name = {"d": layout.encode_text(topic.name)}
            self._client.upsert(topic_log.purge_note(key, topic.name), {"$set": name, "$max": {"g": last}})
            self._feed.purge(topic.project, last)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        moment, key = layout.ms(now), topic_log.key(topic.project)
        with self._client.verb():
            behind = {"$gt": self._reader.floor(key, topic.name)}
            living = self._client.where(key, d=layout.encode_text(topic.name), k=behind, e={"$gt": DatetimeMS(moment)})
            oldest, newest = self._edge(living, now, 1), self._edge(living, now, -1)
            if oldest is None:
                return Stats()
            alive = {"$cond": [{"$gt": [{"$add": ["$a", TTL]}, moment]}, {"$last": "$$this"}, 0]}
            count = {"$sum": {"$sum": {"$map": {"input": "$t", "as": "this", "in": alive}}}}
            stages: list[BsonDocument] = [{"$match": living}, {"$group": {"_id": None, "count": count}}]
            [counted] = self._client.aggregate(stages, layout.CLAIMS) or [{"count": 1}]
        return Stats(0, counted["count"], oldest, newest or oldest)

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        with self._client.verb():
            last = self._reader.last(topic_log.key(project))
        return self._feed.subscribe(project, listener, last)

    def _edge(self, living: BsonDocument, now: Seconds, direction: int) -> EndMessage | None:
        for found in self._client.find(living, limit=1, sort={"k": direction}, hint=layout.CLAIMS):
            messages = list(topic_log.to_batch(found).messages(0, now))
            edge = messages[0 if direction > 0 else -1]
            return EndMessage(str(edge.sequence), edge.created, edge.sequence)
        return None
