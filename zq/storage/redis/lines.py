# SPDX-License-Identifier: Apache-2.0
"""Connections of redis-py to one server, kept and counted here."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from redis.exceptions import RedisClusterException, RedisError, TimeoutError

CONNECTIONS: Final = 256
SURE: Final = 0.02
"""Seconds after its last use within which a connection is not looked at before it is used again."""

VENDOR: Final = (RedisError, RedisClusterException, OSError)
"""Everything that redis-py raises on purpose."""

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
    """Connections to one server; whoever needs one takes the one used last."""

    def __init__(self, make: Callable[[], Line]) -> None:
        self._make = make
        self._made = 0
        self._idle: list[tuple[Line, float]] = []
        """With the moment of its last use. Adding and taking are atomic."""
        self._waiting = 0
        self._given_back = threading.Condition()

    def own(self) -> Line:
        """A new connection, not yet open, for a purpose of its own."""
        return self._make()

    def take(self, patience: float) -> Line:
        """A connection that stands. One that the server has closed meanwhile is opened anew before anything is sent."""
        try:
            line, used = self._idle.pop()
        except IndexError:
            line, used = self._make_or_wait(patience)
        try:
            line.connect()
            if time.monotonic() - used > SURE and _is_spoilt(line):
                line.disconnect()
                line.connect()
        except BaseException:
            self.give_back(line)
            raise
        return line

    def give_back(self, line: Line) -> None:
        self._idle.append((line, time.monotonic()))
        if self._waiting:
            with self._given_back:
                self._given_back.notify()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].disconnect()

    def _make_or_wait(self, patience: float) -> tuple[Line, float]:
        deadline = time.monotonic() + patience
        with self._given_back:
            if self._made < CONNECTIONS:
                line = self._make()
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
