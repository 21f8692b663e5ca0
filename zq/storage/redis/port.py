# SPDX-License-Identifier: Apache-2.0
"""The way to Redis: one command, one round trip, within one bounded time.

Commands are packed here and sent over connections of redis-py, past its client object, which would cost more than the
command. Nothing is ever sent twice, unless the server said that it did nothing with it: a command whose answer is lost
may have worked, and only the caller knows whether it may be repeated.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from redis.exceptions import (
    AskError,
    ClusterError,
    ConnectionError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TimeoutError,
)

from zq.errors import Unavailable
from zq.storage.redis.layout import wire
from zq.storage.redis.lines import VENDOR, Line, Lines, Reply
from zq.storage.redis.scripts import Script

TOGETHER: Final = 500
"""Questions in one round trip."""
MOVES: Final = 3
"""How often a command follows a key that moved to another server of a cluster."""
LOST: Final = "The store does not answer. Try again later."
FULL: Final = "The store is full. Messages can be taken from it, but none added."
ALONE: Final = "Too few replicas of the store are connected, so it takes no changes. Nothing was changed."
DOUBTFUL: Final = "The store's master was being replaced meanwhile. The change may have happened."
UNCONFIRMED: Final = "Too few replicas of the store confirmed the change in time. It may have happened."


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

    def still(self, lines: Lines) -> bool:
        """Whether what was written over these connections is with the server that others write to. May raise
        ``RedisError`` if that cannot be found out in time."""
        ...

    def asked(self, error: AskError) -> Lines:
        """The server that a migrating key was said to be on."""
        ...

    def close(self) -> None: ...


class Question(NamedTuple):
    """A command that only reads, or such a script with so many ``keys``, for ``each``; ``key`` tells where."""

    key: bytes
    arguments: Sequence[bytes]
    script: Script | None = None
    keys: int = 0
    names: bytes = b""
    """The script's keys on the wire."""

    def packed(self, known: bool) -> bytes:
        if self.script is None:
            return _packed(len(self.arguments), wire(*self.arguments))
        return _call(self.script.call if known else self.script.load, self.keys, self.names, self.arguments)


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
        with translated():
            try:
                return self._ask(anchor, _call(script.call, keys, packed, arguments), script.confirmed)
            except NoScriptError:
                return self._ask(anchor, _call(script.load, keys, packed, arguments), script.confirmed)

    def command(self, key: bytes, *arguments: bytes) -> Reply:
        """A command that only reads; ``key`` tells where."""
        with translated():
            return self._ask(key, _packed(len(arguments), wire(*arguments)), False)

    def try_out(self, key: bytes, *arguments: bytes) -> Reply:
        """A command after which its connection is of no use for others: it has one of its own, which is closed."""
        with translated():
            line = self.network.lines(key).own()
            try:
                line.connect()
                line.send_packed_command([_packed(len(arguments), wire(*arguments))], check_health=False)
                return _read(line, time.monotonic() + self._timeout)
            finally:
                line.disconnect()

    def each(self, asked: Sequence[Question]) -> list[Reply]:
        """What each of them answers, in order; of one server ``TOGETHER`` in one round trip."""
        replies: list[Reply] = [None] * len(asked)
        with translated():
            for lines, places in self._servers([question.key for question in asked]).values():
                for start in range(0, len(places), TOGETHER):
                    part = places[start : start + TOGETHER]
                    told = self._exchange_all(lines, [asked[at] for at in part])
                    for at, reply in zip(part, told, strict=True):
                        replies[at] = reply
        return replies

    def one_of_each(self, keys: Sequence[bytes]) -> list[bytes]:
        """Of the keys one for each server that has any."""
        with translated():
            return [keys[places[0]] for _, places in self._servers(keys).values()]

    def close(self) -> None:
        self.network.close()

    def _servers(self, keys: Sequence[bytes]) -> dict[int, tuple[Lines, list[int]]]:
        """The servers that have the keys, and the places of those that they have."""
        servers: dict[int, tuple[Lines, list[int]]] = {}
        for at, key in enumerate(keys):
            lines = self.network.lines(key)
            servers.setdefault(id(lines), (lines, []))[1].append(at)
        return servers

    def _exchange_all(self, lines: Lines, questions: Sequence[Question]) -> list[Reply]:
        replies: list[Reply] = []
        failures: list[RedisError] = []
        deadline = time.monotonic() + self._timeout
        connection = lines.take(self._timeout / 4)
        try:
            seen: set[Script | None] = set()
            out = []
            for question in questions:
                # The first of a script brings it along: the server may not know it.
                out.append(question.packed(question.script in seen))
                seen.add(question.script)
            connection.send_packed_command(out, check_health=False)
            for _ in questions:
                try:
                    replies.append(_read(connection, deadline))
                except ResponseError as error:  # all answers are read, so that the connection stands
                    failures.append(error)
        finally:
            lines.give_back(connection)
        if failures:
            self.network.doubt()
            raise failures[0]
        return replies

    def _ask(self, key: bytes, packed: bytes, confirm: bool) -> Reply:
        try:
            return self._follow(key, packed, confirm, time.monotonic() + self._timeout)
        except (ConnectionError, TimeoutError, ClusterError, RedisClusterException, ReadOnlyError):
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
        if confirm and not self.network.still(lines):
            raise Unavailable(DOUBTFUL)
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
        raise Unavailable(ALONE if lacks_replicas(error) else LOST) from error


def lacks_replicas(error: BaseException | None) -> bool:
    """Whether a server refuses changes by its option min-replicas-to-write."""
    return isinstance(error, ResponseError) and str(error).startswith("NOREPLICAS")


def _call(front: bytes, keys: int, packed: bytes, arguments: Sequence[bytes]) -> bytes:
    rest = b"$%d\r\n%d\r\n%b%b" % (len(str(keys)), keys, packed, wire(*arguments))
    return _packed(3 + keys + len(arguments), front + rest)


def _packed(count: int, arguments: bytes) -> bytes:
    return b"*%d\r\n%b" % (count, arguments)


_ASKING: Final = _packed(1, wire(b"ASKING"))


def _read(connection: Line, deadline: float) -> Reply:
    left = deadline - time.monotonic()
    if left <= 0:
        connection.disconnect()
        raise TimeoutError("No time is left to wait for the answer.")
    return connection.read_response(disable_decoding=True, timeout=left)
