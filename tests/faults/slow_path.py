# SPDX-License-Identifier: Apache-2.0
"""A way to a server on which answers take as long as a test says; what is asked passes at once."""

import contextlib
import queue
import socket
import threading
import time

from tests.servers import Startable


class SlowPath(Startable):
    """Listens on ``port`` and passes everything on to another port of this machine; ``late`` = seconds by which the
    answers are held, in order and as many at a time as come."""

    def __init__(self, target: int, late: float) -> None:
        self.late = late
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def start(self) -> "SlowPath":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def close(self) -> None:
        for connection in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = self._listener.accept()
                answering = socket.create_connection(("127.0.0.1", self._target))
                self._open += [asking, answering]
                held: queue.Queue[tuple[float, bytes]] = queue.Queue()
                for task in (
                    lambda one=asking, other=answering: _pass_on(one, other),
                    lambda one=answering, kept=held: self._hold(one, kept),
                    lambda other=asking, kept=held: _let_go(other, kept),
                ):
                    threading.Thread(target=task, daemon=True).start()

    def _hold(self, answering: socket.socket, held: "queue.Queue[tuple[float, bytes]]") -> None:
        data = b"?"
        while data:
            data = _received(answering)
            held.put((time.monotonic() + self.late, data))


def _pass_on(asking: socket.socket, answering: socket.socket) -> None:
    while data := _received(asking):
        with contextlib.suppress(OSError):
            answering.sendall(data)
    with contextlib.suppress(OSError):
        answering.shutdown(socket.SHUT_WR)


def _let_go(asking: socket.socket, held: "queue.Queue[tuple[float, bytes]]") -> None:
    while True:
        moment, data = held.get()
        time.sleep(max(0.0, moment - time.monotonic()))
        with contextlib.suppress(OSError):
            if not data:
                asking.shutdown(socket.SHUT_RDWR)
                return
            asking.sendall(data)


def _received(connection: socket.socket) -> bytes:
    """b"" at the end, however it comes."""
    with contextlib.suppress(OSError):
        return connection.recv(65536)
    return b""
