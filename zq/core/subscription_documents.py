# SPDX-License-Identifier: Apache-2.0
"""The documents that hold the subscriptions of each source, and what in the store goes by them: a queue's metadata, and
how far the logs of topics were followed."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from zq import wire
from zq.clock import Clock
from zq.core.cursors import Cursors
from zq.core.metadata import Metadata
from zq.errors import MetadataConflict
from zq.model import QueueRef, Seconds
from zq.model.documents import DocumentRef
from zq.model.subscriptions import MARK, Source, Subscription, Subscriptions
from zq.storage.api import Storage

# The kind of the documents that hold them, by source.
KIND: Final = "subscriptions"
# The kind of the documents that name projects with subscriptions, for those who deliver.
PROJECTS: Final = "subscribed"
TRIES: Final = 20

_decoder: Final = msgspec.msgpack.Decoder(Subscriptions)


class SubscriptionDocuments:
    """The stored subscriptions of all sources. ``changed`` is called with each queue that has other metadata now."""

    def __init__(self, storage: Storage, clock: Clock, changed: Callable[[QueueRef], None]) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._cursors = Cursors(storage, clock)
        self._clock = clock
        self._changed = changed

    def of(self, source: Source) -> Subscriptions:
        """All of a source that have not ended."""
        now = self._clock.now()
        document = self._documents.get(_document(source), now)
        return _living(document.value if document else None, now)

    def count(self, project: str) -> int:
        """How many the project has."""
        now, after, count = self._clock.now(), "", 0
        while True:
            page = self._documents.list(project, KIND, "", after, 100, now)
            count += sum(len(_living(each.value, now).items) for each in page.items)
            if page.next is None or len(page.items) < 100:
                return count
            after = page.next

    def mark_of_queue(self, queue: QueueRef) -> Metadata:
        """Return the metadata by which the queue says that it has subscribers; empty if it has none."""
        all = self.of(Source(queue.project, "queue", queue.name))
        return {MARK: all.generation} if all.deliverable else {}

    def change(self, source: Source, change: Callable[[Subscriptions], tuple[Subscriptions, Any]]) -> Any:
        """Store what ``change`` makes of them, in one step, and have it hold; its second result."""
        ref = _document(source)
        for _ in range(TRIES):
            now = self._clock.now()
            document = self._documents.get(ref, now)
            former = _living(document.value if document else None, now)
            new, result = change(former)
            if new is former or self._put(ref, new, document.version if document else "", now):
                if source.kind == "queue":
                    self._sync(QueueRef(source.project, source.name))
                else:
                    self._follow(source)
                return result
        raise MetadataConflict("Others change the subscriptions at the same time. Try again.")

    def from_next(self, source: Source, all: Subscriptions, one: Subscription) -> Subscription:
        """If something goes there, messages that come from the next generation on, of topics from the next sequence."""
        if one.confirmed is None:
            return one
        last = all.generation if source.kind == "queue" else self._cursors.last(source.project)
        return msgspec.structs.replace(one, confirmed=last + 1)

    def _sync(self, queue: QueueRef) -> None:
        """Have the queue's metadata say whether there is somebody to deliver to; a missing queue is fine."""
        for _ in range(TRIES):
            stored = self._storage.queues.get(queue)
            if stored is None:
                return
            metadata = wire.json_object(stored.metadata)
            wanted = {key: value for key, value in metadata.items() if key != MARK} | self.mark_of_queue(queue)
            if wanted == metadata:
                return
            if self._storage.queues.update(queue, stored.metadata, wire.encode(wanted)):
                self._changed(queue)
                return
        raise MetadataConflict("Others change the queue at the same time. Try again.")

    def _put(self, ref: DocumentRef, new: Subscriptions, version: str, now: Seconds) -> bool:
        if not new.items:
            return self._documents.delete(ref, now, expected=version)
        self._documents.put(DocumentRef("", PROJECTS, ref.project), b"{}", now, expected="")
        ends = max(each.expires for each in new.items)
        return self._documents.put(ref, msgspec.msgpack.encode(new), now, expected=version, expires=ends)

    def _follow(self, source: Source) -> None:
        """Have the log of topics followed, from before the first message that goes to somebody."""
        if items := self.of(source).items:
            agreed = [each.confirmed - 1 for each in items if each.confirmed is not None]
            self._cursors.renew(source.project, min(agreed) if agreed else self._cursors.last(source.project))


def postponed(kind: str, stored: bytes, seconds: Seconds) -> bytes | None:
    """The subscriptions of a source, each of which ends so much later; None for other documents."""
    if kind != KIND:
        return None
    all = _decoder.decode(stored)
    items = tuple(msgspec.structs.replace(each, started=each.started + seconds) for each in all.items)
    return msgspec.msgpack.encode(msgspec.structs.replace(all, items=items))


def _living(stored: bytes | None, now: Seconds) -> Subscriptions:
    """Those that have not ended. Generations follow the clock, so that none comes again where all had ended."""
    found = _decoder.decode(stored).living(now) if stored else Subscriptions()
    return msgspec.structs.replace(found, generation=max(found.generation, int(now * 1000)))


def _document(source: Source) -> DocumentRef:
    return DocumentRef(source.project, KIND, f"{source.kind}/{source.name}")
