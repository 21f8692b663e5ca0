# SPDX-License-Identifier: Apache-2.0
"""What is for subscribers that are connections to this process (contract 14): each has a queue of ours, as other
subscriptions have, from which no worker delivers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.errors import MessageUnreadable
from zq.model import ClaimRequest, Lease, Message, QueueRef, Settlement, new_ids
from zq.model.subscriptions import Source
from zq.storage.api import Storage
from zq.wire.subscriptions import notice_of, notification

# Seconds of a claim: longer than a connection may take to be sent what it holds.
LEASE: Final = 120
MOST: Final = 20
MOST_BYTES: Final = 4 << 20


class Pushes:
    """Of one process."""

    def __init__(self, storage: Storage, clock: Clock, sealing: Sealing) -> None:
        self._storage = storage
        self._clock = clock
        self._sealing = sealing
        self._watchers: dict[QueueRef, Callable[[], object]] = {}

    def watch(self, source: Source, id: str, notify: Callable[[], object]) -> None:
        """Call ``notify``, from any thread, when something may be there for the subscription; a hint may be lost."""
        self._watchers[source.pushed(id)] = notify

    def forget(self, source: Source, id: str) -> None:
        """Watch it no longer."""
        self._watchers.pop(source.pushed(id), None)

    def hear(self, queue: QueueRef) -> None:
        """Messages may have come to the queue; from any thread."""
        if (notify := self._watchers.get(queue)) is not None:
            notify()

    def batches(self, source: Source, id: str) -> Iterator[Sequence[bytes]]:
        """The documents that are for the subscription, until there are no more. Those of a batch are gone once the next
        one is asked for."""
        queue = source.pushed(id)
        while True:
            now = self._clock.now()
            asked = ClaimRequest(Lease(new_ids(1, now)[0], LEASE, 0), MOST, most_bytes=MOST_BYTES)
            claim = self._storage.claims.create(queue, asked, now).claim
            if claim is None:
                return
            yield [document for each in claim.messages if (document := self._document(source, each))]
            self._storage.claims.settle(queue, claim.id, Settlement(rest=True), self._clock.now())

    def _document(self, source: Source, message: Message) -> bytes | None:
        """None of what cannot be opened."""
        notice = notice_of(message.body)
        try:
            return notification(self._sealing.opened_notice(source.project, notice))
        except MessageUnreadable:
            return None
