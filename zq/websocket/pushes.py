# SPDX-License-Identifier: Apache-2.0
"""Pushing of messages from subscribed queues to a WebSocket connection (contract section 14)."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from zq.errors import Restricted, ZqError
from zq.model import QueueRef
from zq.websocket import frames

LOG = logging.getLogger(__name__)
# Seconds between two polls of all subscriptions. Polls are necessary because notifications can be lost.
POLL_INTERVAL: Final = 5.0

Frame = str | bytes


class Subscriptions(Protocol):
    """The interface to the queue subscriptions of connections. A queue and an id identify a subscription."""

    def watch(self, queue: QueueRef, id: str, notify: Callable[[], object]) -> None:
        """Set the function that is called when the subscription has new messages.

        ``notify`` is called on any thread. Calls can be lost, so the connection must also poll.
        """
        ...

    def forget(self, queue: QueueRef, id: str) -> None:
        """Unset the function that ``watch`` has set."""
        ...

    def exists(self, queue: QueueRef, id: str) -> bool:
        """Return whether the subscription exists and has not expired."""
        ...

    def delete(self, queue: QueueRef, id: str) -> None:
        """Delete the subscription. Raises ``Unavailable`` if the store is unavailable."""
        ...

    def batches(self, queue: QueueRef, id: str) -> Iterator[Sequence[bytes]]:
        """Yield the subscription's messages in batches.

        When the caller requests the next batch, the messages of the previous batch are deleted from the store. Raises
        ``Unavailable`` if the store is unavailable.
        """
        ...


class NoSubscriptions:
    """The implementation of ``Subscriptions`` for servers without the subscriptions feature."""

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
    """The source of the frames that the server pushes to one connection. Not thread-safe."""

    def __init__(self, subscriptions: Subscriptions, notify: Callable[[], object]) -> None:
        """Create the pusher. ``notify`` is called from any thread when ``batches`` may have frames."""
        self._subscriptions = subscriptions
        self._notify = notify
        self._formats: dict[tuple[QueueRef, str], bool] = {}
        """The subscriptions, and whether their frames are binary."""
        self._notified = False
        self._polled_at = 0.0

    def add(self, queue: QueueRef, id: str, binary: bool) -> None:
        """Start pushing the messages of a subscription, in binary or text frames."""
        self._subscriptions.watch(queue, id, self._wake)
        self._formats[queue, id] = binary
        self._wake()

    def is_due(self) -> bool:
        """Return whether ``batches`` must be called.

        This is the case after a notification, and when a poll is due.
        """
        return bool(self._formats) and (self._notified or time.monotonic() - self._polled_at > POLL_INTERVAL)

    def batches(self) -> Iterator[Sequence[Frame]]:
        """Yield frames in batches. Blocks.

        When the caller requests the next batch, the messages of the previous batch are deleted from the store.
        """
        notified, self._notified, self._polled_at = self._notified, False, time.monotonic()
        try:
            for (queue, id), binary in list(self._formats.items()):
                if notified or self._subscriptions.exists(queue, id):
                    for documents in self._subscriptions.batches(queue, id):
                        yield [
                            frames.encode(msgspec.json.decode(document), True) if binary else document.decode()
                            for document in documents
                        ]
                else:  # the subscription has expired or was deleted
                    self._forget(queue, id)
        except Restricted:
            pass  # the messages stay until the mode of the service allows their deletion
        except ZqError as failure:
            LOG.warning("Cannot read the messages for a WebSocket connection; retrying: %s", failure)

    def end(self) -> None:
        """Delete the connection's subscriptions. Blocks."""
        for queue, id in list(self._formats):
            self._forget(queue, id)
            try:
                self._subscriptions.delete(queue, id)
            except ZqError as failure:
                LOG.warning("Cannot delete the subscription of a closed connection; its ttl will end it: %s", failure)

    def _wake(self) -> None:
        self._notified = True
        self._notify()

    def _forget(self, queue: QueueRef, id: str) -> None:
        self._subscriptions.forget(queue, id)
        self._formats.pop((queue, id), None)
