# SPDX-License-Identifier: Apache-2.0
"""The way to Redis: one command, one round trip, within one bounded time.

Commands go over connections of redis-py, past its client object, which would cost as much as the command itself.
Nothing is ever sent twice, unless the server said that it did nothing with it: a command whose answer is lost
may have worked, and only the caller knows whether it may be repeated.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

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
Command = Sequence[bytes]
"""Name and arguments."""
ASKING: Final = [(b"ASKING",)]
# Questions in one round trip.
TOGETHER: Final = 500
# How often a command follows a key that moved to another server of a cluster.
MOVES: Final = 3
# Seconds before a command that a server has put off is sent again, at first and at most.
FIRST_PAUSE: Final = 0.001
LONGEST_PAUSE: Final = 0.05
FULL: Final = "The store is full. Messages can be taken from it, but none added."
ALONE: Final = "Too few replicas of the store are connected, so it takes no changes. Nothing was changed."
MOVING: Final = "The store's cluster is moving the project to another server. Nothing was changed. Try again later."
DOUBTFUL: Final = "The store's master was being replaced meanwhile. The change may have happened."
UNCONFIRMED: Final = "Too few replicas of the store confirmed the change in time. It may have happened."


class Question(NamedTuple):
    """A command that only reads, or such a script on ``keys``, for ``each``; ``key`` tells where."""

    key: bytes
    arguments: Sequence[bytes]
    script: Script | None = None
    keys: Block = ()

    def command(self, known: bool) -> Command:
        """Return the command for a server that knows the script, or does not."""
        if self.script is None:
            return self.arguments
        return _call(self.script.call if known else self.script.load, self.keys, self.arguments)


class Client:
    """Runs scripts and commands. Every method raises ``Unavailable`` within ``timeout`` seconds, and nothing else."""

    def __init__(self, network: Network, timeout: float, wait_replicas: int = 0) -> None:
        self.network = network
        self._timeout = timeout
        self._wait = b"WAIT", b"%d" % wait_replicas, b"%d" % (timeout * 500)
        self._replicas = wait_replicas

    def run(self, script: Script, keys: Block, *arguments: bytes) -> Reply:
        """Run a script on keys of one slot."""
        with translated():
            try:
                return self._ask(keys[0], _call(script.call, keys, arguments), script.confirmed)
            except NoScriptError:
                return self._ask(keys[0], _call(script.load, keys, arguments), script.confirmed)

    def command(self, key: bytes, *arguments: bytes) -> Reply:
        """A command that only reads; ``key`` tells where."""
        with translated():
            return self._ask(key, arguments, False)

    def try_channel(self, channel: bytes) -> None:
        """Subscribe to a sharded channel, and no more."""
        with translated(), PubSub(self.network.pool(channel)) as pubsub:
            pubsub.ssubscribe(channel)
            pubsub.get_message(timeout=self._timeout)

    def each(self, asked: Sequence[Question]) -> list[Reply]:
        """Return the answers to the questions, in order. One round trip to a server has up to ``TOGETHER``."""
        with translated():
            return _retried(partial(self._each, asked), time.monotonic() + self._timeout)

    def _each(self, asked: Sequence[Question], deadline: float) -> list[Reply]:
        replies: list[Reply] = [None] * len(asked)
        for pool, places in self._servers([question.key for question in asked]).values():
            for start in range(0, len(places), TOGETHER):
                part = places[start : start + TOGETHER]
                answers = self._exchange_all(pool, [asked[at] for at in part], deadline)
                for at, reply in zip(part, answers, strict=True):
                    replies[at] = reply
        return replies

    def one_of_each(self, keys: Sequence[bytes]) -> list[bytes]:
        """Of the keys one for each server that has any."""
        with translated():
            return [keys[places[0]] for _, places in self._servers(keys).values()]

    def close(self) -> None:
        self.network.close()

    def _servers(self, keys: Sequence[bytes]) -> dict[int, tuple[Pool, list[int]]]:
        """The servers that have the keys, and the places of those that they have."""
        servers: dict[int, tuple[Pool, list[int]]] = {}
        for at, key in enumerate(keys):
            pool = self.network.pool(key)
            servers.setdefault(id(pool), (pool, []))[1].append(at)
        return servers

    def _exchange_all(self, pool: Pool, questions: Sequence[Question], deadline: float) -> list[Reply]:
        replies: list[Reply] = []
        failures: list[RedisError] = []
        connection = pool.get_connection()
        try:
            seen: set[Script | None] = set()
            out = []
            for question in questions:
                # The first of a script brings it along: the server may not know it.
                out.append(question.command(question.script in seen))
                seen.add(question.script)
            connection.send_packed_command(connection.pack_commands(out), check_health=False)
            for _ in questions:
                try:
                    replies.append(self._read(connection, deadline))
                except ResponseError as error:  # all answers are read, so that the connection stands
                    failures.append(error)
        finally:
            pool.release(connection)
        if failures:
            self.network.doubt()
            raise failures[0]
        return replies

    def _ask(self, key: bytes, command: Command, confirm: bool) -> Reply:
        try:
            return _retried(partial(self._follow, key, command, confirm), time.monotonic() + self._timeout)
        except (ConnectionError, TimeoutError, ClusterError, RedisClusterException, ReadOnlyError):
            self.network.doubt()
            raise

    def _follow(self, key: bytes, command: Command, confirm: bool, deadline: float) -> Reply:
        """Return the answer of the server that has the key, wherever it moved to."""
        pool, asking = self.network.pool(key), False
        for _ in range(MOVES):
            try:
                return self._exchange(pool, command, confirm, asking, deadline)
            except MovedError:
                self.network.relearn()
                pool, asking = self.network.pool(key), False
            except AskError as error:
                pool, asking = self.network.asked(error), True
        raise ConnectionError("The key moves too often.")

    def _exchange(self, pool: Pool, command: Command, confirm: bool, asking: bool, deadline: float) -> Reply:
        connection = pool.get_connection()
        try:
            waits = confirm and self._replicas > 0
            out = [*(ASKING if asking else ()), command, *([self._wait] if waits else ())]
            connection.send_packed_command(connection.pack_commands(out), check_health=False)
            if asking:
                self._read(connection, deadline)
            try:
                reply = self._read(connection, deadline)
            finally:
                confirmed = self._read(connection, deadline) if waits and connection.is_connected else 0
        finally:
            pool.release(connection)
        if confirm and not self.network.still(pool):
            raise Unavailable(DOUBTFUL)
        if waits and confirmed < self._replicas:
            raise Unavailable(UNCONFIRMED)
        return reply

    def _read(self, connection: Any, deadline: float) -> Reply:
        """The next answer. It mostly comes within the connection's own timeout, and to name another one takes two
        system calls: so that is done only afterwards."""
        with suppress(TimeoutError):
            if time.monotonic() + self._timeout / 4 < deadline:
                return _read_once(connection)
        left = deadline - time.monotonic()
        if left <= 0:
            connection.disconnect()
            raise TimeoutError("No time is left to wait for the answer.")
        return connection.read_response(disable_decoding=True, timeout=left)


def _retried(ask: Callable[[float], T], deadline: float) -> T:
    """Return the answer to a request, which is repeated until the deadline while a slot of the cluster moves.

    A server that answers so has done nothing: some of a script's keys are missing, or already at the other server.
    """
    pause = FIRST_PAUSE
    while True:
        try:
            return ask(deadline)
        except (TryAgainError, MovedError, AskError):
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _read_once(connection: Any) -> Reply:
    """The same; after a timeout the connection stands, as it does after a refusal."""
    try:
        return connection.read_response(disable_decoding=True, disconnect_on_error=False)
    except (TimeoutError, ResponseError):
        raise
    except BaseException:
        connection.disconnect()
        raise


@contextmanager
def translated() -> Iterator[None]:
    """Raise ``Unavailable`` in place of redis-py's errors."""
    try:
        yield
    except TryAgainError as error:
        raise Unavailable(MOVING) from error
    except OutOfMemoryError as error:
        raise Unavailable(FULL) from error
    except VENDOR as error:
        raise Unavailable(ALONE if lacks_replicas(error) else None) from error


def lacks_replicas(error: BaseException | None) -> bool:
    """Whether a server refuses changes by its option min-replicas-to-write."""
    return isinstance(error, ResponseError) and str(error).startswith("NOREPLICAS")


def _call(front: tuple[bytes, bytes], keys: Block, arguments: Sequence[bytes]) -> Command:
    return (*front, b"%d" % len(keys), *keys, *arguments)
