# SPDX-License-Identifier: Apache-2.0
"""Messages of queues that a connection has subscribed to, as frames that come without a request (contract 14)."""

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec
from websockets.exceptions import ConnectionClosed

from zq.broker import Broker
from zq.errors import ZqError
from zq.model.subscriptions import Source
from zq.websocket import frames

LOG = logging.getLogger(__name__)
# Seconds after which all are looked at, for a hint may be lost.
LOOK: Final = 5.0


class Pusher:
    """Of one connection, whose thread calls it; another thread sends, from the first subscription on."""

    def __init__(self, broker: Broker, send: Callable[[str | bytes], object]) -> None:
        self._subscriptions = broker.subscriptions
        self._pushes = broker.pushes
        self._send = send
        self._lock = threading.Lock()
        self._formats: dict[tuple[Source, str], bool] = {}
        """Of each subscription, whether its frames are binary."""
        self._wakeup = threading.Event()

    def add(self, source: Source, id: str, binary: bool) -> None:
        """Send what comes for the subscription."""
        self._pushes.watch(source, id, self._wakeup)
        with self._lock:
            begins = not self._formats
            self._formats[source, id] = binary
        if begins:
            threading.Thread(target=self._work, name="zq-websocket-push", daemon=True).start()
        self._wakeup.set()

    def end(self) -> None:
        """Delete the subscriptions, and what was to be sent."""
        with self._lock:
            gone, self._formats = self._formats, {}
        self._wakeup.set()
        for source, id in gone:
            self._forget(source, id)
            try:
                self._subscriptions.delete(source, id)
            except ZqError as failure:
                LOG.warning("The subscription of a connection that ended stays until its ttl is over: %s", failure)

    def _forget(self, source: Source, id: str) -> None:
        self._pushes.forget(source, id)
        with self._lock:
            self._formats.pop((source, id), None)

    def _work(self) -> None:
        while True:
            woken = self._wakeup.wait(LOOK)
            self._wakeup.clear()
            with self._lock:
                all = dict(self._formats)
            if not all:
                return
            try:
                for (source, id), binary in all.items():
                    if woken or self._subscriptions.of(source).at(id) is not None:
                        self._push(source, id, binary)
                    else:  # it has ended, by its ttl or by whoever deleted it
                        self._forget(source, id)
            except (ConnectionClosed, OSError):
                return
            except ZqError as failure:
                LOG.warning("What is to be sent to a connection waits: %s", failure)
            except Exception:  # the edge of this thread
                LOG.critical("A message was not sent to a connection, for an unforeseen reason.", exc_info=True)

    def _push(self, source: Source, id: str, binary: bool) -> None:
        for documents in self._pushes.batches(source, id):
            for document in documents:
                self._send(frames.encode(msgspec.json.decode(document), True) if binary else document.decode())
