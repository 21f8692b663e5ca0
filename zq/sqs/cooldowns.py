# SPDX-License-Identifier: Apache-2.0
"""Cooldowns of queues: the minimum time between two purges, and between a deletion and a new queue of the same name.

A cooldown is an empty document in the queue's project. The document expires at the end of the cooldown:

    (project, "sqs-purge", queue)     another purge of the queue is refused
    (project, "sqs-deleted", queue)   the creation of a queue of this name is refused
"""

from typing import Final

from zq.clock import Clock
from zq.core.queues import Queues
from zq.errors import Unavailable
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

PURGED: Final = "sqs-purge"
DELETED: Final = "sqs-deleted"


class Cooldowns:
    """Purges and deletions of queues, each of which begins a cooldown."""

    def __init__(self, documents: DocumentController, clock: Clock, queues: Queues) -> None:
        self._documents = documents
        self._clock = clock
        self._queues = queues

    def purge(self, ref: QueueRef, interval: int) -> bool:
        """Delete all messages of the queue, and return True.

        If the last purge was less than ``interval`` seconds ago, delete no message and return False.
        """
        note, now = DocumentRef(ref.project, PURGED, ref.name), self._clock.now()
        if interval and not self._documents.put(note, b"", now, expected="", expires=now + interval):
            return False
        try:
            self._queues.purge(ref, ("messages",))
        except Unavailable:
            self._documents.delete(note, now)
            raise
        return True

    def delete(self, ref: QueueRef, seconds: int) -> int | None:
        """Delete the queue by ``Queues.delete``, and refuse new queues of its name for ``seconds``.

        Also ends the queue's purge cooldown, so that a new queue of the same name can be purged at once.
        """
        now = self._clock.now()
        if seconds:  # written before the deletion, so that no queue of this name is created in between
            self._documents.put(DocumentRef(ref.project, DELETED, ref.name), b"", now, expires=now + seconds)
        removed = self._queues.delete(ref)
        self._documents.delete(DocumentRef(ref.project, PURGED, ref.name), self._clock.now())
        return removed

    def refuses(self, ref: QueueRef) -> bool:
        """Return whether a recently deleted queue's cooldown forbids the creation of a queue of this name."""
        return self._documents.get(DocumentRef(ref.project, DELETED, ref.name), self._clock.now()) is not None
