# SPDX-License-Identifier: Apache-2.0
"""In-memory tails of topic logs: each log is read from the store once, however many readers it has.

The store notifies of published batches (``TopicController.subscribe``). If a batch does not follow the last known one,
a notification was lost or is late, and one of the waiting readers reads the missing batches from the store for all. It
also reads every few seconds, because the last notification may be lost. A reader that lags behind the memory reads the
store itself.

Streams share rendered events, too. An event depends on its message and on the message's age in whole seconds, so
streams that send a batch within the same second send the same bytes. Visibility does not matter, because a batch
belongs to one topic.
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
# Bytes of a log that are kept in memory; temporarily up to 1.5 times as much.
WINDOW: Final = 4 << 20
# Bytes that a reader gets at a time; the last batch may exceed this.
PORTION: Final = 256 << 10
# Estimated bytes of a message in memory, in addition to its body.
OVERHEAD: Final = 200
# Bytes of rendered events kept per log, in addition to the batch that was rendered last.
MAX_RENDERED: Final = 2 << 20
# Messages read from the store at a time.
FETCH: Final = 1000
# Seconds after which the store is read without a notification.
RECHECK: Final = 5.0
# Seconds after which a failed read is repeated.
RETRY: Final = 0.5
# A sequence that is greater than every assigned one.
BEYOND: Final = 2**62
ALL: Final = Pattern(EVERYTHING)
Callback = Callable[[], object]


class Rendered(Struct, frozen=True):
    """The events of a batch at one age.

    Attributes:
        age: Age of the batch in whole seconds.
        sequences: The sequence of each event's message.
        ends: The end offset of each event in ``data``.
    """

    batch: Batch
    age: int
    data: bytes
    sequences: list[int]
    ends: list[int]

    def after(self, position: int) -> tuple[bytes, int]:
        """Return the bytes of the events after ``position``, and their number."""
        first = bisect_right(self.sequences, position)
        data = self.data[self.ends[first - 1] :] if first else self.data
        return data, len(self.sequences) - first


class Renderings:
    """A cache of the latest rendered batches of one project's log. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, Rendered] = {}
        self._size = 0

    def render(self, project: str, batch: Batch, now: Seconds, sealing: Sealing) -> Rendered:
        """Return the batch's events as of ``now``. Threads that need the same events wait for the first one."""
        seconds = age(batch.created, now)
        with self._lock:
            kept = self._kept.get(batch.sequence)
            if kept is None or kept.age != seconds or kept.batch != batch:
                kept = _rendered(project, batch, now, seconds, sealing)
                self._keep(kept)
            return kept

    def _keep(self, rendered: Rendered) -> None:
        former = self._kept.pop(rendered.batch.sequence, None)
        self._size += len(rendered.data) - (len(former.data) if former else 0)
        self._kept[rendered.batch.sequence] = rendered
        while self._size > MAX_RENDERED and len(self._kept) > 1:
            self._size -= len(self._kept.pop(next(iter(self._kept))).data)


class Tail:
    """The tail of one project's log: all batches after ``start``, up to ``position``."""

    def __init__(self, storage: Storage, project: str) -> None:
        self._topics = storage.topics
        self._project = project
        self._changed = threading.Condition(threading.Lock())
        self._batches: list[Batch] = []
        self._weight = 0
        self._purges = 0
        self.renderings = Renderings()
        """Rendered events of the log, shared by its streams."""
        self._stale = False
        self._fetching = False
        self._callbacks: dict[Callback, Callable[[str], bool]] = {}
        self._asked = time.monotonic()
        self.closed = False
        self.lost: tuple[int, int] | None = None
        """The last range that the log lost at its end: sequences above the first number, up to the second."""
        self.start = self.position = -1
        self.begun = threading.Event()
        """Set when ``start`` is known, or is -1 because the log's end could not be read."""
        self.users = 0
        self.unsubscribe: Callable[[], None] = lambda: None
        """Ends the subscription to the store."""

    def begin(self) -> None:
        """Read the log's end. Later batches arrive by notification or are fetched. Raises ``Unavailable``."""
        last = self._topics.read(self._project, BEYOND, 1, ALL).last
        with self._changed:
            self.start = self.position = last

    def on_published(self, batch: Batch | None, before: int) -> None:
        """Handle the store's notification about the project's log."""
        with self._changed:
            if batch is None and before:
                self._stale = self._stale or before > self.position
            elif batch is None:
                self._forget(self.position)
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
        """Return the batches after ``position``; an empty list if nothing is published within ``seconds``.

        Return ``None`` if memory does not reach back to ``position``: then the caller must read the store.
        """
        deadline = time.monotonic() + seconds
        while True:
            with self._changed:
                if position < self.start:
                    return None
                found = self._behind(position)
                if found or self.closed:
                    return found
                if not self._must_fetch():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return found
                    self._changed.wait(min(left, RETRY))
                    continue
                self._fetching, self._stale = True, False
            self._fetch()

    def wait_for(self, topic: str, position: int, deadline: float) -> None:
        """Return when the topic may have a message after ``position``, or at ``deadline`` of the monotonic clock."""
        while (left := deadline - time.monotonic()) > 0:
            batches = self.after(position, left)
            if not batches or any(batch.topic == topic for batch in batches):
                return
            position = batches[-1].last

    def notify_when(self, position: int, wanted: Callable[[str], bool], callback: Callback) -> None:
        """Call ``callback`` once when ``after`` may find a batch of a ``wanted`` topic, or has to read the store.

        If that is already so, it is called at once. It may be called from any thread and must return at once.
        """
        with self._changed:
            if self.closed or position < self.position or self._must_fetch():
                callback()
            else:
                self._callbacks[callback] = wanted

    def cancel_notify(self, callback: Callback) -> None:
        """Remove the callback."""
        with self._changed:
            self._callbacks.pop(callback, None)

    @property
    def unsure(self) -> bool:
        """Whether batches are known to be missing because the store did not answer.

        It is read again after ``RETRY``.
        """
        return self._stale

    def close(self) -> None:
        """End the wait of all readers, and let none wait any more."""
        with self._changed:
            self.closed = True
            self._notify(None)

    def _notify(self, topic: str | None) -> None:
        """Wake all readers of the topic (``None`` = all readers). The caller holds the lock."""
        self._changed.notify_all()
        for callback, wanted in list(self._callbacks.items()) if self._callbacks else ():
            if topic is None or wanted(topic):
                del self._callbacks[callback]
                callback()

    def _must_fetch(self) -> bool:
        """Return whether this thread must read the store now."""
        if self._fetching:
            return False
        since = time.monotonic() - self._asked
        return since > RECHECK or (self._stale and since >= 0)

    def _fetch(self) -> None:
        """Read the next batches from the store. Only one thread does so at a time."""
        position, purges, reading = self.position, self._purges, None
        try:
            reading = self._topics.read(self._project, position, FETCH, ALL)
        except Unavailable as absence:
            LOG.debug("The end of a log could not be read: %s", absence)
        finally:
            with self._changed:
                self._fetching = False
                self._asked = time.monotonic() + (RETRY if reading is None else 0)
                if reading is None or purges != self._purges:
                    self._stale = True
                else:
                    if reading.last < position <= reading.given:
                        self.lost = reading.last, position
                    self._take_over(reading)
                self._notify(None)

    def _take_over(self, reading: LogSlice) -> None:
        """Keep the batches read, except for those that were published in between."""
        if reading.dropped > self.position:
            self._forget(reading.dropped)
        for batch in reading.batches:
            if batch.last > self.position:
                self._append(batch)
        self.position = max(self.position, reading.position)
        self._stale = self._stale or reading.more

    def _behind(self, position: int) -> list[Batch]:
        """Return the next batches after ``position``, up to ``PORTION`` bytes."""
        if not self._batches or self._batches[-1].last <= position:
            return []
        first = end = bisect_right(self._batches, position, key=lambda batch: batch.last)
        weight = 0
        while end < len(self._batches) and weight < PORTION:
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
        """Drop the oldest batches until the rest fits the window."""
        count = 0
        while self._weight > WINDOW and count < len(self._batches) - 1:
            self._weight -= _weight(self._batches[count])
            count += 1
        if count:
            self.start = self._batches[count - 1].last
            del self._batches[:count]

    def _forget(self, position: int) -> None:
        """Drop all batches, which end at or before ``position``."""
        self._batches.clear()
        self._weight = 0
        self.start = self.position = position


class Tails:
    """The tails of one server; a log has one while it has readers."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._tails: dict[str, Tail] = {}
        self._closed = False

    @contextmanager
    def following(self, project: str) -> Iterator[Tail]:
        """Hold the tail of a project's log in this context. Raises ``Unavailable``."""
        tail = self.join(project)
        try:
            yield tail
        finally:
            self.leave(project, tail)

    def join(self, project: str) -> Tail:
        """Return the tail of a project's log; ``leave`` must follow. Raises ``Unavailable``.

        The first caller initializes the tail, and concurrent callers share the outcome.
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
        """Give up a reader's use of the tail."""
        with self._lock:
            tail.users -= 1
            if not tail.users:
                self._drop(project, tail)

    def close(self) -> None:
        """End the wait of all readers, and let none wait any more. Idempotent."""
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
        """Remove the tail. The caller holds the lock, so that the project's next subscription begins afterwards."""
        if self._tails.get(project) is tail:
            del self._tails[project]
            tail.unsubscribe()


def _weight(batch: Batch) -> int:
    return batch.size + OVERHEAD * len(batch.entries)


def _rendered(project: str, batch: Batch, now: Seconds, seconds: int, sealing: Sealing) -> Rendered:
    messages = sealing.opened_published(project, list(batch.messages(0, now)))
    events = publishing.events(messages, now)
    ends, end = [], 0
    for event in events:
        end += len(event)
        ends.append(end)
    return Rendered(batch, seconds, b"".join(events), [message.sequence for message in messages], ends)
