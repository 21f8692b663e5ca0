# SPDX-License-Identifier: Apache-2.0
"""Published batches of the followed projects, told as they are published.

The script that appends a batch publishes it too, on the sharded channel of its project. One thread for each server
reads one connection, on which it has subscribed to the channels of the followed projects that are there. XREAD would
not do: in a cluster one command may wait for the streams of one slot only, and it would have to name all streams again
for each batch.
"""

import contextlib
import struct
import threading
from collections import deque
from typing import Final

import msgspec
from redis.exceptions import ConnectionError

from zq.storage.redis import batches
from zq.storage.redis.layout import wire
from zq.storage.redis.lines import Line, Lines
from zq.storage.redis.port import Network, translated
from zq.storage.redis.speech import Part, spoken
from zq.storage.redis.subscriber import Subscriber
from zq.topics import Batch, Listener

PATIENCE: Final = 1.0
"""Seconds that ``follow`` waits at most until the server has heard of it."""
PAUSE: Final = 0.001
"""Seconds: each time that this thread wakes up costs a publisher 50 us."""
SUBSCRIBE, UNSUBSCRIBE = b"SSUBSCRIBE", b"SUNSUBSCRIBE"


class Followed:
    """A followed project. ``hears``: the server has confirmed it. ``late``: nobody waits for that any more."""

    def __init__(self, project: str, reader: "Reader") -> None:
        self.project, self.reader = project, reader
        self.hears = threading.Event()
        self.late = False


class Follower:
    """Tells ``listener`` of the followed projects. It does nothing while none was ever followed."""

    def __init__(self, network: Network, database: int) -> None:
        self.network, self._database = network, database
        self.listener: Listener | None = None
        self.lock = threading.Lock()
        self.followed: dict[bytes, Followed] = {}
        """By channel."""
        self._readers: dict[int, Reader] = {}

    def channel(self, project: str) -> bytes:
        """On which its batches are told."""
        return batches.feed(project, self._database)

    def follow(self, project: str) -> None:
        """What is published once this has returned is told; or that something was lost, if it lasts too long."""
        channel = self.channel(project)
        with translated():
            lines = self.network.lines(channel)
        with self.lock:
            known = self.followed.get(channel)
            if known is None:
                known = self.followed[channel] = Followed(project, self.reader(lines))
                known.reader.send(SUBSCRIBE, channel)
        if not known.hears.wait(PATIENCE):
            with self.lock:
                known.late = not known.hears.is_set()

    def unfollow(self, project: str) -> None:
        channel = self.channel(project)
        with self.lock:
            known = self.followed.pop(channel, None)
            if known is not None:
                known.reader.send(UNSUBSCRIBE, channel)

    def close(self) -> None:
        with self.lock:
            self.followed.clear()
            readers = list(self._readers.values())
        for reader in readers:
            reader.close()

    def reader(self, lines: Lines) -> "Reader":
        """The one of that server; to be called under the lock."""
        found = self._readers.get(id(lines))
        if found is None:
            found = Reader(self, lines)
            found.start()
            self._readers[id(lines)] = found
        return found

    def forget(self, reader: "Reader") -> None:
        """It has ended; to be called under the lock."""
        del self._readers[id(reader.lines)]

    def tell(self, project: str, batch: Batch | None, before: int = 0) -> None:
        if self.listener is not None:
            self.listener(project, batch, before)


class Reader(Subscriber):
    """What one server publishes."""

    def __init__(self, follower: Follower, lines: Lines) -> None:
        super().__init__("zq-redis-follower", PAUSE)
        self.lines = lines
        self._follower = follower
        self._commands: deque[bytes] = deque()
        self._tried = False

    def send(self, command: bytes, channel: bytes) -> None:
        self._commands.append(_command(command, channel))
        self.ring()

    def line(self) -> Line | None:
        """Before the second attempt and each later one it finds out which projects still are on this server."""
        if self._tried:
            self._sort()
        self._tried = True
        with self._follower.lock:
            if not self._channels():
                self._follower.forget(self)
                return None
        return self.lines.own()

    def greeting(self) -> bytes:
        with self._follower.lock:
            self._commands.clear()
            return b"".join([_command(SUBSCRIBE, channel) for channel in self._channels()])

    def outgoing(self) -> bytes:
        out = []
        with contextlib.suppress(IndexError):
            while True:
                out.append(self._commands.popleft())
        return b"".join(out)

    def heard(self, read: bytes) -> bytes:
        parts, rest = spoken(read)
        for part in parts:
            self._take(*part)
        return rest

    def _take(self, kind: Part, channel: Part = b"", content: Part = b"") -> None:
        known = self._follower.followed.get(channel) if isinstance(channel, bytes) else None
        if kind == b"smessage" and known is not None:
            self._tell(known.project, content)
        elif kind == b"ssubscribe" and known is not None:
            with self._follower.lock:
                lost = known.late or known.hears.is_set()
                known.late = False
                known.hears.set()
            if lost:
                self._follower.tell(known.project, None)
        elif kind == b"sunsubscribe" and known is not None and known.hears.is_set() and known.reader is self:
            raise ConnectionError("The channel's slot has moved to another server.")
        elif isinstance(kind, bytes) and kind.startswith(b"-"):
            raise ConnectionError(kind.decode(errors="replace"))

    def _tell(self, project: str, content: Part) -> None:
        assert isinstance(content, bytes)
        # Others may publish here what they like.
        with contextlib.suppress(struct.error, ValueError, msgspec.MsgspecError):
            if not content:
                self._follower.tell(project, None)
            for batch in batches.batches(content, batches.DIGITS):
                self._follower.tell(project, batch.opened(), int(content[: batches.DIGITS]))

    def _sort(self) -> None:
        """Hand what has moved to other servers' readers. May raise ``RedisError``."""
        network, lock = self._follower.network, self._follower.lock
        network.relearn()
        with lock:
            channels = self._channels()
        for channel in channels:
            lines = network.lines(channel)
            with lock:
                known = self._follower.followed.get(channel)
                if lines is not self.lines and known is not None and known.reader is self:
                    known.reader = self._follower.reader(lines)
                    known.reader.send(SUBSCRIBE, channel)

    def _channels(self) -> list[bytes]:
        """Those of this reader's projects; to be called under the lock."""
        return [channel for channel, known in self._follower.followed.items() if known.reader is self]


def _command(name: bytes, channel: bytes) -> bytes:
    return b"*2\r\n" + wire(name, channel)
