# SPDX-License-Identifier: Apache-2.0
"""Messages of queues that a connection has subscribed to, as frames that come without a request (contract 14)."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from zq.core import Broker
from zq.errors import ZqError
from zq.model.subscriptions import Source
from zq.websocket import frames

LOG = logging.getLogger(__name__)
# Seconds after which all subscriptions are looked at, for a hint may be lost.
LOOK: Final = 5.0

Frame = str | bytes


class Pusher:
    """The subscriptions of one connection, which sends what is pushed to it. No method may run beside another one."""

    def __init__(self, broker: Broker, notify: Callable[[], object]) -> None:
        """``notify`` is called, from any thread, when there may be something to send."""
        self._subscriptions = broker.subscriptions
        self._pushes = broker.pushes
        self._notify = notify
        self._formats: dict[tuple[Source, str], bool] = {}
        """Of each subscription, whether its frames are binary."""
        self._hinted = False
        self._looked = 0.0

    def add(self, source: Source, id: str, binary: bool) -> None:
        """Send what comes for the subscription."""
        self._pushes.watch(source, id, self._hint)
        self._formats[source, id] = binary
        self._hint()

    def is_due(self) -> bool:
        """Return whether there may be something to send."""
        return bool(self._formats) and (self._hinted or time.monotonic() - self._looked > LOOK)

    def batches(self) -> Iterator[Sequence[Frame]]:
        """Yield the frames to send. Those of a batch are gone for good once the next batch is asked for; blocks."""
        hinted, self._hinted, self._looked = self._hinted, False, time.monotonic()
        try:
            for (source, id), binary in list(self._formats.items()):
                if hinted or self._subscriptions.of(source).at(id) is not None:
                    for documents in self._pushes.batches(source, id):
                        yield [_frame(document, binary) for document in documents]
                else:  # it has ended, by its ttl or because it was deleted
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

    def _hint(self) -> None:
        self._hinted = True
        self._notify()

    def _forget(self, source: Source, id: str) -> None:
        self._pushes.forget(source, id)
        self._formats.pop((source, id), None)


def _frame(document: bytes, binary: bool) -> Frame:
    return frames.encode(msgspec.json.decode(document), True) if binary else document.decode()
