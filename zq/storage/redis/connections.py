# SPDX-License-Identifier: Apache-2.0
"""Connection pools of redis-py, one per server.

An operation must complete within ``timeout`` seconds. Each of these steps may take a quarter of this time: waiting for
a free connection, connecting over TCP, and the handshake. The reply may take all of the remaining time. The driver
disables redis-py's own retries.
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

# Maximum number of connections per server.
CONNECTIONS: Final = 256
# Seconds for which a released connection is reused without a check, because the check is a system call.
FRESH_SECONDS: Final = 0.02
RETIRED: Final = "The server is no longer the master, or is being replaced."
# All errors that redis-py raises deliberately.
VENDOR: Final = (RedisError, RedisClusterException, OSError)

Reply = Any


class Pool(BlockingConnectionPool):
    """The connections to one server. After ``retire``, the pool provides no connections.

    ``retire`` closes busy connections only when they are released, because redis-py's ``disconnect`` breaks TLS
    connections that a thread uses.
    """

    def __init__(self, **options: Any) -> None:
        self.retired = False
        # Idle connections are in a stack without a lock, because redis-py's queue makes a small command 10 % slower.
        # The queue holds closed connections, placeholders for unopened connections, and connections that were released
        # while a thread was waiting.
        self._idle: list[tuple[Any, float]] = []
        """Idle connections with their release times."""
        self._waiting = 0
        self._count_lock = threading.Lock()
        super().__init__(**options)

    def get_connection(self, command_name: str | None = None, *_keys: Any, **_options: Any) -> Any:
        """Return an open connection. Reopen a connection that the server has closed."""
        connection = self._take()
        if connection is None:
            with self._counted():
                # A connection may have been released before this thread was counted as waiting.
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
        """Stop providing connections. Operations in progress can still read their replies."""
        self.retired = True
        while self._requeue():
            pass
        with contextlib.suppress(Empty):
            while True:
                connection = self.pool.get_nowait()
                if connection is not None:
                    connection.disconnect()

    def _take(self) -> Any:
        try:
            connection, released = self._idle.pop()
        except IndexError:
            return None
        if _is_usable(connection, released):
            return connection
        self.pool.put_nowait(connection)
        return None

    def _requeue(self) -> bool:
        with contextlib.suppress(IndexError):
            self.pool.put_nowait(self._idle.pop()[0])
            return True
        return False

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._count_lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._count_lock:
                self._waiting -= 1


class KernelTimeoutSocket(socket.socket):
    """A socket with kernel timeouts (``SO_RCVTIMEO`` and ``SO_SNDTIMEO``).

    Python implements timeouts by polling before each call. This costs a second system call and a second release of the
    interpreter lock, which means a thread switch in a busy process.
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
    """A TCP connection without TLS, with kernel timeouts."""

    def _connect(self) -> socket.socket:
        return _timed_by_kernel(super()._connect(), self.socket_timeout)


class UnixConnection(UnixDomainSocketConnection):
    """A Unix socket connection, with kernel timeouts."""

    def _connect(self) -> socket.socket:
        return _timed_by_kernel(super()._connect(), self.socket_timeout)


def _timed_by_kernel(connected: socket.socket, timeout: float | None) -> socket.socket:
    timed = KernelTimeoutSocket(fileno=connected.detach())
    timed.settimeout(timeout)
    return timed


def _is_usable(connection: Any, released: float) -> bool:
    """Return whether the connection is open and has no unexpected input.

    Do not check for input if the connection was released less than ``FRESH_SECONDS`` ago. ``released`` is the monotonic
    time of the release.
    """
    try:
        return connection.is_connected and (time.monotonic() - released < FRESH_SECONDS or not connection.can_read())
    except VENDOR:
        return False


def connection_options(timeout: float) -> dict[str, Any]:
    """Return redis-py's options for all connections. ``timeout`` is the time limit of an operation in seconds."""
    return {
        "socket_timeout": timeout / 4,
        "socket_connect_timeout": timeout / 4,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
        "protocol": 2,
        "client_name": "zq",
    }


def pool_to(address: Address, host: Host | None, options: dict[str, Any]) -> Pool:
    """Return a connection pool for one server. This function does not connect to the server.

    If ``host`` is None, the pool connects to the Unix socket of ``address``.
    """
    limits = {"max_connections": CONNECTIONS, "timeout": options["socket_timeout"]}
    if host is None:
        path = options | {"path": address.path}
        del path["socket_connect_timeout"]
        return Pool(connection_class=UnixConnection, **limits, **path)
    kind = PlainConnection if address.tls is None else SSLConnection
    return Pool(connection_class=kind, **limits, **options, **(address.tls or {}), host=host[0], port=host[1])
