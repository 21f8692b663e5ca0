# SPDX-License-Identifier: Apache-2.0
"""The queue subscriptions of this process's WebSocket connections (contract section 14)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.modes import Modes
from zq.errors import MessageUnreadable
from zq.model import ClaimRequest, Lease, Message, QueueRef, Settlement, new_ids
from zq.storage.api import ClaimController
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.model import Source
from zq.subscriptions.notices import build_notification, decode_notice, decrypt_notice
from zq.subscriptions.subscriptions import Subscriptions

# Visibility timeout of a batch in seconds, longer than it takes to send the batch.
LEASE: Final = 120
# Maximum number of messages in a batch, and maximum total size of their bodies in bytes.
MAX_BATCH: Final = 20
MAX_BATCH_BYTES: Final = 4 << 20


class ConnectionSubscriptions:
    """The queue subscriptions of this process's WebSocket connections."""

    def __init__(
        self,
        claims: ClaimController,
        clock: Clock,
        sealing: Sealing,
        stored: SubscriptionDocuments,
        subscriptions: Subscriptions,
        modes: Modes,
    ) -> None:
        self._modes = modes
        self._claims = claims
        self._clock = clock
        self._sealing = sealing
        self._stored = stored
        self._subscriptions = subscriptions
        self._watchers: dict[QueueRef, Callable[[], object]] = {}

    def watch(self, queue: QueueRef, id: str, notify: Callable[[], object]) -> None:
        """Set the callback for new messages of a subscription. ``queue`` and ``id`` identify the subscription.

        ``notify`` is called on any thread. Calls can be lost, so the connection must also poll.
        """
        self._watchers[_source(queue).connection_queue(id)] = notify

    def forget(self, queue: QueueRef, id: str) -> None:
        """Remove the subscription's callback."""
        self._watchers.pop(_source(queue).connection_queue(id), None)

    def wake(self, hidden: QueueRef) -> None:
        """Call the connection's callback if ``hidden`` is the delivery queue of a watched subscription. Thread-safe."""
        if (notify := self._watchers.get(hidden)) is not None:
            notify()

    def exists(self, queue: QueueRef, id: str) -> bool:
        return self._stored.get(_source(queue)).find(id) is not None

    def delete(self, queue: QueueRef, id: str) -> None:
        self._subscriptions.delete(_source(queue), id)

    def batches(self, queue: QueueRef, id: str) -> Iterator[Sequence[bytes]]:
        """Yield the pending messages of a subscription in batches, until there are no more messages.

        When the caller requests the next batch, the messages of the previous batch are deleted. Raises ``ReadOnly`` if
        the server is in read-only mode.
        """
        hidden = _source(queue).connection_queue(id)
        while True:
            self._modes.check_change()
            now = self._clock.now()
            request = ClaimRequest(Lease(new_ids(1, now)[0], LEASE, 0), MAX_BATCH, max_bytes=MAX_BATCH_BYTES)
            claim = self._claims.create(hidden, request, now).claim
            if claim is None:
                return
            yield [document for each in claim.messages if (document := self._document(queue.project, each))]
            self._claims.settle(hidden, claim.id, Settlement(rest=True), self._clock.now())

    def _document(self, project: str, message: Message) -> bytes | None:
        try:
            return build_notification(decrypt_notice(self._sealing, project, decode_notice(message.body)))
        except MessageUnreadable:
            return None


def _source(queue: QueueRef) -> Source:
    return Source(queue.project, "queue", queue.name)
