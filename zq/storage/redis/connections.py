# SPDX-License-Identifier: Apache-2.0
"""Pools of connections of redis-py, one for each server.

A verb has ``timeout`` seconds: a quarter each for a free connection, for the TCP connection and for the handshake's
answers; whatever is left of the whole is for its own answer. redis-py's own repeats are off.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from queue import Empty
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.connection import BlockingConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError, RedisClusterException, RedisError
from redis.retry import Retry

from zq.storage.redis.address import Address, Host

# Connections to one server.
CONNECTIONS: Final = 256
# Seconds after its release within which a connection is used again without a look: that takes a system call.
FRESH: Final = 0.02
RETIRED: Final = "Another server is the master meanwhile, or is about to be."
# Everything that redis-py raises on purpose.
VENDOR: Final = (RedisError, RedisClusterException, OSError)

Reply = Any


class Pool(BlockingConnectionPool):
    """Connections to one server. A retired pool gives none out any more.

    ``retire`` closes idle connections at once and the others when they are released. redis-py's ``disconnect`` would
    close them under threads that use them, which is no way to end a TLS connection.

    redis-py's queue holds what was never opened or stands no more; connections that stand wait beside it, without a
    lock and the last one first: by that queue a small command would cost a tenth more.
    """

    def __init__(self, **options: Any) -> None:
        self.retired = False
        self._idle: list[tuple[Any, float]] = []
        """Connections, and when each was released."""
        self._waiting = 0
        self._count_lock = threading.Lock()
        super().__init__(**options)

    def get_connection(self, command_name: str | None = None, *_keys: Any, **_options: Any) -> Any:
        """A connection that stands: one that the server has closed meanwhile is opened anew before anything is sent."""
        connection = self._take()
        if connection is None:
            with self._counted():
                # One may have been released before this thread was counted among those that wait.
                connection = self._take() or super().get_connection()
        if self.retired:
            self.release(connection)
            raise ConnectionError(RETIRED)
        return connection

    def release(self, connection: Any) -> None:
        self._idle.append((connection, time.monotonic()))
        if self._waiting:
            self._requeue()
        if self.retired:
            self.retire()

    def retire(self) -> None:
        """Give out no connection any more. Verbs under way still get their answers."""
        self.retired = True
        while self._requeue():
            pass
        with contextlib.suppress(Empty):
            while True:
                connection = self.pool.get_nowait()
                if connection is not None:
                    connection.disconnect()

    def _take(self) -> Any:
        """An idle connection that stands, or None."""
        with contextlib.suppress(IndexError):
            connection, released = self._idle.pop()
            if _stands(connection, released):
                return connection
            self.pool.put_nowait(connection)
        return None

    def _requeue(self) -> bool:
        """Give an idle connection to redis-py's queue, for one that waits there; False: none is idle."""
        with contextlib.suppress(IndexError):
            self.pool.put_nowait(self._idle.pop()[0])
            return True
        return False

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count this thread among those that may wait for a connection."""
        with self._count_lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._waiting -= 1


class TimedByKernel(socket.socket):
    """A socket whose time limits are the kernel's.

    Python keeps its own by asking, before each call, whether the call would wait. That is a second system call, and
    Python's lock given up a second time, for which a busy process pays with a change of threads.
    """

    def settimeout(self, value: float | None) -> None:
        super().settimeout(0.0 if value == 0 else None)
        whole, part = divmod(value or 0.0, 1)
        limit = struct.pack("ll", int(whole), int(part * 1e6))
        for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self.setsockopt(socket.SOL_SOCKET, which, limit)

    def recv_into(self, *arguments: Any) -> int:
        try:
            return super().recv_into(*arguments)
        except BlockingIOError as error:
            raise TimeoutError from error

    def sendall(self, *arguments: Any) -> None:
        try:
            super().sendall(*arguments)
        except BlockingIOError as error:
            raise TimeoutError from error


class PlainConnection(Connection):
    """A connection without TLS."""

    def _connect(self) -> socket.socket:
        return _timed_by_kernel(super()._connect(), self.socket_timeout)


class UnixConnection(UnixDomainSocketConnection):
    """A connection to a Unix socket."""

    def _connect(self) -> socket.socket:
        return _timed_by_kernel(super()._connect(), self.socket_timeout)


def _timed_by_kernel(connected: socket.socket, timeout: float | None) -> socket.socket:
    timed = TimedByKernel(fileno=connected.detach())
    timed.settimeout(timeout)
    return timed


def _stands(connection: Any, released: float) -> bool:
    """Whether the connection is open, and the server has left nothing on it that nobody asked for."""
    try:
        return connection.is_connected and (time.monotonic() - released < FRESH or not connection.can_read())
    except VENDOR:
        return False


def connection_options(timeout: float) -> dict[str, Any]:
    """What all connections have in common."""
    return {
        "socket_timeout": timeout / 4,
        "socket_connect_timeout": timeout / 4,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
        "protocol": 2,
        "client_name": "zq",
    }


def pool_to(address: Address, host: Host | None, options: dict[str, Any]) -> Pool:
    """A pool to a server of an address, None for its Unix socket. Nothing is sent yet."""
    limits = {"max_connections": CONNECTIONS, "timeout": options["socket_timeout"]}
    if host is None:
        path = options | {"path": address.path}
        del path["socket_connect_timeout"]
        return Pool(connection_class=UnixConnection, **limits, **path)
    kind = PlainConnection if address.tls is None else SSLConnection
    return Pool(connection_class=kind, **limits, **options, **(address.tls or {}), host=host[0], port=host[1])
