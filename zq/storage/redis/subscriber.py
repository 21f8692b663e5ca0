# SPDX-License-Identifier: Apache-2.0
"""A thread with one connection of its own on which a server tells what is published.

It reads the socket itself: redis-py takes 13 microseconds for a message; this way it is one or two. Whatever is to be
sent goes through this thread too, since no two may use a connection with TLS at once.
"""

import contextlib
import logging
import socket
import threading
from abc import ABC, abstractmethod
from selectors import EVENT_READ, DefaultSelector
from typing import Final

from redis.exceptions import ConnectionError

from zq.storage.redis.layout import wire
from zq.storage.redis.lines import VENDOR, Line, socket_of

LOG = logging.getLogger(__name__)
LOST: Final = "%s: nothing that the store tells is heard, it is tried again: %s"
UNFORESEEN: Final = "%s: failed for a reason that nobody foresaw, it connects again."
FOUND: Final = "%s: what the store tells is heard again."
PING: Final = b"*1\r\n" + wire(b"PING")
QUIET: Final = 5.0
"""Seconds of silence after which the server is asked whether it is there, and again until it is given up."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
"""Seconds between attempts to connect; they double."""
CHUNK: Final = 65536
"""More than a record of TLS, so that nothing stays behind in its buffer when the socket is not ready any more."""


class Subscriber(ABC):
    """Connects, and connects again when the connection is lost, until it is closed.

    ``pause``: seconds in which nothing is read, once there was nothing more to be read.
    """

    def __init__(self, name: str, pause: float) -> None:
        self._pause = pause
        self._deaf = False
        self._wait = FIRST_WAIT
        self._closed = threading.Event()
        self._bell, self._rung = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def line(self) -> Line | None:
        """A new connection, not yet open; None: nothing is to be heard any more, and the thread ends."""

    @abstractmethod
    def greeting(self) -> bytes:
        """What a new connection begins with."""

    @abstractmethod
    def outgoing(self) -> bytes:
        """What is to be sent now; asked for after ``ring``."""

    @abstractmethod
    def heard(self, read: bytes) -> bytes:
        """Take what was read; the end of it that is not complete yet, which comes again with more."""

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # it has rung often enough, or the thread has ended
            self._bell.send(b"!")

    def close(self) -> None:
        self._closed.set()
        self.ring()
        if self._thread is not threading.current_thread():
            self._thread.join(1)

    def _run(self) -> None:
        with self._bell, self._rung:
            while not self._closed.is_set():
                try:
                    line = self.line()
                    if line is None:
                        return
                    try:
                        line.connect()
                        self._follow(socket_of(line))
                    finally:
                        line.disconnect()
                except VENDOR as error:
                    self._lost(error)
                except Exception:  # the edge of this thread, which must outlive any one failure
                    LOG.critical(UNFORESEEN, self._thread.name, exc_info=True)
                self._closed.wait(self._wait)
                self._wait = min(2 * self._wait, LONGEST_WAIT)

    def _lost(self, error: BaseException) -> None:
        """Said once, until it hears again."""
        if not self._deaf and not self._closed.is_set():
            self._deaf = True
            LOG.warning(LOST, self._thread.name, error)

    def _found(self) -> None:
        self._wait = FIRST_WAIT
        if self._deaf:
            self._deaf = False
            LOG.warning(FOUND, self._thread.name)

    def _follow(self, line: socket.socket) -> None:
        line.settimeout(QUIET)
        rest, asked = b"", False
        with DefaultSelector() as ready:
            ready.register(line, EVENT_READ)
            ready.register(self._rung, EVENT_READ)
            line.sendall(self.greeting())
            while not self._closed.is_set():
                sources = [key.fileobj for key, _ in ready.select(QUIET)]
                if self._rung in sources:
                    self._rung.recv(CHUNK)
                    line.sendall(self.outgoing())
                if line in sources:
                    read = line.recv(CHUNK)
                    if not read:
                        raise ConnectionError("The server has closed the connection.")
                    asked = False
                    rest = self.heard(rest + read)
                    self._found()
                    # A reading over TLS is one record, and there may be many of them.
                    if not ready.select(0):
                        self._closed.wait(self._pause)
                if not sources:
                    if asked:
                        raise ConnectionError("The server does not answer.")
                    asked = True
                    line.sendall(PING)
