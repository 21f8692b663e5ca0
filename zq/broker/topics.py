# SPDX-License-Identifier: Apache-2.0
"""Use cases on topics (contract 13), and what their metadata mean for those who publish."""

import time
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from zq import wire
from zq.broker.data_keys import DataKeys
from zq.broker.markers import Markers
from zq.broker.metadata import (
    ENCRYPTS,
    GROUPED,
    NO_TOPIC,
    NO_TOPIC_GROUPS,
    NOT_ENCRYPTED,
    PAUSED,
    SEALED,
    MetadataSchema,
    topic_defaults,
)
from zq.broker.resources import READ_AHEAD, MetadataResource
from zq.broker.rules import DefaultTtls, ReadThroughCache, post_size
from zq.clock import Clock
from zq.errors import TopicNotFound
from zq.limits import Limits
from zq.model import Page, Seconds, Stats
from zq.model.documents import Document, DocumentRef
from zq.model.topics import TopicRef
from zq.storage.api import DocumentController, Storage
from zq.storage.capabilities import Missing

# The kind of the documents that hold topics' metadata.
KIND = "topic"
NO_METADATA = b"{}"


class Topic(Struct, frozen=True):
    """A topic as stored; ``metadata`` is a JSON object."""

    ref: TopicRef
    metadata: bytes


class TopicRules(Struct, frozen=True):
    """What a topic's metadata mean for a message that is published: its ttl, where it names none, the most bytes of
    one post, and whether its body is encrypted in the store."""

    ttl: int
    max_post_size: int
    encrypts: bool


class Topics(MetadataResource[TopicRef, Topic]):
    """What a caller can do with topics."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        default_ttls: DefaultTtls,
        keys: DataKeys,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = _TopicStore(storage, clock)
        self._default_ttls = default_ttls
        self._recent = ReadThroughCache(self._stored, monotonic)
        # queue_ttl is a table of queues' names, not of topics'.
        unbuilt = {PAUSED: NO_TOPIC, GROUPED: NO_TOPIC_GROUPS}
        if not keys.enabled:
            unbuilt[ENCRYPTS] = NOT_ENCRYPTED
        schema = MetadataSchema("topic", limits, topic_defaults(limits), lambda _name: default_ttls.default, unbuilt)
        markers = Markers(storage.documents, clock)
        super().__init__(self._store, schema, markers, clock, limits, self._forget, TopicNotFound)
        self._sealed = ReadThroughCache(self._stored_since, monotonic)

    def rules(self, topic: TopicRef) -> TopicRules:
        """What holds for a message that is published now, as the cache has it; a missing topic is created."""
        return self._recent.get(topic)

    def sealed_since(self, topic: TopicRef) -> Seconds:
        """Return from when on all bodies of the topic have been encrypted; 0 = it may hold plain ones."""
        return self._sealed.get(topic)

    def _stored_since(self, topic: TopicRef) -> Seconds:
        stored = self._store.get(topic)
        return wire.json_object(stored.metadata).get(SEALED) or 0.0 if stored else 0.0

    def _forget(self, topic: TopicRef) -> None:
        self._recent.forget(topic)
        self._sealed.forget(topic)

    def stored(self, project: str, after: str) -> Page[Topic]:
        """Topics with names greater than ``after``, as they are stored."""
        return self._store.list(project, after, READ_AHEAD)

    def _stored(self, topic: TopicRef) -> TopicRules:
        stored = self._store.get(topic)
        while stored is None and not self._created(topic):
            stored = self._store.get(topic)  # somebody else has created it
        metadata = wire.json_object(stored.metadata) if stored else {}
        ttl = metadata.get("_default_message_ttl") or self._default_ttls.default
        return TopicRules(ttl, post_size(metadata, self._limits), bool(metadata.get(ENCRYPTS)))

    def _created(self, topic: TopicRef) -> bool:
        with self.admit(topic, None):
            return self._store.create(topic, NO_METADATA)


class _TopicStore:
    """Topics as a ``ResourceStore``: their metadata are documents, their messages stand in their project's log."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        missing = isinstance(storage.topics, Missing)
        self._documents = cast(DocumentController, storage.topics) if missing else storage.documents
        self._topics = storage.topics
        self._clock = clock

    def create(self, topic: TopicRef, metadata: bytes) -> bool:
        return self._documents.put(_document_ref(topic), metadata, self._clock.now(), expected="")

    def get(self, topic: TopicRef) -> Topic | None:
        document = self._documents.get(_document_ref(topic), self._clock.now())
        return _topic(document) if document else None

    def update(self, topic: TopicRef, expected: bytes, metadata: bytes) -> bool:
        ref, now = _document_ref(topic), self._clock.now()
        document = self._documents.get(ref, now)
        if document is None or document.value != expected:
            return False
        return self._documents.put(ref, metadata, now, expected=document.version)

    def list(self, project: str, after: str, limit: int) -> Page[Topic]:
        page = self._documents.list(project, KIND, "", after, limit, self._clock.now())
        return Page([_topic(document) for document in page.items], page.next)

    def delete(self, topic: TopicRef) -> None:
        # The document first: a server that dies in between leaves messages without a topic, and not a topic that has
        # lost its messages.
        self._documents.delete(_document_ref(topic), self._clock.now())
        self._topics.purge(topic)

    def purge(self, topic: TopicRef) -> None:
        self._topics.purge(topic)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        return self._topics.stats(topic, now)


def _document_ref(topic: TopicRef) -> DocumentRef:
    return DocumentRef(topic.project, KIND, topic.name)


def _topic(document: Document) -> Topic:
    return Topic(TopicRef(document.ref.project, document.ref.name), document.value)
