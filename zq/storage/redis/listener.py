# SPDX-License-Identifier: Apache-2.0
"""The names of queues that messages came to, as scripts publish them, told to whoever waits in this process.

One thread with one connection of its own. It reads the socket itself: redis-py takes 13 microseconds for a message, in
each process for each post of any process; this way it is one or two.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

from redis.exceptions import ConnectionError

from zq.model import QueueRef
from zq.storage.redis import layout
from zq.storage.redis.layout import wire
from zq.storage.redis.lines import VENDOR, Line
from zq.storage.redis.network import socket_of
from zq.storage.redis.port import Network

SUBSCRIBE: Final = b"*2\r\n" + wire(b"SUBSCRIBE", layout.READY)
PING: Final = b"*1\r\n" + wire(b"PING")
MESSAGE: Final = b"*3\r\n" + wire(b"message", layout.READY)
QUIET: Final = 5.0
"""Seconds of silence after which the server is asked whether it is there, and again until it is given up."""
PATIENCE: Final = 1.0
"""Seconds that whoever makes a listener waits at most until it hears."""
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
"""Seconds between attempts to connect; they double."""
CHUNK: Final = 65536
PAUSE: Final = 0.003
"""Seconds after a reading in which nothing is read: each time that this thread wakes up costs a post 50 us."""


class Listener:
    """Tells ``hear``, which may be replaced, of queues until it is closed.

    What is published while there is no connection is lost.
    """

    def __init__(self, network: Network, hear: Callable[[QueueRef], None]) -> None:
        self._network, self.hear = network, hear
        self._closed, self._hears = threading.Event(), threading.Event()
        self._line: Line | None = None
        self._thread = threading.Thread(target=self._run, name="zq-redis-listener", daemon=True)
        self._thread.start()
        self._hears.wait(PATIENCE)

    def close(self) -> None:
        self._closed.set()
        if self._line is not None:
            self._line.disconnect()
        self._thread.join(1)

    def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._closed.is_set():
            with contextlib.suppress(*VENDOR):
                line = self._line = self._network.own_line()
                try:
                    line.connect()
                    line.send_packed_command([SUBSCRIBE], check_health=False)
                    wait = FIRST_WAIT
                    self._follow(socket_of(line))
                finally:
                    line.disconnect()
            self._closed.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _follow(self, line: socket.socket) -> None:
        line.settimeout(QUIET)
        rest, asked = b"", False
        while not self._closed.is_set():
            try:
                read = line.recv(CHUNK)
            except TimeoutError:
                if asked:
                    raise
                asked = True
                line.sendall(PING)
                continue
            if not read:
                raise ConnectionError("The server has closed the connection.")
            asked = False
            self._hears.set()
            names, rest = heard(rest + read)
            for name in filter(None, names):
                with contextlib.suppress(struct.error, UnicodeDecodeError):  # others may publish here what they like
                    self.hear(layout.queue_of(name))
            self._closed.wait(PAUSE)


def heard(read: bytes) -> tuple[set[bytes], bytes]:
    """The full names that were published, and the end that may be part of a message.

    What else the server says, at the start and to a ping, holds nothing that looks like a message.
    """
    names: set[bytes] = set()
    at = 0
    while (begin := read.find(MESSAGE, at)) >= 0:
        digits = begin + len(MESSAGE) + 1
        end = read.find(b"\r\n", digits)
        if end < 0:
            return names, read[begin:]
        following = end + 2 + int(read[digits:end]) + 2
        if following > len(read):
            return names, read[begin:]
        names.add(read[end + 2 : following - 2])
        at = following
    return names, read[max(at, len(read) - len(MESSAGE)) :]
