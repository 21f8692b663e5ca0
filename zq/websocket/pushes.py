# SPDX-License-Identifier: Apache-2.0
"""Unsolicited frames with the messages of queues that a connection is subscribed to (contract 14)."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from zq.errors import ZqError
from zq.model import QueueRef
from zq.websocket import frames

LOG = logging.getLogger(__name__)
# Seconds between two polls of all subscriptions, because a notification may be lost.
POLL_INTERVAL: Final = 5.0

Frame = str | bytes


class Subscriptions(Protocol):
    """The subscriptions of connections to queues. A subscription is named by the queue and its id."""

    def watch(self, queue: QueueRef, id: str, notify: Callable[[], object]) -> None:
        """Call ``notify``, from any thread, when the subscription may have a message. Notifications may be lost."""
        ...

    def forget(self, queue: QueueRef, id: str) -> None:
        """Stop calling ``notify`` for the subscription."""
        ...

    def exists(self, queue: QueueRef, id: str) -> bool:
        """Return whether the subscription has neither expired nor been deleted. Raise ``Unavailable``."""
        ...

    def delete(self, queue: QueueRef, id: str) -> None:
        """Delete the subscription. Raise ``Unavailable``."""
        ...

    def batches(self, queue: QueueRef, id: str) -> Iterator[Sequence[bytes]]:
        """Yield all messages for the subscription as JSON documents, batch by batch. Raise ``Unavailable``.

        Before it yields the next batch, the iterator deletes the messages of the last one.
        """
        ...


class NoSubscriptions:
    """A stand-in for servers without the feature ``subscriptions``."""

    def watch(self, _queue: QueueRef, _id: str, _notify: Callable[[], object]) -> None:
        pass

    def forget(self, _queue: QueueRef, _id: str) -> None:
        pass

    def exists(self, _queue: QueueRef, _id: str) -> bool:
        return False

    def delete(self, _queue: QueueRef, _id: str) -> None:
        pass

    def batches(self, _queue: QueueRef, _id: str) -> Iterator[Sequence[bytes]]:
        return iter(())


NO_SUBSCRIPTIONS: Final[Subscriptions] = NoSubscriptions()


class Pusher:
    """The subscriptions of one connection, as a source of frames. Not thread-safe."""

    def __init__(self, subscriptions: Subscriptions, notify: Callable[[], object]) -> None:
        """``notify`` is called, from any thread, when there may be frames to send."""
        self._subscriptions = subscriptions
        self._notify = notify
        self._formats: dict[tuple[QueueRef, str], bool] = {}
        """Whether the frames of each subscription are binary."""
        self._notified = False
        self._polled_at = 0.0

    def add(self, queue: QueueRef, id: str, binary: bool) -> None:
        """Send the messages of the subscription from now on."""
        self._subscriptions.watch(queue, id, self._wake)
        self._formats[queue, id] = binary
        self._wake()

    def is_due(self) -> bool:
        """Return whether there may be frames to send."""
        return bool(self._formats) and (self._notified or time.monotonic() - self._polled_at > POLL_INTERVAL)

    def batches(self) -> Iterator[Sequence[Frame]]:
        """Yield the frames to send, batch by batch; blocks. See ``Subscriptions.batches`` for their deletion."""
        notified, self._notified, self._polled_at = self._notified, False, time.monotonic()
        try:
            for (queue, id), binary in list(self._formats.items()):
                if notified or self._subscriptions.exists(queue, id):
                    for documents in self._subscriptions.batches(queue, id):
                        yield [_frame(document, binary) for document in documents]
                else:  # the subscription has expired or was deleted
                    self._forget(queue, id)
        except ZqError as failure:
            LOG.warning("Messages for a connection wait until the store answers: %s", failure)

    def end(self) -> None:
        """Delete the subscriptions; blocks."""
        for queue, id in list(self._formats):
            self._forget(queue, id)
            try:
                self._subscriptions.delete(queue, id)
            except ZqError as failure:
                LOG.warning("The subscription of a connection that ended stays until its ttl is over: %s", failure)

    def _wake(self) -> None:
        self._notified = True
        self._notify()

    def _forget(self, queue: QueueRef, id: str) -> None:
        self._subscriptions.forget(queue, id)
        self._formats.pop((queue, id), None)


def _frame(document: bytes, binary: bool) -> Frame:
    return frames.encode(msgspec.json.decode(document), True) if binary else document.decode()
