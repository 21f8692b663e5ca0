# SPDX-License-Identifier: Apache-2.0
"""Clients that are slow, silent or do not read: each occupies a connection and no CPU."""

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

from tests.servers import CLIENT, PROJECT, ZqServer

IDENTITY = f"Client-ID: {CLIENT}\r\nX-Project-ID: {PROJECT}\r\n"
HALF_HEAD = b"GET /v2/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Strange: "
HALF_BODY = (
    f"POST /v2/queues/slow/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}Content-Length: 1000\r\n\r\n{{".encode()
)


def page_of(queue: str) -> bytes:
    """Return a request for the largest page of a queue."""
    return f"GET /v2/queues/{queue}/messages?limit=20&echo=true HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}\r\n".encode()


class SlowClients:
    """A number of connections of each kind, which are reopened when the server closes them."""

    def __init__(self, server: ZqServer, **kinds: tuple[int, bytes]) -> None:
        self._address = "127.0.0.1", server.port
        self._kinds = kinds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._open: dict[str, list[socket.socket]] = {kind: [] for kind in kinds}
        self.opened = 0

    def __enter__(self) -> Self:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < 4096:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        self._fill()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for connections in self._open.values():
            for connection in connections:
                connection.close()

    def _go_on(self) -> None:
        while not self._over.wait(0.5):
            self._fill()

    def _fill(self) -> None:
        for kind, (count, sent) in self._kinds.items():
            kept = [connection for connection in self._open[kind] if not _ended(connection)]
            while len(kept) < count and not self._over.is_set():
                with contextlib.suppress(OSError):
                    kept.append(self._connect(sent))
            self._open[kind] = kept

    def _connect(self, sent: bytes) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(self._address)
        if sent:
            connection.sendall(sent)
        self.opened += 1
        return connection


def _ended(connection: socket.socket) -> bool:
    """Return whether the server has closed the connection, and close it then. Leave received bytes unread."""
    connection.setblocking(False)
    try:
        ended = connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        ended = True
    if ended:
        connection.close()
    return ended


def seconds(within: float) -> Iterator[float]:
    """Yield the monotonic time about once a second for ``within`` seconds."""
    end = time.monotonic() + within
    while (now := time.monotonic()) < end:
        yield now
        time.sleep(max(0.0, now + 1 - time.monotonic()))
