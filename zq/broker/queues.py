# SPDX-License-Identifier: Apache-2.0
"""Use cases on queues (contract 6)."""

from zq.broker.metadata import Book
from zq.broker.named import Named
from zq.broker.vocabulary import Vocabulary, shown_defaults
from zq.clock import Clock
from zq.errors import QueueNotFound
from zq.limits import Limits
from zq.model import Queue, QueueRef
from zq.storage.api import Storage


class Queues(Named[QueueRef, Queue]):
    """What a caller can do with queues."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, book: Book) -> None:
        vocabulary = Vocabulary("queue", limits, shown_defaults(limits), book.lifetimes.of)
        super().__init__(storage.queues, vocabulary, clock, limits, book.forget, QueueNotFound)
        self._queues = storage.queues

    def count(self, project: str) -> int:
        """How many queues the project has."""
        return self._queues.count(project)

    def entered(self, queue: QueueRef) -> int | None:
        """How many messages have come into it, counted from anywhere; None if that is not known."""
        return self._queues.entered(queue)
