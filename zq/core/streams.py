# SPDX-License-Identifier: Apache-2.0
"""Live streams: messages of topics, sent to readers as they are published (extensions contract, section 8).

A stream may start at any position in the log. A slow reader does not delay publishers, because unsent messages stay in
the log. A reader that receives no data for ``STALL_TIMEOUT`` seconds is disconnected and may resume.

The number of streams is limited, because each stream may occupy a thread of the HTTP server.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.quotas import NO_QUOTAS, AnyQuotas
from zq.core.tails import ALL, RECHECK_INTERVAL, Tail, Tails
from zq.core.wait_queues import DEFAULT_SHARE, Slots
from zq.errors import Crowded, Invalid, Unavailable
from zq.events import Events
from zq.model import Seconds
from zq.model.topics import Batch, LogSlice, Pattern
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Number of messages read from the store at a time for a reader that lags behind.
READ_SIZE: Final = 500
# Seconds after which a failed read of the store is repeated.
RETRY_INTERVAL: Final = 0.5
# Seconds without progress after which a stalled reader is disconnected.
STALL_TIMEOUT: Final = 30.0
# Seconds without progress after which a stalled reader is disconnected while the server is stopping.
STOPPING_STALL_TIMEOUT: Final = 1.0
# Seconds between two checks for stalled readers.
CHECK_INTERVAL: Final = 0.5


class Gap(Struct, frozen=True):
    """A range of messages that are no longer in the log: sequence numbers above ``after`` and below ``resumes``."""

    after: int
    resumes: int


class EventData(Struct, frozen=True):
    """The encoded server-sent events for a reader, and their count."""

    data: bytes = b""
    count: int = 0


Portion = EventData | Gap
# Returned if no message was published.
NO_EVENTS: Final = EventData()


class Stream:
    """A reader's stream. The reader has received all messages up to the sequence number ``position``."""

    def __init__(
        self,
        owner: "Streams",
        project: str,
        pattern: Pattern,
        tail: Tail,
        position: int,
        gap: Gap | None = None,
        visible: Callable[[str], bool] | None = None,
        disconnect: Callable[[], None] | None = None,
    ) -> None:
        self._matches = pattern.matches if visible is None else _both(pattern.matches, visible)
        self._owner = owner
        self._project = project
        self._pattern = pattern
        self._tail = tail
        self._open = True
        self._failed = False
        self._gap = gap
        self._lost = tail.lost
        self.position = position
        self._sending_since: float | None = None
        self._callback: Callable[[], object] | None = None
        self._disconnect = disconnect

    def next(self, seconds: float) -> Portion:
        """Return the next events, or a gap in the log. Return no events if none is published within ``seconds``."""
        self._failed = False
        try:
            return self._next(seconds)
        except Unavailable as absence:
            LOG.debug("A stream waits for the store: %s", absence)
            self._failed = True
            if seconds:
                time.sleep(RETRY_INTERVAL)
            return NO_EVENTS

    @property
    def over(self) -> bool:
        return self._owner.closing

    def notify_when(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when ``next`` may have a result; see ``Tail.notify_when``."""
        self._callback = callback
        self._tail.notify_when(self.position, self._matches, callback)

    def seconds_until_poll(self) -> float:
        """Return the seconds after which the caller must call ``next`` if no notification comes earlier."""
        return RETRY_INTERVAL if self._failed or self._tail.unsure else RECHECK_INTERVAL

    @property
    def patience(self) -> float:
        """Seconds without progress after which the reader is disconnected."""
        return STOPPING_STALL_TIMEOUT if self._owner.closing else STALL_TIMEOUT

    def begin_send(self) -> None:
        """Record that sending data to the reader has begun. Call ``end_send`` when the reader has received the data."""
        self._sending_since = time.monotonic()

    def end_send(self) -> None:
        self._sending_since = None

    def disconnect_stalled(self) -> None:
        """Disconnect the reader if it has been stalled for too long."""
        since, disconnect = self._sending_since, self._disconnect
        if since is not None and disconnect is not None and time.monotonic() - since > self.patience:
            self._disconnect = None
            disconnect()
            self.note_disconnect()

    def note_disconnect(self) -> None:
        """Log and count the disconnection of a stalled reader."""
        LOG.info("A stalled stream reader is disconnected after %.0f seconds without progress.", self.patience)
        self._owner.events.stream_dropped()

    def close(self) -> None:
        """Close the stream and release its slot. Idempotent."""
        if self._callback is not None:
            self._tail.cancel_notify(self._callback)
        if self._open:
            self._open = False
            self._owner.release(self, self._project, self._tail)

    def _next(self, seconds: float) -> Portion:
        gap, self._gap = self._gap or self._lost_tail(), None
        if gap is not None:
            return gap
        batches = self._tail.after(self.position, seconds)
        if batches is None:
            return self._from_store()
        return self._render(batches, batches[-1].last) if batches else NO_EVENTS

    def _lost_tail(self) -> Gap | None:
        """Return the gap that a data loss has left at the end of the log, or ``None``. Each gap is returned once."""
        lost = self._tail.lost
        if lost is None or lost == self._lost or self.position < lost[0]:
            return None
        self._lost = lost
        return Gap(lost[0], lost[1] + 1) if self.position <= lost[1] else None

    def _from_store(self) -> Portion:
        reading = self._owner.topics.read(self._project, self.position, READ_SIZE, self._pattern)
        if reading.dropped > self.position:
            gap = Gap(self.position, reading.dropped + 1)
            self.position = reading.dropped
            return gap
        return self._render(reading.batches, reading.position)

    def _render(self, batches: list[Batch], position: int) -> EventData:
        owner, now, after = self._owner, self._owner.now(), self.position
        render = self._tail.renderings.render
        wanted = [batch for batch in batches if self._matches(batch.topic)]
        found = [render(self._project, batch, now, owner.sealing).after(after) for batch in wanted]
        self.position = max(after, position)
        count = sum(number for _, number in found)
        if count:
            owner.events.streamed(count)
        return EventData(b"".join([data for data, _ in found]), count)


class Streams:
    """The streams of one server, at most ``max_streams``. One project may use ``share`` percent of them."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        tails: Tails,
        sealing: Sealing,
        max_streams: int,
        events: Events,
        share: int = DEFAULT_SHARE,
        quotas: AnyQuotas = NO_QUOTAS,
    ) -> None:
        self.sealing = sealing
        self.topics = storage.topics
        self._clock = clock
        self._tails = tails
        self._max_streams = max_streams
        self.events = events
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._slots = Slots(max_streams, share)
        self._quotas = quotas
        self._watchdog: threading.Thread | None = None
        self.closing = False

    def now(self) -> Seconds:
        return self._clock.now()

    def open(
        self,
        project: str,
        pattern: Pattern,
        after: int | None,
        visible: Callable[[str], bool] | None = None,
        disconnect: Callable[[], None] | None = None,
    ) -> Stream:
        """Open a stream of messages from the topics that match ``pattern`` and for which ``visible`` returns ``True``.

        Args:
            after: Log position after which the stream starts; ``None`` = the end of the log.
            disconnect: Function that closes the connection of a stalled reader. If it is ``None``, the HTTP server must
                close the connection.

        Raises ``Crowded`` if no slot is free. Raises ``Invalid`` if the log has not assigned the position ``after``
        yet.
        """
        own = self._quotas.share_of(project)
        with self._lock:
            if self.closing or not self._slots.acquire(project, own):
                self.events.stream_refused()
                raise Crowded(
                    f"This server serves at most {self._max_streams} concurrent streams, and {self._slots.share(own)} "
                    "for one project. Try again later."
                )
        tail = None
        try:
            tail = self._tails.join(project)
            gap = self._lost_end(project, tail, after)
            position = tail.position if after is None else after
            stream = Stream(self, project, pattern, tail, position, gap, visible, disconnect)
        except BaseException:
            if tail is not None:
                self._tails.leave(project, tail)
            with self._lock:
                self._slots.release(project)
            raise
        self._enter(stream)
        return stream

    def release(self, stream: Stream, project: str, tail: Tail) -> None:
        """Release the slot of a stream that has ended."""
        with self._lock:
            self._streams.discard(stream)
            self._slots.release(project)
        self._tails.leave(project, tail)
        self.events.streams(-1)

    def close(self) -> None:
        """End all streams and reject new ones. Idempotent."""
        self.closing = True
        self._tails.close()

    def _lost_end(self, project: str, tail: Tail, after: int | None) -> Gap | None:
        if after is None or after <= tail.position:
            return None
        return lost_end(after, self.topics.read(project, after, 1, ALL))

    def _enter(self, stream: Stream) -> None:
        with self._lock:
            self._streams.add(stream)
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._run, name="zq-streams", daemon=True)
                self._watchdog.start()
        self.events.streams(1)

    def _run(self) -> None:
        """Disconnect stalled readers in a background thread, because their own threads are blocked in a send."""
        while not self.closing or self._streams:
            time.sleep(CHECK_INTERVAL)
            with self._lock:
                streams = list(self._streams)
            for stream in streams:
                stream.disconnect_stalled()


def _both(one: Callable[[str], bool], other: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: one(name) and other(name)


def lost_end(marker: int, reading: LogSlice) -> Gap | None:
    """Return the gap between the end of the log and ``marker``, or ``None`` if the marker is not beyond the end.

    A reader's marker beyond the end shows that the store has lost messages. Raises ``Invalid`` if the log has never
    assigned the marker's sequence number.
    """
    if marker <= reading.last:
        return None
    if marker > reading.given:
        raise Invalid(f"marker must not be after the end of the log, {reading.last}; it is {marker}.")
    return Gap(reading.last, marker + 1)
