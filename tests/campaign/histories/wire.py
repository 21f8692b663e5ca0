# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between a zq server and its store that can break and delay connections."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

CHUNK = 65536
# SO_LINGER with which closing a socket resets the connection.
RESET = struct.pack("ii", 1, 0)


class Wire:
    """A proxy from its ``port`` to a local server's; a context manager."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._delay = 0.0
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> "Wire":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing the socket does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> int:
        """Break every connection, including responses in flight, and return their number; accept new ones."""
        with self._lock:
            ends, self._ends = self._ends, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
        return len(ends) // 2

    @contextlib.contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Delay every response of the store by `seconds`."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._ends |= {near, far}
            threading.Thread(target=self._pass_on, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK):
                if answers and self._delay:
                    time.sleep(self._delay)
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._ends.discard(source)
        source.close()
