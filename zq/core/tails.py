# SPDX-License-Identifier: Apache-2.0
"""In-memory tails (the latest messages) of topic logs. A tail reads the log from the store once for all readers.

The store notifies a tail of published batches (``TopicController.subscribe``). If the next batch is missing, its
notification was lost or is late. One of the waiting readers then reads the missing batches for all readers. Readers
also poll the store every few seconds, because the last notification may be lost. If the position of a reader is older
than the tail, the reader reads from the store itself.

Streams also share rendered events. An event depends only on its message and the message's age in whole seconds.
Therefore all streams that send a batch within the same second send the same bytes. All messages of a batch belong to
one topic, so a reader has permission to see either all of them or none.
"""

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from zq.core.encryption import Sealing
from zq.errors import Unavailable
from zq.model import Seconds, age
from zq.model.topics import EVERYTHING, Batch, LogSlice, Pattern
from zq.storage.api import Storage
from zq.wire import publishing

LOG = logging.getLogger(__name__)
# Bytes of a log that are kept in memory; the tail is trimmed when it reaches 1.5 times this size.
WINDOW: Final = 4 << 20
# Bytes that a reader receives at a time. The last batch may exceed it.
READ_BYTES: Final = 256 << 10
# Estimated memory of a message in bytes, in addition to its body.
OVERHEAD: Final = 200
# Bytes of rendered events cached per log, in addition to the latest rendered batch.
MAX_RENDERED: Final = 2 << 20
# Number of messages read from the store at a time.
FETCH_SIZE: Final = 1000
# Seconds after which the store is polled without a notification.
RECHECK_INTERVAL: Final = 5.0
# Seconds after which a failed read is repeated.
RETRY_INTERVAL: Final = 0.5
# A sequence number greater than all assigned ones.
BEYOND: Final = 2**62
ALL: Final = Pattern(EVERYTHING)
Callback = Callable[[], object]


class RenderedBatch(Struct, frozen=True):
    """The encoded server-sent events of a batch of messages.

    Attributes:
        age: Age of the messages in whole seconds.
        ends: End offset of each event in ``data``.
    """

    batch: Batch
    age: int
    data: bytes
    sequences: list[int]
    ends: list[int]

    def after(self, position: int) -> tuple[bytes, int]:
        """Return the bytes of the events after ``position``, and the number of these events."""
        first = bisect_right(self.sequences, position)
        data = self.data[self.ends[first - 1] :] if first else self.data
        return data, len(self.sequences) - first


class Renderings:
    """A cache of the latest rendered batches of one log. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, RenderedBatch] = {}
        self._size = 0

    def render(self, project: str, batch: Batch, now: Seconds, sealing: Sealing) -> RenderedBatch:
        """Return the encoded events of the batch as of ``now``, from the cache if possible."""
        seconds = age(batch.created, now)
        with self._lock:
            kept = self._kept.get(batch.sequence)
            if kept is None or kept.age != seconds or kept.batch != batch:
                kept = _render_batch(project, batch, now, seconds, sealing)
                self._keep(kept)
            return kept

    def _keep(self, rendered: RenderedBatch) -> None:
        former = self._kept.pop(rendered.batch.sequence, None)
        self._size += len(rendered.data) - (len(former.data) if former else 0)
        self._kept[rendered.batch.sequence] = rendered
        while self._size > MAX_RENDERED and len(self._kept) > 1:
            self._size -= len(self._kept.pop(next(iter(self._kept))).data)


class Tail:
    """The latest messages of one project's log in memory: the batches after ``start``, up to ``position``."""

    def __init__(self, storage: Storage, project: str) -> None:
        self._topics = storage.topics
        self._project = project
        self._changed = threading.Condition(threading.Lock())
        self._batches: list[Batch] = []
        self._weight = 0
        self._purges = 0
        self.renderings = Renderings()
        self._stale = False
        self._fetching = False
        self._callbacks: dict[Callback, Callable[[str], bool]] = {}
        self._fetched_at = time.monotonic()
        self.closed = False
        self.lost: tuple[int, int] | None = None
        """The last lost range at the end of the log: the sequence numbers just before the range and at its end."""
        self.start = self.position = -1
        self.begun = threading.Event()
        """Set when ``start`` is known; ``start`` is -1 if the end of the log could not be read."""
        self.users = 0
        self.unsubscribe: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Start the tail at the current end of the log, which is read from the store."""
        last = self._topics.read(self._project, BEYOND, 1, ALL).last
        with self._changed:
            self.start = self.position = last

    def on_published(self, batch: Batch | None, before: int) -> None:
        """Handle a notification of the store. Implements ``zq.model.topics.Listener``.

        - ``batch`` is set: the batch directly follows the message with the sequence number ``before``.
        - ``batch`` is ``None``, and ``before`` is above 0: the log has messages at least up to ``before``.
        - ``batch`` is ``None``, and ``before`` is 0: the cached batches are invalid.
        """
        with self._changed:
            if batch is None and before:
                self._stale = self._stale or before > self.position
            elif batch is None:
                self._reset(self.position)
                self._purges += 1
                self._stale = True
            elif batch.last <= self.position:
                return
            elif before <= self.position:
                self._append(batch)
                self._notify(batch.topic)
                return
            else:
                self._stale = True
            self._notify(None)

    def after(self, position: int, seconds: float) -> list[Batch] | None:
        """Return the batches after ``position``. If there are none, wait up to ``seconds`` for a batch.

        If no batch is published in time, the list is empty. If ``position`` is older than the tail, the result is
        ``None`` and the caller must read from the store.
        """
        deadline = time.monotonic() + seconds
        while True:
            with self._changed:
                if position < self.start:
                    return None
                found = self._after(position)
                if found or self.closed:
                    return found
                if not self._must_fetch():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return found
                    self._changed.wait(min(left, RETRY_INTERVAL))
                    continue
                self._fetching, self._stale = True, False
            self._fetch()

    def notify_when(self, position: int, topic_matches: Callable[[str], bool], callback: Callback) -> None:
        """Call ``callback`` once, as soon as a call to the method ``after`` would return without waiting.

        The callback may be called immediately and on any thread. It must not block. ``topic_matches`` selects topics by
        name.
        """
        with self._changed:
            if self.closed or position < self.position or self._must_fetch():
                callback()
            else:
                self._callbacks[callback] = topic_matches

    def cancel_notify(self, callback: Callback) -> None:
        """Remove a callback that was passed to ``notify_when``."""
        with self._changed:
            self._callbacks.pop(callback, None)

    @property
    def unsure(self) -> bool:
        """Whether batches may be missing, for example because a notification was lost or a read of the store failed."""
        return self._stale

    def close(self) -> None:
        """Wake all waiting readers. Afterwards, no reader of this tail waits."""
        with self._changed:
            self.closed = True
            self._notify(None)

    def _notify(self, topic: str | None) -> None:
        """Wake the topic's readers, or all readers if ``topic`` is ``None``. The caller holds the lock."""
        self._changed.notify_all()
        for callback, wanted in list(self._callbacks.items()) if self._callbacks else ():
            if topic is None or wanted(topic):
                del self._callbacks[callback]
                callback()

    def _must_fetch(self) -> bool:
        if self._fetching:
            return False
        since = time.monotonic() - self._fetched_at
        return since > RECHECK_INTERVAL or (self._stale and since >= 0)

    def _fetch(self) -> None:
        """Read the next batches from the store. Only one thread at a time may call this method."""
        position, purges, reading = self.position, self._purges, None
        try:
            reading = self._topics.read(self._project, position, FETCH_SIZE, ALL)
        except Unavailable as absence:
            LOG.debug("The end of a log could not be read: %s", absence)
        finally:
            with self._changed:
                self._fetching = False
                self._fetched_at = time.monotonic() + (RETRY_INTERVAL if reading is None else 0)
                if reading is None or purges != self._purges:
                    self._stale = True
                else:
                    if reading.last < position <= reading.given:
                        self.lost = reading.last, position
                    self._append_read(reading)
                self._notify(None)

    def _append_read(self, reading: LogSlice) -> None:
        if reading.dropped > self.position:
            self._reset(reading.dropped)
        for batch in reading.batches:
            if batch.last > self.position:
                self._append(batch)
        self.position = max(self.position, reading.position)
        self._stale = self._stale or reading.more

    def _after(self, position: int) -> list[Batch]:
        """Return the next batches after ``position``, up to ``READ_BYTES`` bytes."""
        if not self._batches or self._batches[-1].last <= position:
            return []
        first = end = bisect_right(self._batches, position, key=lambda batch: batch.last)
        weight = 0
        while end < len(self._batches) and weight < READ_BYTES:
            weight += _weight(self._batches[end])
            end += 1
        return self._batches[first:end]

    def _append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._weight += _weight(batch)
        self.position = batch.last
        if self._weight > WINDOW + WINDOW // 2:
            self._trim()

    def _trim(self) -> None:
        count = 0
        while self._weight > WINDOW and count < len(self._batches) - 1:
            self._weight -= _weight(self._batches[count])
            count += 1
        if count:
            self.start = self._batches[count - 1].last
            del self._batches[:count]

    def _reset(self, position: int) -> None:
        self._batches.clear()
        self._weight = 0
        self.start = self.position = position


class Tails:
    """The tails of all logs that have readers on this server."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._tails: dict[str, Tail] = {}
        self._closed = False

    @contextmanager
    def following(self, project: str) -> Iterator[Tail]:
        """Return a context manager that acquires the tail of a project's log, and releases it on exit."""
        tail = self.join(project)
        try:
            yield tail
        finally:
            self.leave(project, tail)

    def join(self, project: str) -> Tail:
        """Acquire the tail of a project's log. The caller must release the tail with ``leave``.

        If several readers join at the same time, the tail is initialized only once. Raises ``Unavailable`` if the
        initialization fails.
        """
        with self._lock:
            tail = self._tails.get(project)
            first = tail is None
            if tail is None:
                tail = self._tails[project] = Tail(self._storage, project)
            if self._closed:
                tail.close()
            tail.users += 1
        if first:
            self._begin(project, tail)
        tail.begun.wait()
        if tail.start < 0:
            self.leave(project, tail)
            raise Unavailable
        return tail

    def leave(self, project: str, tail: Tail) -> None:
        """Release a tail acquired with ``join``. The tail is dropped when its last reader leaves."""
        with self._lock:
            tail.users -= 1
            if not tail.users:
                self._drop(project, tail)

    def close(self) -> None:
        """Wake all waiting readers. Afterwards, no reader waits. Idempotent."""
        with self._lock:
            self._closed = True
            for tail in self._tails.values():
                tail.close()

    def _begin(self, project: str, tail: Tail) -> None:
        try:
            tail.unsubscribe = self._storage.topics.subscribe(project, tail.on_published)
            tail.begin()
        except BaseException:
            with self._lock:
                tail.users -= 1
                self._drop(project, tail)
            raise
        finally:
            tail.begun.set()

    def _drop(self, project: str, tail: Tail) -> None:
        """Remove the tail and unsubscribe from the store's notifications. The caller holds the lock."""
        if self._tails.get(project) is tail:
            del self._tails[project]
            tail.unsubscribe()


def _weight(batch: Batch) -> int:
    return batch.size + OVERHEAD * len(batch.entries)


def _render_batch(project: str, batch: Batch, now: Seconds, seconds: int, sealing: Sealing) -> RenderedBatch:
    messages = sealing.decrypt_published(project, list(batch.messages(0, now)))
    events = publishing.events(messages, now)
    ends, end = [], 0
    for event in events:
        end += len(event)
        ends.append(end)
    return RenderedBatch(batch, seconds, b"".join(events), [message.sequence for message in messages], ends)
