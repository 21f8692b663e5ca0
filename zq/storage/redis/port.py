# SPDX-License-Identifier: Apache-2.0
"""The way to Redis: one command, one round trip, within one bounded time.

Commands are packed here and sent over connections of redis-py, past its client object, which would cost more than the
command. Nothing is ever sent twice, unless the server said that it did nothing with it: a command whose answer is lost
may have worked, and only the caller knows whether it may be repeated.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from redis.exceptions import (
    AskError,
    ClusterError,
    ConnectionError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    TimeoutError,
)

from zq.errors import Unavailable
from zq.storage.redis.layout import wire
from zq.storage.redis.scripts import Script

CONNECTIONS: Final = 256
SURE: Final = 0.02
"""Seconds after its last use within which a connection is not looked at before it is used again."""
MOVES: Final = 3
"""How often a command follows a key that moved to another server of a cluster."""
LOST: Final = "The store does not answer. Try again later."
FULL: Final = "The store is full. Messages can be taken from it, but none added."
UNCONFIRMED: Final = "Too few replicas of the store confirmed the change in time. It may have happened."

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


class Network(Protocol):
    """Which server a key is on: one server, a master that Sentinels know, or a cluster."""

    name: str
    """For sentences: host and port, never a password."""

    def lines(self, key: bytes) -> Lines:
        """The server that has the key. May raise ``RedisError``."""
        ...

    def own_line(self) -> Line:
        """A new connection to any of the servers. May raise ``RedisError``."""
        ...

    def relearn(self) -> None:
        """Find out anew where keys are. May raise ``RedisError``."""
        ...

    def doubt(self) -> None:
        """The same, in the background: somebody did not answer."""
        ...

    def asked(self, error: AskError) -> Lines:
        """The server that a migrating key was said to be on."""
        ...

    def close(self) -> None: ...


class Port:
    """Runs scripts and commands. Every method raises ``Unavailable`` within ``timeout`` seconds, and nothing else."""

    def __init__(self, network: Network, timeout: float, wait_replicas: int = 0) -> None:
        self.network = network
        self._timeout = timeout
        self._wait = b""
        if wait_replicas:
            self._wait = _packed(3, wire(b"WAIT", b"%d" % wait_replicas, b"%d" % (timeout * 500)))
        self._replicas = wait_replicas

    def run(self, script: Script, anchor: bytes, keys: int, packed: bytes, *arguments: bytes) -> Reply:
        """Run a script. ``packed``: its keys on the wire, ``anchor``: one of them."""
        rest = b"$%d\r\n%d\r\n%b%b" % (len(str(keys)), keys, packed, wire(*arguments))
        count = 3 + keys + len(arguments)
        with translated():
            try:
                return self._ask(anchor, _packed(count, script.call + rest), script.confirmed)
            except NoScriptError:
                return self._ask(anchor, _packed(count, script.load + rest), script.confirmed)

    def command(self, key: bytes, *arguments: bytes) -> Reply:
        """A command that only reads; ``key`` tells where."""
        with translated():
            return self._ask(key, _packed(len(arguments), wire(*arguments)), False)

    def close(self) -> None:
        self.network.close()

    def _ask(self, key: bytes, packed: bytes, confirm: bool) -> Reply:
        try:
            return self._follow(key, packed, confirm, time.monotonic() + self._timeout)
        except (ConnectionError, TimeoutError, ClusterError, RedisClusterException):
            self.network.doubt()
            raise

    def _follow(self, key: bytes, packed: bytes, confirm: bool, deadline: float) -> Reply:
        """The answer of the server that has the key, wherever it moved to."""
        lines, asking = self.network.lines(key), False
        for _ in range(MOVES):
            try:
                return self._exchange(lines, packed, confirm, asking, deadline)
            except MovedError:
                self.network.relearn()
                lines, asking = self.network.lines(key), False
            except AskError as error:
                lines, asking = self.network.asked(error), True
        raise ConnectionError("The key moves too often.")

    def _exchange(self, lines: Lines, packed: bytes, confirm: bool, asking: bool, deadline: float) -> Reply:
        connection = lines.take(self._timeout / 4)
        try:
            waits = confirm and self._wait != b""
            out = [_ASKING + packed if asking else packed, *([self._wait] if waits else [])]
            connection.send_packed_command(out, check_health=False)
            if asking:
                _read(connection, deadline)
            try:
                reply = _read(connection, deadline)
            finally:
                confirmed = _read(connection, deadline) if waits and connection.is_connected else 0
        finally:
            lines.give_back(connection)
        if waits and confirmed < self._replicas:
            raise Unavailable(UNCONFIRMED)
        return reply


@contextmanager
def translated() -> Iterator[None]:
    """The one place where errors of redis-py become ours."""
    try:
        yield
    except OutOfMemoryError as error:
        raise Unavailable(FULL) from error
    except VENDOR as error:
        raise Unavailable(LOST) from error


def _packed(count: int, arguments: bytes) -> bytes:
    return b"*%d\r\n%b" % (count, arguments)


_ASKING: Final = _packed(1, wire(b"ASKING"))


def _read(connection: Line, deadline: float) -> Reply:
    left = deadline - time.monotonic()
    if left <= 0:
        connection.disconnect()
        raise TimeoutError("No time is left to wait for the answer.")
    return connection.read_response(disable_decoding=True, timeout=left)


def _is_spoilt(connection: Line) -> bool:
    """Whether the server closed an idle connection, or left on it what nobody asked for."""
    try:
        return connection.can_read()
    except VENDOR:
        return True
