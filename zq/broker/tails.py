# SPDX-License-Identifier: Apache-2.0
"""The ends of the logs that somebody follows, in memory: each is read once, however many readers there are.

The store tells what is published (``TopicController.listen``). Where a batch does not follow what is known, something
was not told, or not yet, and one of the waiting readers fetches it from the store for all.
They do so as well every few seconds, for what was lost last. A reader that is farther behind than memory reaches reads
the store by itself.
"""

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from zq.errors import Unavailable
from zq.storage.api import Storage
from zq.topics import EVERYTHING, Batch, Pattern, Reading

LOG = logging.getLogger(__name__)
WINDOW: Final = 4 << 20
"""What is remembered of one log weighs so much, and at times half as much again."""
PORTION: Final = 256 << 10
"""What a reader gets at a time weighs no more than this and one batch."""
OVERHEAD: Final = 200
"""What a message weighs besides the bytes of its body."""
FETCH: Final = 1000
"""Messages asked for at a time."""
RECHECK: Final = 5.0
"""Seconds after which the store is asked though nothing was told."""
RETRY: Final = 0.5
"""Seconds after which it is asked again if it did not answer."""
BEYOND: Final = 2**62
"""Above all sequences."""
ALL: Final = Pattern(EVERYTHING)
Ring = Callable[[], object]


class Tail:
    """The end of one project's log: every batch behind ``start``, up to ``position``."""

    def __init__(self, storage: Storage, project: str) -> None:
        self._topics = storage.topics
        self._project = project
        self._changed = threading.Condition(threading.Lock())
        self._batches: list[Batch] = []
        self._weight = 0
        self._purges = 0
        self._stale = False
        self._fetching = False
        self._rings: dict[Ring, Callable[[str], bool]] = {}
        self._asked = time.monotonic()
        self.closed = False
        self.lost: tuple[int, int] | None = None
        """What the log has lost last of its end, as messages above the first and up to the second sequence."""
        self.start = self.position = -1
        self.begun = threading.Event()
        """Set when ``start`` is known, or -1 because it could not be found."""
        self.users = 0

    def begin(self) -> None:
        """Find the log's end. What is told meanwhile will be fetched. Raises ``Unavailable``."""
        last = self._topics.read(self._project, BEYOND, 1, ALL).last
        with self._changed:
            self.start = self.position = last

    def told(self, batch: Batch | None, before: int) -> None:
        """What the store's listener was told of the project."""
        with self._changed:
            if batch is None:
                self._forget(self.position)
                self._purges += 1
                self._stale = True
            elif batch.last <= self.position:
                return
            elif before <= self.position:
                self._append(batch)
                self._tell(batch.topic)
                return
            else:
                self._stale = True
            self._tell(None)

    def after(self, position: int, seconds: float) -> list[Batch] | None:
        """The batches behind ``position`` that are remembered; none if none is published within so many seconds.

        None: memory does not reach back so far, so the store must be asked.
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
        """Return when something of the topic may stand behind ``position``; at a moment of the monotonic clock at the
        latest."""
        while (left := deadline - time.monotonic()) > 0:
            batches = self.after(position, left)
            if not batches or any(batch.topic == topic for batch in batches):
                return
            position = batches[-1].last

    def ring_when(self, position: int, wanted: Callable[[str], bool], ring: Ring) -> None:
        """Call ``ring`` once, from any thread, when ``after`` may find something in a topic that is ``wanted``, or has
        to ask the store; at once if that is so already. ``ring`` must return at once."""
        with self._changed:
            if self.closed or position < self.position or self._must_fetch():
                ring()
            else:
                self._rings[ring] = wanted

    def ring_no_more(self, ring: Ring) -> None:
        """Whoever gave it waits no more."""
        with self._changed:
            self._rings.pop(ring, None)

    @property
    def unsure(self) -> bool:
        """Whether it lacks what it knows of: the store did not answer, and is to be asked again after ``RETRY``."""
        return self._stale

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self.closed = True
            self._tell(None)

    def _tell(self, topic: str | None) -> None:
        """Wake all who wait for something of the topic; None: of any. Under the lock."""
        self._changed.notify_all()
        for ring, wanted in list(self._rings.items()) if self._rings else ():
            if topic is None or wanted(topic):
                del self._rings[ring]
                ring()

    def _must_fetch(self) -> bool:
        """Whether this thread is to ask the store now."""
        if self._fetching:
            return False
        since = time.monotonic() - self._asked
        return since > RECHECK or (self._stale and since >= 0)

    def _fetch(self) -> None:
        """Ask the store what follows, as the only thread that does."""
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
                self._tell(None)

    def _take_over(self, reading: Reading) -> None:
        """Remember what was read, but for what was told meanwhile."""
        if reading.dropped > self.position:
            self._forget(reading.dropped)
        for batch in reading.batches:
            if batch.last > self.position:
                self._append(batch)
        self.position = max(self.position, reading.position)
        self._stale = self._stale or reading.more

    def _behind(self, position: int) -> list[Batch]:
        """The next batches with messages of sequences above ``position``."""
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
            self._shorten()

    def _shorten(self) -> None:
        """Forget the oldest, but for a window full."""
        count = 0
        while self._weight > WINDOW and count < len(self._batches) - 1:
            self._weight -= _weight(self._batches[count])
            count += 1
        if count:
            self.start = self._batches[count - 1].last
            del self._batches[:count]

    def _forget(self, position: int) -> None:
        """Remember nothing up to there."""
        self._batches.clear()
        self._weight = 0
        self.start = self.position = position


class Tails:
    """The tails of one server: a log has one while it has readers."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._tails: dict[str, Tail] = {}
        self._closed = False
        storage.topics.listen(self._told)

    @contextmanager
    def following(self, project: str) -> Iterator[Tail]:
        """The tail of a project's log, for as long as it is needed. Raises ``Unavailable``."""
        tail = self.join(project)
        try:
            yield tail
        finally:
            self.leave(project, tail)

    def join(self, project: str) -> Tail:
        """As ``following``, until ``leave``. The first to come begins the tail; who comes meanwhile shares its luck."""
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
            raise Unavailable("The store cannot serve now. Try again later.")
        return tail

    def leave(self, project: str, tail: Tail) -> None:
        """It is needed by one fewer."""
        with self._lock:
            tail.users -= 1
            if not tail.users:
                self._drop(project, tail)

    def close(self) -> None:
        """Let nobody wait any more. May be called twice."""
        with self._lock:
            self._closed = True
            for tail in self._tails.values():
                tail.close()

    def _begin(self, project: str, tail: Tail) -> None:
        try:
            self._storage.topics.follow(project)
            tail.begin()
        except BaseException:
            with self._lock:
                tail.users -= 1
                self._drop(project, tail)
            raise
        finally:
            tail.begun.set()

    def _drop(self, project: str, tail: Tail) -> None:
        """Under the lock, so that whoever follows the project again does so afterwards."""
        if self._tails.get(project) is tail:
            del self._tails[project]
            self._storage.topics.unfollow(project)

    def _told(self, project: str, batch: Batch | None, before: int) -> None:
        tail = self._tails.get(project)
        if tail is not None:
            tail.told(batch, before)


def _weight(batch: Batch) -> int:
    return batch.size + OVERHEAD * len(batch.entries)
