# SPDX-License-Identifier: Apache-2.0
"""Connections of redis-py to one server, kept and counted here."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakSet

from redis.exceptions import ConnectionError, RedisClusterException, RedisError, TimeoutError

CONNECTIONS: Final = 256
SURE: Final = 0.02
"""Seconds after its last use within which a connection is not looked at before it is used again."""

VENDOR: Final = (RedisError, RedisClusterException, OSError)
"""Everything that redis-py raises on purpose."""

RETIRED: Final = "Another server is the master meanwhile, or is about to be."

Reply = Any


class Line(Protocol):
    """What is used of redis-py's connections."""

    @property
    def is_connected(self) -> bool: ...
    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self) -> bool: ...
    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...
    def read_response(self, disable_decoding: bool, *, timeout: float) -> Reply: ...


class Lines:
    """Connections to one server; whoever needs one takes the one used last. ``retired``: no verb may take one."""

    def __init__(self, make: Callable[[], Line]) -> None:
        self._make = make
        self._every: WeakSet[Line] = WeakSet()
        self.retired = False
        self._made = 0
        self._idle: list[tuple[Line, float]] = []
        """With the moment of its last use. Adding and taking are atomic."""
        self._waiting = 0
        self._given_back = threading.Condition()

    def own(self) -> Line:
        """A new connection, not yet open, for a purpose of its own."""
        line = self._make()
        with self._given_back:
            self._every.add(line)
        return line

    def take(self, patience: float) -> Line:
        """A connection that stands. One that the server has closed meanwhile is opened anew before anything is sent."""
        try:
            line, used = self._idle.pop()
        except IndexError:
            line, used = self._make_or_wait(patience)
        try:
            if self.retired:
                raise ConnectionError(RETIRED)
            line.connect()
            if time.monotonic() - used > SURE and _is_spoilt(line):
                line.disconnect()
                line.connect()
        except BaseException:
            self.give_back(line)
            raise
        return line

    def give_back(self, line: Line) -> None:
        if self.retired:
            line.disconnect()
        self._idle.append((line, time.monotonic()))
        if self._waiting:
            with self._given_back:
                self._given_back.notify()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].disconnect()

    def retire(self) -> None:
        """Close what is idle now, and the others when they are given back. Verbs under way still get their answers."""
        self.retired = True
        self.close()

    def drop(self) -> None:
        """Close every connection, whoever uses it: those who wait for an answer get an error."""
        self.retired = True
        with self._given_back:
            every = list(self._every)
        for line in every:
            hang_up(line)

    def _make_or_wait(self, patience: float) -> tuple[Line, float]:
        deadline = time.monotonic() + patience
        with self._given_back:
            if self._made < CONNECTIONS:
                line = self.own()
                self._made += 1
                return line, time.monotonic()
            self._waiting += 1
            try:
                while not self._idle:
                    if not self._given_back.wait(deadline - time.monotonic()):
                        raise TimeoutError("No connection became free.")
                return self._idle.pop()
            finally:
                self._waiting -= 1


def _is_spoilt(connection: Line) -> bool:
    """Whether the server closed an idle connection, or left on it what nobody asked for."""
    try:
        return connection.can_read()
    except VENDOR:
        return True


def socket_of(line: Any) -> socket.socket:
    """The socket of an open connection, which is read and written past redis-py from now on."""
    opened: socket.socket | None = line._sock
    if opened is None:
        raise ConnectionError("The connection was closed meanwhile.")
    return opened


def hang_up(line: Any) -> None:
    """End a connection that another thread may be using, which then fails at once. The thread closes the rest."""
    opened: socket.socket | None = line._sock
    if opened is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)  # past TLS, whose state is the other thread's
