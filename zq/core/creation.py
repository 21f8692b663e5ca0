# SPDX-License-Identifier: Apache-2.0
"""Creation of queues and topics on first use, and lookup of their rules (contract sections 7.2, 13).

Rules are the parsed settings in the metadata of a queue or topic.
"""

import time
from collections.abc import Callable
from typing import Final, cast

from msgspec import Struct

from zq import wire
from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.core.followers import Followers
from zq.core.metadata import SEALED_SINCE_KEY
from zq.core.quotas import AnyQuotas
from zq.core.rules import CACHE_SIZE, CACHE_TTL, DefaultTtls, Rules, RulesCache
from zq.model import Page, QueueRef, Seconds, Stats
from zq.model.documents import Document, DocumentRef
from zq.model.limits import Limits
from zq.model.topics import TOPIC, TopicRef
from zq.storage.api import DocumentController, QueueController, Storage
from zq.storage.capabilities import MissingCapability
from zq.wire.metadata import ReservedKeys, parse_keys

NO_METADATA: Final = b"{}"


class QueueCreation:
    def __init__(
        self, queues: QueueController, quotas: AnyQuotas, rules_cache: RulesCache, followers: Followers
    ) -> None:
        self._queues = queues
        self._quotas = quotas
        self._rules_cache = rules_cache
        self._followers = followers

    def rules(self, queue: QueueRef) -> Rules:
        """Return the queue's current rules (parsed settings) from its metadata. Create the queue if it does not exist.

        Raises ``QuotaExceeded`` if the project may not create another queue.
        """
        stored = self._queues.get(queue)
        if stored is None:
            with self._quotas.admit_queue(queue):
                metadata = wire.encode(self._followers.mark(queue))
                self._queues.create(queue, metadata)
        return self._rules_cache.remember(queue, stored.metadata if stored else metadata)

    def forget(self, queue: QueueRef) -> None:
        """Invalidate the cached settings of the queue after this server has changed the queue's metadata."""
        self._rules_cache.forget(queue)


class Topic(Struct, frozen=True):
    """A stored topic; ``metadata`` is a JSON object."""

    ref: TopicRef
    metadata: bytes


class TopicRules(Struct, frozen=True):
    """The settings of a topic that apply to published messages. ``ttl`` is in seconds."""

    ttl: int
    max_post_size: int
    encrypts: bool


class TopicCreation:
    """Creation of topics on first use, and lookup of their settings. The settings are at most one second old."""

    def __init__(
        self,
        topics: "TopicStore",
        quotas: AnyQuotas,
        limits: Limits,
        default_ttls: DefaultTtls,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topics = topics
        self._quotas = quotas
        self._limits = limits
        self._default_ttls = default_ttls
        self._recent = ReadThroughCache(self._read, CACHE_SIZE, CACHE_TTL, monotonic)
        self.rules: Callable[[TopicRef], TopicRules] = self._recent.get
        """Returns the topic's cached rules. Creates the topic if it does not exist."""
        self._sealed = ReadThroughCache(self.stored_sealed_since, CACHE_SIZE, CACHE_TTL, monotonic)

    def forget(self, topic: TopicRef) -> None:
        """Invalidate the cached settings of the topic after this server has changed the topic's metadata."""
        self._recent.forget(topic)
        self._sealed.forget(topic)

    def sealed_since(self, topic: TopicRef) -> Seconds:
        """Return the time after which all new bodies of the topic are encrypted. The result is cached.

        If new bodies may be unencrypted, the result is 0.
        """
        return self._sealed.get(topic)

    def stored_sealed_since(self, topic: TopicRef) -> Seconds:
        """Return ``sealed_since`` as read from the store instead of the cache."""
        stored = self._topics.get(topic)
        return wire.json_object(stored.metadata).get(SEALED_SINCE_KEY) or 0.0 if stored else 0.0

    def _read(self, topic: TopicRef) -> TopicRules:
        stored = self._topics.get(topic)
        while stored is None and not self._created(topic):
            stored = self._topics.get(topic)  # another server has created it
        keys = ReservedKeys(**parse_keys(wire.json_object(stored.metadata) if stored else {}, self._limits))
        # The option queue_ttl applies to queues only.
        ttl = keys.default_message_ttl or self._default_ttls.default
        return TopicRules(ttl, keys.max_messages_post_size, keys.enable_encrypt_messages)

    def _created(self, topic: TopicRef) -> bool:
        with self._quotas.admit_topic(topic):
            return self._topics.create(topic, NO_METADATA)


class TopicStore:
    """The store of topics: metadata in documents, messages in the project's log."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        missing = isinstance(storage.topics, MissingCapability)
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
        page = self._documents.list(project, TOPIC, "", after, limit, self._clock.now())
        return Page([_topic(document) for document in page.items], page.next)

    def delete(self, topic: TopicRef) -> None:
        # The document is deleted first: if the server dies in between, unreachable messages remain, but no topic
        # without messages.
        self._documents.delete(_document_ref(topic), self._clock.now())
        self._topics.purge(topic)

    def purge(self, topic: TopicRef) -> None:
        self._topics.purge(topic)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        return self._topics.stats(topic, now)


def _document_ref(topic: TopicRef) -> DocumentRef:
    return DocumentRef(topic.project, TOPIC, topic.name)


def _topic(document: Document) -> Topic:
    return Topic(TopicRef(document.ref.project, document.ref.name), document.value)
