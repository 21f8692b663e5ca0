# SPDX-License-Identifier: Apache-2.0
"""The names of queues that messages came to, as scripts publish them, told to whoever waits in this process."""

import contextlib
import struct
import threading
from collections.abc import Callable
from typing import Final

from redis.exceptions import ConnectionError

from zq.model import QueueRef
from zq.storage.redis import layout
from zq.storage.redis.layout import wire
from zq.storage.redis.lines import Line
from zq.storage.redis.port import Network
from zq.storage.redis.subscriber import Subscriber

SUBSCRIBE: Final = b"*2\r\n" + wire(b"SUBSCRIBE", layout.READY)
MESSAGE: Final = b"*3\r\n" + wire(b"message", layout.READY)
PATIENCE: Final = 1.0
"""Seconds that whoever makes a listener waits at most until it hears."""
PAUSE: Final = 0.003
"""Seconds: each time that this thread wakes up costs a post 50 us."""


class Listener(Subscriber):
    """Tells ``hear``, which may be replaced, of queues until it is closed.

    What is published while there is no connection is lost.
    """

    def __init__(self, network: Network, hear: Callable[[QueueRef], None]) -> None:
        super().__init__("zq-redis-listener", PAUSE)
        self._network, self.hear = network, hear
        self._hears = threading.Event()
        self.start()
        self._hears.wait(PATIENCE)

    def line(self) -> Line:
        return self._network.own_line()

    def greeting(self) -> bytes:
        return SUBSCRIBE

    def outgoing(self) -> bytes:
        return b""

    def heard(self, read: bytes) -> bytes:
        if not self._hears.is_set() and read.startswith(b"-"):
            raise ConnectionError(read.decode(errors="replace"))
        self._hears.set()
        names, rest = heard(read)
        for name in filter(None, names):
            with contextlib.suppress(struct.error, UnicodeDecodeError):  # others may publish here what they like
                self.hear(layout.queue_of(name))
        return rest


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
