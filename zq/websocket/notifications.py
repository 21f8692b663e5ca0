# SPDX-License-Identifier: Apache-2.0
"""Messages for subscriptions of connections. Each subscription has a hidden queue, from which no delivery worker
claims."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.errors import MessageUnreadable
from zq.model import ClaimRequest, Lease, Message, QueueRef, Settlement, new_ids
from zq.model.subscriptions import Source
from zq.storage.api import ClaimController
from zq.wire.subscriptions import notice_of, notification

# Seconds of a claim: longer than sending a batch to a connection may take.
LEASE: Final = 120
# Messages of one batch, and bytes of their bodies.
MAX_BATCH: Final = 20
MAX_BATCH_BYTES: Final = 4 << 20


class Notifications:
    """The notifications for the connections of this process."""

    def __init__(self, claims: ClaimController, clock: Clock, sealing: Sealing) -> None:
        self._claims = claims
        self._clock = clock
        self._sealing = sealing
        self._watchers: dict[QueueRef, Callable[[], object]] = {}

    def watch(self, source: Source, id: str, notify: Callable[[], object]) -> None:
        """Call ``notify``, from any thread, when there may be a message for the subscription; a notice may be lost."""
        self._watchers[source.pushed(id)] = notify

    def forget(self, source: Source, id: str) -> None:
        """End ``watch``."""
        self._watchers.pop(source.pushed(id), None)

    def wake(self, queue: QueueRef) -> None:
        """Notify the watcher of a queue to which messages may have come. From any thread."""
        if (notify := self._watchers.get(queue)) is not None:
            notify()

    def batches(self, source: Source, id: str) -> Iterator[Sequence[bytes]]:
        """Claim all messages for the subscription and yield them as JSON documents, batch by batch.

        Asking for the next batch deletes the messages of the last one. A message that cannot be decrypted is dropped.
        """
        queue = source.pushed(id)
        while True:
            now = self._clock.now()
            request = ClaimRequest(Lease(new_ids(1, now)[0], LEASE, 0), MAX_BATCH, most_bytes=MAX_BATCH_BYTES)
            claim = self._claims.create(queue, request, now).claim
            if claim is None:
                return
            yield [document for each in claim.messages if (document := self._document(source, each))]
            self._claims.settle(queue, claim.id, Settlement(rest=True), self._clock.now())

    def _document(self, source: Source, message: Message) -> bytes | None:
        """Return the notification as JSON, or ``None`` if the message cannot be decrypted."""
        notice = notice_of(message.body)
        try:
            return notification(self._sealing.opened_notice(source.project, notice))
        except MessageUnreadable:
            return None
