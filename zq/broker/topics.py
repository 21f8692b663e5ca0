# SPDX-License-Identifier: Apache-2.0
"""Use cases on topics (contract 13), and what their metadata mean for those who publish."""

import time
from collections.abc import Callable

from msgspec import Struct

from zq import wire
from zq.broker.lifetimes import Lifetimes
from zq.broker.metadata import post_size
from zq.broker.named import Named
from zq.broker.recent import Recent
from zq.broker.vocabulary import Vocabulary, topic_defaults
from zq.clock import Clock
from zq.errors import TopicNotFound
from zq.limits import Limits
from zq.model import Page, Seconds, Stats
from zq.records import Record, RecordRef
from zq.storage.api import Storage
from zq.topics import TopicRef

KIND = "topic"
"""Of the records that hold topics' metadata."""
NO_METADATA = b"{}"


class Topic(Struct, frozen=True):
    """A topic as stored; ``metadata`` is a JSON object."""

    ref: TopicRef
    metadata: bytes


class TopicRules(Struct, frozen=True):
    """What a topic's metadata mean for a message that is published: its ttl, where it names none, and the most bytes
    of one post."""

    ttl: int
    max_post_size: int


class Topics(Named[TopicRef, Topic]):
    """What a caller can do with topics."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        lifetimes: Lifetimes,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shelf = _Shelf(storage, clock)
        self._lifetimes = lifetimes
        self._recent = Recent(self._stored, monotonic)
        # queue_ttl is a table of queues' names, not of topics'.
        vocabulary = Vocabulary("topic", limits, topic_defaults(limits), lambda _name: lifetimes.default)
        super().__init__(self._shelf, vocabulary, clock, limits, self._recent.forget, TopicNotFound)

    def rules(self, topic: TopicRef) -> TopicRules:
        """What holds for a message that is published now, as ``Recent`` has it; a missing topic is created."""
        return self._recent.get(topic)

    def _stored(self, topic: TopicRef) -> TopicRules:
        stored = self._shelf.get(topic)
        while stored is None and not self._shelf.create(topic, NO_METADATA):
            stored = self._shelf.get(topic)  # somebody else has created it
        metadata = wire.json_object(stored.metadata) if stored else {}
        ttl = metadata.get("_default_message_ttl") or self._lifetimes.default
        return TopicRules(ttl, post_size(metadata, self._limits))


class _Shelf:
    """Topics as a ``Catalogue``: their metadata are records, their messages stand in their project's log."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._records = storage.records
        self._topics = storage.topics
        self._clock = clock

    def create(self, topic: TopicRef, metadata: bytes) -> bool:
        return self._records.put(_record_ref(topic), metadata, self._clock.now(), expected="")

    def get(self, topic: TopicRef) -> Topic | None:
        record = self._records.get(_record_ref(topic), self._clock.now())
        return _topic(record) if record else None

    def update(self, topic: TopicRef, expected: bytes, metadata: bytes) -> bool:
        ref, now = _record_ref(topic), self._clock.now()
        record = self._records.get(ref, now)
        if record is None or record.value != expected:
            return False
        return self._records.put(ref, metadata, now, expected=record.version)

    def list(self, project: str, after: str, limit: int) -> Page[Topic]:
        page = self._records.list(project, KIND, "", after, limit, self._clock.now())
        return Page([_topic(record) for record in page.items], page.next)

    def delete(self, topic: TopicRef) -> None:
        # The record first: a server that dies in between leaves messages without a topic, and not a topic that has
        # lost its messages.
        self._records.delete(_record_ref(topic), self._clock.now())
        self._topics.purge(topic)

    def purge(self, topic: TopicRef) -> None:
        self._topics.purge(topic)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        return self._topics.stats(topic, now)


def _record_ref(topic: TopicRef) -> RecordRef:
    return RecordRef(topic.project, KIND, topic.name)


def _topic(record: Record) -> Topic:
    return Topic(TopicRef(record.ref.project, record.ref.name), record.value)
