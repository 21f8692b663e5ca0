# SPDX-License-Identifier: Apache-2.0
"""Use cases on queues (contract 6)."""

from collections.abc import Mapping, Sequence
from typing import Any

from zq import wire
from zq.broker.metadata import Book, Metadata
from zq.clock import Clock
from zq.errors import InvalidBody, QueueNotFound
from zq.limits import DEFAULT_PAGE, Limits, within
from zq.model import Page, QueueRef, Seconds, Stats
from zq.storage.api import Storage

READ_AHEAD = 200
"""Queues read at a time when a filter may drop most of them."""

Listed = tuple[str, Metadata]
"""(name, stored metadata)"""


class Queues:
    """What a caller can do with queues."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, book: Book) -> None:
        self._queues = storage.queues
        self._clock = clock
        self._limits = limits
        self._book = book

    def list(
        self, project: str, marker: str, limit: int | None, name: str = "", filters: Mapping[str, object] | None = None
    ) -> Page[Listed]:
        """A page of the queues whose name contains ``name`` and whose stored metadata equal every filter."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_queues_per_page)
        found: list[Listed] = []
        chunk = READ_AHEAD if name or filters else size
        while len(found) < size:
            page = self._queues.list(project, marker, chunk)
            for queue in page.items:
                if len(found) < size and name in queue.ref.name:
                    metadata = wire.json_object(queue.metadata)
                    if _matches(metadata, filters or {}):
                        found.append((queue.ref.name, metadata))
            if page.next is None or len(page.items) < chunk:
                break
            marker = page.next
        return Page(found, found[-1][0] if found else None)

    def count(self, project: str) -> int:
        """How many queues the project has."""
        return self._queues.count(project)

    def shown(self, queue: str, metadata: Metadata) -> Metadata:
        """Metadata with the reserved defaults filled in."""
        return self._book.shown(queue, metadata)

    def metadata(self, queue: QueueRef) -> Metadata:
        """The shown metadata; the defaults alone for a queue that does not exist."""
        stored = self._queues.get(queue)
        return self._book.shown(queue.name, wire.json_object(stored.metadata) if stored else {})

    def create(self, queue: QueueRef, raw: bytes) -> bool:
        """Create the queue with a metadata document ("" = none); False if it exists, which changes nothing."""
        metadata = wire.json_object(raw) if raw else {}
        self._book.check(metadata, queue.name)
        created = self._queues.create(queue, wire.encode(metadata))
        self._book.forget(queue)
        return created

    def patch(self, queue: QueueRef, operations: Sequence[wire.Operation]) -> Metadata:
        """Apply the operations as one step and return the shown metadata.

        Raises ``QueueNotFound``, ``MetadataConflict``, ``InvalidBody``; then nothing has changed.
        """
        while True:
            stored = self._queues.get(queue)
            if stored is None:
                raise QueueNotFound(f"There is no queue {queue.name}.")
            metadata = self._book.patched(wire.json_object(stored.metadata), operations)
            self._book.check(metadata, queue.name)
            raw = wire.encode(metadata)
            if len(raw) > self._limits.max_queue_metadata:
                bound = self._limits.max_queue_metadata
                raise InvalidBody(f"metadata must be at most {bound} bytes; they become {len(raw)}.")
            if self._queues.update(queue, stored.metadata, raw):
                self._book.forget(queue)
                return self._book.shown(queue.name, metadata)

    def delete(self, queue: QueueRef) -> None:
        """Remove the queue and all in it, if it is there."""
        self._queues.delete(queue)
        self._book.forget(queue)

    def purge(self, queue: QueueRef, types: Sequence[str] | None) -> None:
        """Remove what ``types`` name of ``messages`` and ``subscriptions``; None = both."""
        for kind in types or ():
            if kind not in ("messages", "subscriptions"):
                raise InvalidBody(f"resource_types may hold messages and subscriptions; it holds {kind[:32]!r}.")
        if types is None or "messages" in types:
            self._queues.purge(queue)

    def stats(self, queue: QueueRef) -> tuple[Stats, Seconds]:
        """Counts and landmarks, and the moment they are of."""
        now = self._clock.now()
        return self._queues.stats(queue, now), now


def _matches(metadata: Metadata, filters: Mapping[str, Any]) -> bool:
    """Whether stored metadata equal all filters; numbers only numbers, and ``true`` is none."""
    return all(type(metadata.get(key)) is type(value) and metadata[key] == value for key, value in filters.items())
