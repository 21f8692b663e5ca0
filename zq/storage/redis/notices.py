# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to new messages and published batches, for listeners in this process.

The script that appends a batch to a project's topic log also publishes it on the project's sharded channel. One thread
per Redis server subscribes to the channels of the followed projects on that server. XREAD is not suitable: in a
cluster, it can wait only for streams of one slot, and it would have to name all streams again after each batch.
"""

import contextlib
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
from redis.exceptions import ConnectionError

from zq.model import QueueRef
from zq.model.topics import Batch, Listener
from zq.storage.redis import batches, layout
from zq.storage.redis.client import translate_errors
from zq.storage.redis.connections import Pool
from zq.storage.redis.network import Network
from zq.storage.redis.subscriber import Connection, Notice, Subscriber

# Maximum seconds for which a subscriber waits for the server's confirmation.
PATIENCE: Final = 1.0
# Seconds between two checks whether the queue subscriber was closed.
QUEUES_CHECK_INTERVAL: Final = 0.1
# Seconds of pause after each read of queue notices, because each wake-up costs a post 50 µs.
QUEUES_READ_PAUSE: Final = 0.005
# Seconds between two checks for changed subscriptions of a log reader.
LOG_CHECK_INTERVAL: Final = 0.01
# Seconds of pause after each read of batches, because each wake-up costs a publisher 50 µs.
LOG_PAUSE: Final = 0.001


class QueueSubscriber(Subscriber):
    """A thread that notifies a listener of new messages. Notices are lost while the connection is broken."""

    def __init__(self, network: Network, listener: Callable[[QueueRef], None]) -> None:
        super().__init__("zq-redis-listener", QUEUES_CHECK_INTERVAL, QUEUES_READ_PAUSE)
        self._network, self._listener = network, listener
        self._subscribed = threading.Event()
        self.start()
        self._subscribed.wait(PATIENCE)

    def set_listener(self, listener: Callable[[QueueRef], None]) -> None:
        self._listener = listener

    def pool(self) -> Pool:
        return self._network.any_pool()

    def subscribe(self, connection: Connection) -> None:
        connection.send_command("SUBSCRIBE", layout.READY_CHANNEL)

    def on_notices(self, notices: list[Notice]) -> None:
        self._subscribed.set()
        for name in dict.fromkeys(notice[2] for notice in notices if notice[0] == b"message"):
            with contextlib.suppress(
                struct.error, UnicodeDecodeError
            ):  # other clients may publish invalid content here
                self._listener(layout.decode_full_name(name))


class FollowedProject:
    """A project whose topic log has listeners in this process.

    ``confirmed`` is set when the server has confirmed the subscription. ``late`` is true if a caller of ``subscribe``
    has stopped waiting for the confirmation.
    """

    def __init__(self, reader: "LogReader") -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.reader = reader
        self.confirmed = threading.Event()
        self.late = False

    def notify(self, batch: Batch | None, before: int = 0) -> None:
        """Pass a published batch to the listeners. ``before`` is the last sequence of the log before the batch.

        If ``batch`` is ``None``, batches were purged or notices were lost, and the listeners drop their cached part of
        the log.
        """
        for listener in self.listeners:
            listener(batch, before)


class LogSubscriber:
    """The subscriptions of this process to topic logs. There is one reader thread for each Redis server in use."""

    def __init__(self, network: Network, database: int) -> None:
        self.network, self._database = network, database
        self.lock = threading.Lock()
        self.followed: dict[bytes, FollowedProject] = {}
        """Followed projects by channel."""
        self._readers: dict[int, LogReader] = {}

    def channel(self, project: str) -> bytes:
        return batches.feed(project, self._database)

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        """Subscribe a listener to batches published after this call, and return a function that ends the subscription.

        If the server does not confirm the subscription within ``PATIENCE`` seconds, the listener is later notified that
        batches may be missing.
        """
        channel = self.channel(project)
        with translate_errors():
            pool = self.network.pool(channel)
        with self.lock:
            known = self.followed.get(channel)
            if known is None:
                known = self.followed[channel] = FollowedProject(self.reader(pool))
                known.reader.changes.append((True, channel))
            known.listeners += (listener,)
        if not known.confirmed.wait(PATIENCE):
            with self.lock:
                known.late = not known.confirmed.is_set()
        return lambda: self._end(channel, known, listener)

    def _end(self, channel: bytes, known: FollowedProject, listener: Listener) -> None:
        with self.lock:
            known.listeners = tuple(other for other in known.listeners if other is not listener)
            if not known.listeners and self.followed.get(channel) is known:
                del self.followed[channel]
                known.reader.changes.append((False, channel))

    def close(self) -> None:
        with self.lock:
            self.followed.clear()
            readers = list(self._readers.values())
        for reader in readers:
            reader.close()

    def reader(self, pool: Pool) -> "LogReader":
        """Return the reader for a server; create it if necessary. The caller must hold ``lock``."""
        found = self._readers.get(id(pool))
        if found is None:
            found = LogReader(self, pool)
            found.start()
            self._readers[id(pool)] = found
        return found

    def forget(self, reader: "LogReader") -> None:
        """Remove a reader that has ended. The caller must hold ``lock``."""
        del self._readers[id(reader.server)]


class LogReader(Subscriber):
    """A thread that reads the published batches of one server."""

    def __init__(self, follower: LogSubscriber, server: Pool) -> None:
        super().__init__("zq-redis-follower", LOG_CHECK_INTERVAL, LOG_PAUSE)
        self.server = server
        self.changes: deque[tuple[bool, bytes]] = deque()
        self._follower = follower
        self._tried = False

    def pool(self) -> Pool | None:
        """Return the server's pool, or ``None`` if this reader has no project left.

        Before a reconnection, projects that have moved to another server are assigned to that server's reader.
        """
        if self._tried:
            self._reassign()
        self._tried = True
        with self._follower.lock:
            if not self._channels():
                self._follower.forget(self)
                return None
        return self.server

    def subscribe(self, connection: Connection) -> None:
        with self._follower.lock:
            self.changes.clear()
            channels = self._channels()
        for channel in channels:  # one command per channel, because the channels of one command must share a slot
            connection.send_command("SSUBSCRIBE", channel)

    def send(self, connection: Connection) -> bool:
        while self.changes:
            wanted, channel = self.changes.popleft()
            connection.send_command("SSUBSCRIBE" if wanted else "SUNSUBSCRIBE", channel)
        with self._follower.lock:
            return bool(self.changes or self._channels())

    def on_notices(self, notices: list[Notice]) -> None:
        for kind, channel, *content in notices:
            known = self._follower.followed.get(channel)
            if known is not None:
                self._take(kind, known, content[0])

    def _take(self, kind: bytes, known: FollowedProject, content: bytes) -> None:
        if kind == b"smessage":
            _notify_batches(known, content)
        elif kind == b"ssubscribe":
            with self._follower.lock:
                lost = known.late or known.confirmed.is_set()
                known.late = False
                known.confirmed.set()
            if lost:
                known.notify(None)
        elif kind == b"sunsubscribe" and known.confirmed.is_set() and known.reader is self:
            raise ConnectionError("The channel's slot has moved to another server.")

    def _reassign(self) -> None:
        network, lock = self._follower.network, self._follower.lock
        network.relearn()
        with lock:
            channels = self._channels()
        for channel in channels:
            pool = network.pool(channel)
            with lock:
                known = self._follower.followed.get(channel)
                if pool is not self.server and known is not None and known.reader is self:
                    known.reader = self._follower.reader(pool)
                    known.reader.changes.append((True, channel))

    def _channels(self) -> list[bytes]:
        return [channel for channel, known in self._follower.followed.items() if known.reader is self]


def _notify_batches(known: FollowedProject, content: bytes) -> None:
    # Other clients may publish invalid content here.
    with contextlib.suppress(struct.error, ValueError, msgspec.MsgspecError):
        if not content:
            known.notify(None)
        for batch in batches.batches(content, batches.DIGITS):
            known.notify(batch.decode(), int(content[: batches.DIGITS]))
