# SPDX-License-Identifier: Apache-2.0
"""Messages of queues that a connection has subscribed to, as frames that no request precedes (contract 14)."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from zq.core.subscriptions import Subscribing
from zq.errors import ZqError
from zq.model.subscriptions import Source
from zq.websocket import frames
from zq.websocket.notifications import Notifications

LOG = logging.getLogger(__name__)
# Seconds between two looks for messages of all subscriptions, since a notice may be lost.
LOOK: Final = 5.0

Frame = str | bytes


class Pusher:
    """The subscriptions of one connection, and the frames for them. The caller must serialize calls of its methods."""

    def __init__(self, subscriptions: Subscribing, notifications: Notifications, notify: Callable[[], object]) -> None:
        """``notify`` is called, from any thread, when there may be something to send."""
        self._subscriptions = subscriptions
        self._notifications = notifications
        self._notify = notify
        self._formats: dict[tuple[Source, str], bool] = {}
        """Whether the frames of each subscription are binary."""
        self._notified = False
        self._looked = 0.0

    def add(self, source: Source, id: str, binary: bool) -> None:
        """Send the messages of the subscription from now on."""
        self._notifications.watch(source, id, self._wake)
        self._formats[source, id] = binary
        self._wake()

    def is_due(self) -> bool:
        """Return whether there may be something to send."""
        return bool(self._formats) and (self._notified or time.monotonic() - self._looked > LOOK)

    def batches(self) -> Iterator[Sequence[Frame]]:
        """Yield the frames to send; blocks. Asking for the next batch deletes the messages of the last one."""
        notified, self._notified, self._looked = self._notified, False, time.monotonic()
        try:
            for (source, id), binary in list(self._formats.items()):
                if notified or self._subscriptions.of(source).at(id) is not None:
                    for documents in self._notifications.batches(source, id):
                        yield [_frame(document, binary) for document in documents]
                else:  # the subscription has expired or was deleted
                    self._forget(source, id)
        except ZqError as failure:
            LOG.warning("Messages for a connection wait until the store answers: %s", failure)

    def end(self) -> None:
        """Delete the subscriptions; blocks."""
        for source, id in list(self._formats):
            self._forget(source, id)
            try:
                self._subscriptions.delete(source, id)
            except ZqError as failure:
                LOG.warning("The subscription of a connection that ended stays until its ttl is over: %s", failure)

    def _wake(self) -> None:
        self._notified = True
        self._notify()

    def _forget(self, source: Source, id: str) -> None:
        self._notifications.forget(source, id)
        self._formats.pop((source, id), None)


def _frame(document: bytes, binary: bool) -> Frame:
    return frames.encode(msgspec.json.decode(document), True) if binary else document.decode()
