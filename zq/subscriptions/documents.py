# SPDX-License-Identifier: Apache-2.0
"""Storage of subscriptions, in one document per source (queue or topic).

If a queue has active subscriptions, its metadata contains the key ``MARK``. Each change of the subscriptions updates
this key, so that posts to the queue notify its subscribers.

A delivery worker copies the messages of a project's topics to subscriptions, up to a position called the fan-out
cursor. If a topic's subscriptions change and the topic still has subscriptions, this cursor gets a new version.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from zq import wire
from zq.clock import Clock
from zq.core.metadata import Metadata
from zq.errors import MetadataConflict
from zq.model import QueueRef, Seconds
from zq.model.documents import Document, DocumentRef
from zq.model.hidden import MARK
from zq.model.topics import EVERYTHING, Pattern
from zq.storage.api import Storage
from zq.subscriptions.model import Source, Subscription, SubscriptionSet

# Kind of the documents with the subscriptions of a source.
KIND: Final = "subscriptions"
# Kind of the documents that list the projects with subscriptions. Delivery workers read the list.
PROJECTS: Final = "subscribed"
MAX_ATTEMPTS: Final = 20
# Number of sources that a listing of a project reads at a time.
SOURCES_READ: Final = 20

# Kind of the documents with a project's fan-out cursor.
CURSOR: Final = "following"
# A sequence number beyond the end of every log.
MAX_SEQUENCE: Final = 2**62

_decoder: Final = msgspec.msgpack.Decoder(SubscriptionSet)


class Cursors:
    """The fan-out cursors. A cursor is the position up to which a project's topic log was copied to subscriptions.

    Only projects with topic subscribers have a cursor. Each change is a compare-and-set on the cursor's version.
    """

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def get_last_sequence(self, project: str) -> int:
        """Return the last sequence number in the project's log."""
        return self._storage.topics.read(project, MAX_SEQUENCE, 1, Pattern(EVERYTHING)).last

    def get(self, project: str) -> Document | None:
        """Return the project's cursor, or None if the project has no topic subscribers."""
        return self._storage.documents.get(_cursor_ref(project), self._clock.now())

    def move(self, project: str, position: int, version: str) -> bool:
        """Set the cursor if its version equals ``version``. Return whether the cursor was set.

        If ``version`` is "", create the cursor if the project has none.
        """
        return self._storage.documents.put(_cursor_ref(project), b"%d" % position, self._clock.now(), expected=version)

    def remove(self, project: str, version: str) -> bool:
        """Remove the cursor if its version equals ``version``. Return whether the cursor was removed."""
        return self._storage.documents.delete(_cursor_ref(project), self._clock.now(), expected=version)

    def renew(self, project: str, first: int) -> None:
        """Give the cursor a new version, so that concurrent moves fail. If there is no cursor, create it at ``first``.

        Raises ``MetadataConflict`` after too many concurrent changes.
        """
        for _ in range(MAX_ATTEMPTS):
            cursor = self.get(project)
            if self.move(project, int(cursor.value) if cursor else first, cursor.version if cursor else ""):
                return
        raise MetadataConflict("The subscriptions were changed concurrently. Try again.")


def _cursor_ref(project: str) -> DocumentRef:
    return DocumentRef(project, CURSOR, "log")


class SubscriptionDocuments:
    """The subscriptions of all sources in the store."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._cursors = Cursors(storage, clock)
        self._clock = clock

    def get(self, source: Source) -> SubscriptionSet:
        """Return the source's subscriptions that have not expired."""
        now = self._clock.now()
        document = self._documents.get(_document(source), now)
        return _decode_unexpired(document.value if document else None, now)

    def count(self, project: str) -> int:
        """Return the number of the project's subscriptions that have not expired."""
        now, after, count = self._clock.now(), "", 0
        while True:
            page = self._documents.list(project, KIND, "", after, 100, now)
            count += sum(len(_decode_unexpired(each.value, now).items) for each in page.items)
            if page.next is None or len(page.items) < 100:
                return count
            after = page.next

    def list_project(self, project: str, after: str, limit: int) -> list[tuple[Source, Subscription]]:
        """Return up to ``limit`` subscriptions of the project after the position ``after``, sorted by source and id."""
        now = self._clock.now()
        document, _, id = after.rpartition("/")
        found: list[tuple[Source, Subscription]] = []
        if document:
            source = Source(project, *document.split("/"))
            found += [(source, each) for each in self.get(source).items if each.id > id]
        while len(found) < limit:
            page = self._documents.list(project, KIND, "", document, SOURCES_READ, now)
            for stored in page.items:
                source = Source(project, *stored.ref.name.split("/"))
                found += [(source, each) for each in _decode_unexpired(stored.value, now).items]
            if page.next is None or len(page.items) < SOURCES_READ:
                break
            document = page.next
        return found[:limit]

    def get_queue_mark(self, queue: QueueRef) -> Metadata:
        """Return the metadata entry that marks a queue with active subscriptions.

        If the queue has no active subscriptions, return {}.
        """
        all = self.get(Source(queue.project, "queue", queue.name))
        return {MARK: all.generation} if all.has_active else {}

    def change(self, source: Source, change: Callable[[SubscriptionSet], tuple[SubscriptionSet, Any]]) -> Any:
        """Change the subscription set of a queue or topic by compare-and-set.

        Then update the queue's metadata key ``MARK`` or the fan-out cursor of the topic's project.

        ``change`` receives the stored set, and returns the new set and the result of this method. It may be called
        several times. Raises ``MetadataConflict`` after ``MAX_ATTEMPTS`` attempts.
        """
        ref = _document(source)
        for _ in range(MAX_ATTEMPTS):
            now = self._clock.now()
            document = self._documents.get(ref, now)
            former = _decode_unexpired(document.value if document else None, now)
            new, result = change(former)
            if new is former or self._put(ref, new, document.version if document else "", now):
                if source.kind == "queue":
                    self._sync(QueueRef(source.project, source.name))
                else:
                    self._follow(source)
                return result
        raise MetadataConflict("The subscriptions were changed concurrently. Try again.")

    def start_at_next(self, source: Source, all: SubscriptionSet, subscription: Subscription) -> Subscription:
        """Return a copy of the subscription that receives only messages posted from now on.

        If the subscription is not active, return it unchanged. ``all`` contains all subscriptions of the source.
        """
        if subscription.confirmed is None:
            return subscription
        last = all.generation if source.kind == "queue" else self._cursors.get_last_sequence(source.project)
        return msgspec.structs.replace(subscription, confirmed=last + 1)

    def drop_deliveries(self, source: Source, id: str) -> None:
        """Delete the subscription's hidden queues with all deliveries in them."""
        for queue in (source.worker_queue(id), source.connection_queue(id), source.dead_letter_queue(id)):
            self._storage.queues.delete(queue)

    def delete_all(self, source: Source) -> None:
        """Delete all subscriptions of the source and their deliveries (contract section 6.8)."""
        ended = self.get(source)
        if ended.items:
            self.change(source, lambda all: (SubscriptionSet(all.generation + 1), None))
        for each in ended.items:
            self.drop_deliveries(source, each.id)

    def delete_some(self, project: str, limit: int) -> bool:
        """Delete the subscriptions of up to ``limit`` queues and topics of a project.

        If the project has no subscriptions, delete its fan-out cursor, remove the project from the list of projects
        with subscriptions, and return False. Otherwise, return True.
        """
        now = self._clock.now()
        found = self._documents.list(project, KIND, "", "", limit, now).items
        for document in found:
            self.delete_all(Source(project, *document.ref.name.split("/")))
        if not found:
            self._documents.delete(DocumentRef("", PROJECTS, project), now)
            if (cursor := self._cursors.get(project)) is not None:
                self._cursors.remove(project, cursor.version)
        return bool(found)

    def _sync(self, queue: QueueRef) -> None:
        for _ in range(MAX_ATTEMPTS):
            stored = self._storage.queues.get(queue)
            if stored is None:
                return
            metadata = wire.json_object(stored.metadata)
            wanted = {key: value for key, value in metadata.items() if key != MARK} | self.get_queue_mark(queue)
            if wanted == metadata or self._storage.queues.update(queue, stored.metadata, wire.encode(wanted)):
                return
        raise MetadataConflict("The queue was changed concurrently. Try again.")

    def _put(self, ref: DocumentRef, new: SubscriptionSet, version: str, now: Seconds) -> bool:
        if not new.items:
            return self._documents.delete(ref, now, expected=version)
        self._documents.put(DocumentRef("", PROJECTS, ref.project), b"{}", now, expected="")
        expires = max(each.expires for each in new.items)
        return self._documents.put(ref, msgspec.msgpack.encode(new), now, expected=version, expires=expires)

    def _follow(self, source: Source) -> None:
        """Give the fan-out cursor of a topic's project a new version after a change of the topic's subscriptions.

        If the project has no cursor, create it at the position before the first message that an active subscription
        must receive. If no subscription is active, create it at the end of the log.
        """
        if items := self.get(source).items:
            agreed = [each.confirmed - 1 for each in items if each.confirmed is not None]
            self._cursors.renew(
                source.project, min(agreed) if agreed else self._cursors.get_last_sequence(source.project)
            )


def position(source: Source, subscription: Subscription) -> str:
    """Return the position of a subscription in the listing of its project."""
    return f"{source.kind}/{source.name}/{subscription.id}"


def postpone(kind: str, stored: bytes, seconds: Seconds) -> bytes | None:
    """Return a copy of a stored document in which all subscriptions expire ``seconds`` later.

    If documents of this ``kind`` do not contain subscriptions, return None.
    """
    if kind != KIND:
        return None
    all = _decoder.decode(stored)
    items = tuple(msgspec.structs.replace(each, started=each.started + seconds) for each in all.items)
    return msgspec.msgpack.encode(msgspec.structs.replace(all, items=items))


def _decode_unexpired(stored: bytes | None, now: Seconds) -> SubscriptionSet:
    """Decode a stored subscription set, and drop expired subscriptions. Without a stored set, return an empty set.

    The generation of the result is at least the current time in milliseconds. A set that is deleted and created again
    therefore does not repeat a generation.
    """
    found = _decoder.decode(stored).without_expired(now) if stored else SubscriptionSet()
    return msgspec.structs.replace(found, generation=max(found.generation, int(now * 1000)))


def _document(source: Source) -> DocumentRef:
    return DocumentRef(source.project, KIND, f"{source.kind}/{source.name}")
