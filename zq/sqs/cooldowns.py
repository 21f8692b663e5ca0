# SPDX-License-Identifier: Apache-2.0
"""Cooldowns after a queue is purged or deleted.

Each cooldown is an empty document that expires when the cooldown ends:

    (project, "sqs-purge", queue)     the queue cannot be purged again
    (project, "sqs-deleted", queue)   no queue with this name can be created
"""

from typing import Final

from zq.clock import Clock
from zq.core.queues import Queues
from zq.errors import Unavailable
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

PURGED: Final = "sqs-purge"
DELETED_KIND: Final = "sqs-deleted"


class Cooldowns:
    """The use cases that purge or delete a queue and start the cooldown."""

    def __init__(self, documents: DocumentController, clock: Clock, queues: Queues) -> None:
        self._documents = documents
        self._clock = clock
        self._queues = queues

    def purge(self, ref: QueueRef, interval: int) -> bool:
        """Purge the queue, or return False if the last purge was less than ``interval`` seconds ago."""
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
        """Delete the queue and reserve its name for ``seconds``.

        Return the number of deleted messages, or None if the messages could not be counted.
        """
        now = self._clock.now()
        if seconds:  # written before the deletion, so that no queue of this name is created in between
            self._documents.put(DocumentRef(ref.project, DELETED_KIND, ref.name), b"", now, expires=now + seconds)
        removed = self._queues.delete(ref)
        self._documents.delete(DocumentRef(ref.project, PURGED, ref.name), self._clock.now())
        return removed

    def is_reserved(self, ref: QueueRef) -> bool:
        """Return whether the name is reserved because a queue with this name was deleted recently."""
        return self._documents.get(DocumentRef(ref.project, DELETED_KIND, ref.name), self._clock.now()) is not None
