# SPDX-License-Identifier: Apache-2.0
"""Notifications for WebSocket connections of this process (contract 14).

Each subscription of a connection has a hidden queue. No delivery worker claims from that queue.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.errors import MessageUnreadable
from zq.model import ClaimRequest, Lease, Message, QueueRef, Settlement, new_ids
from zq.storage.api import ClaimController
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.model import Source
from zq.subscriptions.notices import notice_of, notification, opened_notice
from zq.subscriptions.subscriptions import Subscriptions

# The visibility timeout of a claim in seconds. It exceeds the time in which a batch is sent to a connection.
LEASE: Final = 120
# The maximum number of messages in a batch, and the maximum bytes of their bodies.
MAX_BATCH: Final = 20
MAX_BATCH_BYTES: Final = 4 << 20


class ConnectionSubscriptions:
    """The subscriptions of this process's connections to queues."""

    def __init__(
        self,
        claims: ClaimController,
        clock: Clock,
        sealing: Sealing,
        stored: SubscriptionDocuments,
        subscriptions: Subscriptions,
    ) -> None:
        self._claims = claims
        self._clock = clock
        self._sealing = sealing
        self._stored = stored
        self._subscriptions = subscriptions
        self._watchers: dict[QueueRef, Callable[[], object]] = {}

    def watch(self, queue: QueueRef, id: str, notify: Callable[[], object]) -> None:
        """Register ``notify``, which is called from any thread when the subscription may have a message.

        Calls may be lost. A later ``watch`` of the same subscription replaces the callback.
        """
        self._watchers[_source(queue).pushed(id)] = notify

    def forget(self, queue: QueueRef, id: str) -> None:
        """Remove the subscription's callback; a missing one is no error."""
        self._watchers.pop(_source(queue).pushed(id), None)

    def wake(self, hidden: QueueRef) -> None:
        """Notify the watcher of a hidden queue that may have new messages. Thread-safe."""
        if (notify := self._watchers.get(hidden)) is not None:
            notify()

    def exists(self, queue: QueueRef, id: str) -> bool:
        """Return whether the subscription exists, that is, has neither expired nor been deleted."""
        return self._stored.of(_source(queue)).at(id) is not None

    def delete(self, queue: QueueRef, id: str) -> None:
        """Delete the subscription and its pending messages."""
        self._subscriptions.delete(_source(queue), id)

    def batches(self, queue: QueueRef, id: str) -> Iterator[Sequence[bytes]]:
        """Claim all messages of the subscription and yield them as JSON documents, batch by batch.

        Advancing the iterator deletes the messages of the previous batch. A message that cannot be decrypted is
        deleted without being yielded.
        """
        hidden = _source(queue).pushed(id)
        while True:
            now = self._clock.now()
            request = ClaimRequest(Lease(new_ids(1, now)[0], LEASE, 0), MAX_BATCH, most_bytes=MAX_BATCH_BYTES)
            claim = self._claims.create(hidden, request, now).claim
            if claim is None:
                return
            yield [document for each in claim.messages if (document := self._document(queue.project, each))]
            self._claims.settle(hidden, claim.id, Settlement(rest=True), self._clock.now())

    def _document(self, project: str, message: Message) -> bytes | None:
        """Return the notification as JSON, or None if the message cannot be decrypted."""
        try:
            return notification(opened_notice(self._sealing, project, notice_of(message.body)))
        except MessageUnreadable:
            return None


def _source(queue: QueueRef) -> Source:
    return Source(queue.project, "queue", queue.name)
