# SPDX-License-Identifier: Apache-2.0
"""The export of a project as parcels (items that do not depend on the driver), shared by all drivers.

A driver implements only ``ParcelReader``, for data that no other operation returns.
"""

import json
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from zq.errors import CommitRunning
from zq.model import KnownFence, KnownProducer, Page, Queue, QueueRef, Seconds, Span
from zq.model.parcels import (
    LOG,
    BatchParcel,
    Counters,
    DocumentParcel,
    FenceParcel,
    HistoryParcel,
    KeyParcel,
    LogParcel,
    MessageParcel,
    Parcel,
    ProducerParcel,
    QueueParcel,
    size_of,
)
from zq.model.quotas import Work
from zq.storage.api import Storage
from zq.storage.browsing import ALL

# Total size in bytes of the bodies in a page after which the page ends.
PAGE_BYTES: Final = 4 << 20
# The time span of all history entries.
EVER: Final = Span(0.0, 1e12)


class ParcelReader(Protocol):
    """The interface that a driver implements for exports. It returns data that no other operation returns.

    No method returns expired items.
    """

    def counters(self, queue: QueueRef) -> Counters: ...

    def missing(self, project: str, after: str, limit: int) -> Sequence[str]:
        """Return up to ``limit`` nonexistent queues that still have idempotency keys, in the driver's own order."""
        ...

    def keys(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[KeyParcel]:
        """Return up to ``limit`` idempotency keys of a queue, or of the topic log if the queue's name is ``LOG``.

        A page may be short although more keys follow. ``next`` of the last page is None.
        """
        ...

    def log(self, project: str) -> LogParcel | None:
        """Return the state of the project's topic log, or None if nothing was ever published."""
        ...

    def batches(self, project: str, after: int, limit: int, now: Seconds) -> Sequence[BatchParcel]:
        """Return up to ``limit`` batches of the topic log with sequences greater than ``after``.

        The result is empty if no batches follow.
        """
        ...

    def documents(self, project: str, after: str, limit: int, now: Seconds) -> Page[DocumentParcel]:
        """Return a page of up to ``limit`` documents of the project."""
        ...


class Cursor(NamedTuple):
    """A position in an export: a section, the queue that it belongs to, and a position in the section."""

    section: str = "queues"
    queue: str = ""
    position: str = ""


class Exporter:
    """An exporter, which returns the parcels of an open store page by page.

    The order of the parcels allows another store to import them.
    """

    def __init__(self, storage: Storage, reader: ParcelReader) -> None:
        self._storage = storage
        self._reader = reader

    def page(self, project: str, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        return _fill_page(after, Cursor(), limit, lambda at, left: self._read(project, at, left, now))

    def queue_page(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        first = Cursor("queue", queue.name)
        return _fill_page(after, first, limit, lambda at, left: self._read_one_queue(queue, at, left, now))

    def _read_one_queue(
        self, queue: QueueRef, at: Cursor, limit: int, now: Seconds
    ) -> tuple[Sequence[Parcel], Cursor | None]:
        if at.section == "queue":
            found = self._storage.queues.get(queue)
            return [] if found is None else [self._queue_parcel(found)], Cursor(
                "messages", queue.name
            ) if found else None
        if at.section == "end":
            return (), None
        parcels, left = self._read_queue(queue, at, limit, now)
        return parcels, None if left is None or left.queue != queue.name else left

    def _queue_parcel(self, queue: Queue) -> QueueParcel:
        return QueueParcel(queue.ref.name, queue.metadata, queue.grouping, self._reader.counters(queue.ref))

    def _read(self, project: str, at: Cursor, limit: int, now: Seconds) -> tuple[Sequence[Parcel], Cursor | None]:
        match at.section:
            case "queues":
                queues = self._storage.queues.list(project, at.position, limit)
                return [*map(self._queue_parcel, queues.items)], Cursor(
                    "queues", "", queues.next
                ) if queues.next else Cursor("missing")
            case "missing":
                missing = self._reader.missing(project, at.position, limit)
                left = Cursor("missing", "", missing[-1]) if missing else self._next_queue(project, "")
                return [QueueParcel(name, None) for name in missing], left
            case "messages" | "history" | "keys":
                return self._read_queue(QueueRef(project, at.queue), at, limit, now)
            case "missing keys":
                return self._read_missing_keys(project, at, limit, now)
            case "log":
                log = self._reader.log(project)
                return ([log] if log else []), Cursor("batches", "", "0")
            case "batches":
                batches = self._reader.batches(project, int(at.position), limit, now)
                left = at._replace(position=str(batches[-1].batch.last)) if batches else Cursor("log keys")
                return batches, left
            case "log keys":
                keys = self._reader.keys(QueueRef(project, LOG), at.position, limit, now)
                return keys.items, Cursor("documents") if keys.next is None else at._replace(position=keys.next)
            case "documents":
                found = self._reader.documents(project, at.position, limit, now)
                return found.items, Cursor("fences") if found.next is None else at._replace(position=found.next)
            case "fences":
                return self._read_work(project, Work.FENCE, at, limit, now, Cursor("producers"))
            case "producers":
                return self._read_work(project, Work.PRODUCER, at, limit, now, None)
        return (), None

    def _read_queue(
        self, queue: QueueRef, at: Cursor, limit: int, now: Seconds
    ) -> tuple[Sequence[Parcel], Cursor | None]:
        if at.section == "messages":
            messages = self._storage.messages.list(queue, int(at.position or 0), limit, ALL, now, PAGE_BYTES)
            parcels = [MessageParcel(queue.name, replace(message, claim="")) for message in messages.items]
            return parcels, Cursor("messages" if messages.next else "history", queue.name, messages.next or "")
        if at.section == "history":
            entries = self._storage.history.list(queue, int(at.position or 0), limit, EVER, now, PAGE_BYTES)
            history = [HistoryParcel(queue.name, entry) for entry in entries.items]
            return history, Cursor("history" if entries.next else "keys", queue.name, entries.next or "")
        keys = self._reader.keys(queue, at.position, limit, now)
        if keys.next is not None:
            return keys.items, at._replace(position=keys.next)
        return keys.items, self._next_queue(queue.project, queue.name)

    def _read_missing_keys(
        self, project: str, at: Cursor, limit: int, now: Seconds
    ) -> tuple[Sequence[Parcel], Cursor | None]:
        """Read up to ``limit`` idempotency keys of queues that do not exist, and return the cursor of the next page.

        If ``at.position`` is set, continue with the queue ``at.queue`` at this position. Otherwise, start with the
        first nonexistent queue after ``at.queue``.
        """
        names = [at.queue] if at.position else self._reader.missing(project, at.queue, limit)
        found: list[Parcel] = []
        for name in names:
            keys = self._reader.keys(QueueRef(project, name), at.position, limit - len(found), now)
            found += keys.items
            if keys.next is not None or len(found) == limit:
                return found, Cursor("missing keys", name, keys.next or "")
        return found, Cursor("missing keys", names[-1]) if names else Cursor("log")

    def _next_queue(self, project: str, after: str) -> Cursor:
        queues = self._storage.queues.list(project, after, 1).items
        return Cursor("messages", queues[0].ref.name) if queues else Cursor("missing keys")

    def _read_work(
        self, project: str, work: Work, at: Cursor, limit: int, now: Seconds, then: Cursor | None
    ) -> tuple[Sequence[Parcel], Cursor | None]:
        known = self._storage.transactions.list(project, work, at.position, limit, now)
        parcels: list[Parcel] = []
        for one in known.items:
            if isinstance(one, KnownFence):
                parcels.append(FenceParcel(one.name, one.epoch, one.advanced))
            elif isinstance(one, KnownProducer):
                if one.expires is None:
                    raise CommitRunning
                last = one.last
                parcels.append(
                    ProducerParcel(one.name, last.batch, last.published, last.deleted, one.decided, one.expires)
                )
        return parcels, at._replace(position=known.next) if known.next else then


def _fill_page(
    after: str, first: Cursor, limit: int, read: Callable[[Cursor, int], tuple[Sequence[Parcel], Cursor | None]]
) -> Page[Parcel]:
    """Return a page of parcels that begins at ``after``, or at ``first`` if ``after`` is ""."""
    cursor: Cursor | None = Cursor(*json.loads(after)) if after else first
    items: list[Parcel] = []
    size = 0
    while cursor is not None and len(items) < limit and size < PAGE_BYTES:
        found, cursor = read(cursor, limit - len(items))
        items += found
        size += sum(map(size_of, found))
    return Page(items, json.dumps(cursor or Cursor("end")) if items else None)
