# SPDX-License-Identifier: Apache-2.0
"""The Redis client, which sends one command per round trip and limits each operation by a deadline.

Commands use redis-py's connections directly, because its client object costs as much time as the command itself. A
command is repeated only if the server reports that it had no effect. If the reply is lost, the command may have been
executed, and only the caller knows whether a repetition is safe.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from hiredis import pack_command
from redis.client import PubSub
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
    TryAgainError,
)

from zq.errors import Unavailable
from zq.storage.redis.connections import VENDOR, Pool, Reply
from zq.storage.redis.layout import Block
from zq.storage.redis.network import Network
from zq.storage.redis.scripts import Script

T = TypeVar("T")
Command = tuple[bytes, ...]
"""A command's name and arguments."""
ASKING_COMMANDS: Final = [(b"ASKING",)]
# Errors after which the client repeats a command, because a cluster slot is moving.
RETRIED_ERRORS: Final = (TryAgainError, MovedError, AskError)
# Errors after which keys may be on other servers.
UNREACHABLE_ERRORS: Final = (ConnectionError, TimeoutError, ClusterError, RedisClusterException, ReadOnlyError)
# Maximum number of commands per server and round trip.
MAX_PIPELINED_COMMANDS: Final = 500
# Maximum number of redirects that a command follows in a cluster.
MAX_REDIRECTS: Final = 3
# First and maximum pause in seconds before a deferred command is repeated.
FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05
# Number of keys that one command of a search examines.
SCAN_COUNT: Final = 1000
STORE_FULL_ERROR: Final = (
    "The store is full: its Redis server has reached maxmemory. Consumers can still claim messages, but nothing can be "
    "added."
)
TOO_FEW_REPLICAS_ERROR: Final = (
    "Too few replicas of the store are connected, so it rejects changes. Nothing was changed."
)
SLOT_MOVING_ERROR: Final = (
    "The store's cluster is moving the project to another server. Nothing was changed. Try again later."
)
FAILOVER_ERROR: Final = "The store's master was replaced during the request. The change may have been made."
UNCONFIRMED_ERROR: Final = "Too few replicas of the store confirmed the change in time. It may have been made."


class ReadRequest(NamedTuple):
    """A read-only command or script for ``Client.read_pipelined``. ``key`` selects the server."""

    key: bytes
    arguments: Command
    script: Script | None = None
    keys: Block = ()

    def command(self, known: bool) -> Command:
        """Return the command to send.

        If the request is a script and the server has not loaded it (``known`` is false), the command contains the
        source.
        """
        if self.script is None:
            return self.arguments
        return _call(self.script.call if known else self.script.load, self.keys, self.arguments)


class Client:
    """A client that runs Lua scripts and commands on the servers of a store.

    Each method raises ``Unavailable``, and no other error, if the server rejects the command or does not reply within
    ``timeout`` seconds.
    """

    def __init__(self, network: Network, timeout: float, wait_replicas: int = 0) -> None:
        self.network = network
        self._timeout = timeout
        self._wait = b"WAIT", b"%d" % wait_replicas, b"%d" % (timeout * 500)
        self._replicas = wait_replicas

    def run(self, script: Script, keys: Block, *arguments: bytes) -> Reply:
        """Run a script and return its reply. All keys must be in one cluster slot."""
        try:
            return self._ask(keys[0], _call(script.call, keys, arguments), script.confirmed)
        except NoScriptError:
            return self._ask(keys[0], _call(script.load, keys, arguments), script.confirmed)

    def command(self, key: bytes, *arguments: bytes) -> Reply:
        """Run a command on the server of ``key`` and return the reply. Do not wait for replicas."""
        return self._ask(key, arguments, False)

    def try_channel(self, channel: bytes) -> None:
        """Raise ``Unavailable`` if subscribing to the sharded channel fails."""
        with translate_errors(), PubSub(self.network.pool(channel)) as pubsub:
            pubsub.ssubscribe(channel)
            pubsub.get_message(timeout=self._timeout)

    def read_pipelined(self, requests: Sequence[ReadRequest]) -> list[Reply]:
        """Send read-only commands and scripts, and return their replies in the same order."""
        with translate_errors():
            deadline = time.monotonic() + self._timeout
            try:
                return self._read_pipelined(requests, deadline)
            except RETRIED_ERRORS:
                return _repeat(partial(self._read_pipelined, requests), deadline)

    def _read_pipelined(self, requests: Sequence[ReadRequest], deadline: float) -> list[Reply]:
        replies: list[Reply] = [None] * len(requests)
        for pool, places in self._servers([request.key for request in requests]).values():
            for start in range(0, len(places), MAX_PIPELINED_COMMANDS):
                part = places[start : start + MAX_PIPELINED_COMMANDS]
                answers = self._exchange_all(pool, [requests[at] for at in part], deadline)
                for at, reply in zip(part, answers, strict=True):
                    replies[at] = reply
        return replies

    def pick_per_server(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return one of ``keys`` for each server that has any of them."""
        with translate_errors():
            return [keys[places[0]] for _, places in self._servers(keys).values()]

    def scan(self, pattern: bytes) -> Iterator[bytes]:
        """Yield the keys on all servers that match the pattern. A key may be repeated."""
        with translate_errors():
            for pool in self.network.pools():
                cursor = b"0"
                while True:
                    command = b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % SCAN_COUNT
                    cursor, names = self._exchange(pool, command, False, False, time.monotonic() + self._timeout)
                    yield from names
                    if int(cursor) == 0:
                        break

    def close(self) -> None:
        self.network.close()

    def _servers(self, keys: Sequence[bytes]) -> dict[int, tuple[Pool, list[int]]]:
        servers: dict[int, tuple[Pool, list[int]]] = {}
        for at, key in enumerate(keys):
            pool = self.network.pool(key)
            servers.setdefault(id(pool), (pool, []))[1].append(at)
        return servers

    def _exchange_all(self, pool: Pool, requests: Sequence[ReadRequest], deadline: float) -> list[Reply]:
        replies: list[Reply] = []
        failures: list[RedisError] = []
        connection = pool.get_connection()
        try:
            seen: set[Script | None] = set()
            out = []
            for request in requests:
                # The first use of a script sends its source, because the server may not know it.
                out.append(request.command(request.script in seen))
                seen.add(request.script)
            _send(connection, out)
            for _ in requests:
                try:
                    replies.append(self._read(connection, deadline))
                except ResponseError as error:  # all replies are read, so that the connection stays usable
                    failures.append(error)
        finally:
            pool.release(connection)
        if failures:
            self.network.relearn_later()
            raise failures[0]
        return replies

    def _ask(self, key: bytes, command: Command, confirm: bool) -> Reply:
        deadline = time.monotonic() + self._timeout
        try:
            try:
                return self._follow(key, command, confirm, deadline)
            except RETRIED_ERRORS:
                return _repeat(partial(self._follow, key, command, confirm), deadline)
        except NoScriptError:
            raise
        except VENDOR as error:
            if isinstance(error, UNREACHABLE_ERRORS):
                self.network.relearn_later()
            raise _unavailable(error) from error

    def _follow(self, key: bytes, command: Command, confirm: bool, deadline: float) -> Reply:
        pool, asking = self.network.pool(key), False
        for _ in range(MAX_REDIRECTS):
            try:
                return self._exchange(pool, command, confirm, asking, deadline)
            except MovedError:
                self.network.relearn()
                pool, asking = self.network.pool(key), False
            except AskError as error:
                pool, asking = self.network.redirected_pool(error), True
        raise ConnectionError("The servers redirected the command too many times.")

    def _exchange(self, pool: Pool, command: Command, confirm: bool, asking: bool, deadline: float) -> Reply:
        connection = pool.get_connection()
        try:
            waits = confirm and self._replicas > 0
            out = [*(ASKING_COMMANDS if asking else ()), command, *([self._wait] if waits else ())]
            _send(connection, out)
            if asking:
                self._read(connection, deadline)
            try:
                reply = self._read(connection, deadline)
            finally:
                confirmed = self._read(connection, deadline) if waits and connection.is_connected else 0
        finally:
            pool.release(connection)
        if confirm and not self.network.is_current(pool):
            raise Unavailable(FAILOVER_ERROR)
        if waits and confirmed < self._replicas:
            raise Unavailable(UNCONFIRMED_ERROR)
        return reply

    def _read(self, connection: Any, deadline: float) -> Reply:
        """Read the next reply. Raises ``TimeoutError`` if there is no reply by the monotonic time ``deadline``.

        A change of the connection's timeout costs two system calls. The first attempt therefore uses the connection's
        own timeout, within which a reply usually arrives.
        """
        if time.monotonic() + self._timeout / 4 < deadline:
            try:
                return _read_once(connection)
            except TimeoutError:
                pass
        left = deadline - time.monotonic()
        if left <= 0:
            connection.disconnect()
            raise TimeoutError("The deadline has passed.")
        return connection.read_response(disable_decoding=True, timeout=left)


def _repeat(ask: Callable[[float], T], deadline: float) -> T:
    """Repeat a request while its cluster slot moves to another server, and return the result.

    ``ask`` sends the request. When the monotonic time ``deadline`` passes, raise the last error. The repetition is
    safe, because a server rejects a request if some of the request's keys have moved to another server.
    """
    pause = FIRST_PAUSE
    while True:
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        try:
            return ask(deadline)
        except RETRIED_ERRORS:
            if time.monotonic() + pause > deadline:
                raise


def _send(connection: Any, commands: Sequence[Command]) -> None:
    # hiredis packs a command in a quarter of the time that redis-py takes.
    packed = [pack_command(command) for command in commands]  # type: ignore[arg-type]  # the stub has one argument
    connection.send_packed_command(packed, check_health=False)


def _read_once(connection: Any) -> Reply:
    """Read a reply. After a timeout or an error reply, the connection stays open."""
    try:
        return connection.read_response(disable_decoding=True, disconnect_on_error=False)
    except (TimeoutError, ResponseError):
        raise
    except BaseException:
        connection.disconnect()
        raise


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert redis-py's errors to ``Unavailable``; a context manager."""
    try:
        yield
    except VENDOR as error:
        raise _unavailable(error) from error


def _unavailable(error: BaseException) -> Unavailable:
    if isinstance(error, TryAgainError):
        return Unavailable(SLOT_MOVING_ERROR)
    if isinstance(error, OutOfMemoryError):
        return Unavailable(STORE_FULL_ERROR)
    return Unavailable(TOO_FEW_REPLICAS_ERROR if lacks_replicas(error) else None)


def lacks_replicas(error: BaseException | None) -> bool:
    """Return whether the server rejected a change because fewer than min-replicas-to-write replicas are connected."""
    return isinstance(error, ResponseError) and str(error).startswith("NOREPLICAS")


def _call(front: tuple[bytes, bytes], keys: Block, arguments: Sequence[bytes]) -> Command:
    return (*front, b"%d" % len(keys), *keys, *arguments)
