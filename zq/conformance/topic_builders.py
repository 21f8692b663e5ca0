# SPDX-License-Identifier: Apache-2.0
"""Short words for the verbs of topics, so that a test reads as the sentence that it proves."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from zq.clock import ManualClock
from zq.model import IdempotencyKey, Stats
from zq.model.topics import EVERYTHING, Batch, Entry, LogSlice, Pattern, Published, Retention, TopicRef
from zq.storage.api import Storage

ROOMY = Retention(10**12, 10**9)
"""Nothing falls off."""
SOON = 30.0
"""Seconds within which a listener must have heard; drivers need milliseconds."""
RECHECK = 2.0
"""Seconds after which a follower reads what it was not told: the last hint of all may be lost."""
LOST = None
"""What a listener is told when something may be lost, or was purged."""


def entries(count: int, ttl: int = 3600, size: int = 1) -> list[Entry]:
    """Messages on their way in, of so many bytes each at least, with bodies 0, 1, 2 and so on."""
    return [Entry((b"%d" % at).rjust(size, b" "), ttl, f"MD5:{at}" if at % 2 else "") for at in range(count)]


class Log:
    """The topics of one project of one store, at one clock."""

    def __init__(self, storage: Storage, clock: ManualClock, project: str = "acme") -> None:
        self.storage = storage
        self.clock = clock
        self.project = project

    @property
    def now(self) -> float:
        return self.clock.now()

    def of(self, project: str) -> "Log":
        """The same store and clock, another project."""
        return Log(self.storage, self.clock, project)

    def publish(
        self,
        topic: str = "news",
        count: int = 1,
        *,
        ttl: int = 3600,
        size: int = 1,
        keep: Retention = ROOMY,
        once: IdempotencyKey | None = None,
    ) -> list[int]:
        """One batch of ``count`` messages; their sequences."""
        first = self.put(topic, entries(count, ttl, size), keep, once)
        return list(range(first, first + count))

    def put(
        self, topic: str, batch: Sequence[Entry], keep: Retention = ROOMY, once: IdempotencyKey | None = None
    ) -> int:
        """One batch; its first sequence."""
        return self.storage.topics.publish(TopicRef(self.project, topic), batch, self.now, keep, once)

    def read(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> LogSlice:
        return self.storage.topics.read(self.project, after, limit, Pattern(match))

    def walk(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[Batch]:
        """All batches from a marker to the log's end, by position, as ``LogSlice`` promises them."""
        pattern, seen = Pattern(match), list[Batch]()
        while True:
            told = self.storage.topics.read(self.project, after, limit, pattern)
            ends = [batch.last for batch in told.batches]
            assert all(pattern.matches(batch.topic) for batch in told.batches)
            assert ends == sorted(set(ends))
            assert not ends or (after < ends[0] and ends[-1] <= told.position)
            assert told.more == (told.position < told.last)
            seen += told.batches
            if not told.more:
                assert told.position == max(after, told.last)
                return seen
            assert told.position > after, "The reader does not move on."
            after = told.position

    def messages(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[Published]:
        """All living messages from a marker to the log's end."""
        return [message for batch in self.walk(match, after, limit) for message in batch.messages(after, self.now)]

    def sequences(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[int]:
        return [message.sequence for message in self.messages(match, after, limit)]

    def purge(self, topic: str = "news") -> None:
        self.storage.topics.purge(TopicRef(self.project, topic))

    def stats(self, topic: str = "news") -> Stats:
        return self.storage.topics.stats(TopicRef(self.project, topic), self.now)

    def figures(self, topic: str = "news") -> tuple[int, int, int]:
        """(how many there are, the oldest one's sequence, the newest one's); zeros for nothing."""
        stats = self.stats(topic)
        assert stats.claimed == 0
        marks = [mark for mark in (stats.oldest, stats.newest) if mark]
        assert all(mark.id == str(mark.sequence) for mark in marks)
        oldest, newest = [mark.sequence for mark in marks] or [0, 0]
        return stats.free, oldest, newest

    def reclaim(self) -> None:
        """Maintenance until it finds nothing more."""
        for _ in range(1000):
            if self.storage.maintain(self.now) == 0:
                return
        raise AssertionError("Maintenance finds something to reclaim forever.")


class Follower:
    """A listener that remembers what it was told, and reads what it was only told of."""

    def __init__(self, storage: Storage, *projects: str) -> None:
        self.told: list[tuple[str, Batch | None]] = []
        self._news = threading.Condition()
        self._topics = storage.topics
        self._positions = {project: self._last(project) for project in projects}
        self._hints: dict[str, int] = {}
        self.unsubscribe = {
            project: self._topics.subscribe(project, partial(self._hear, project)) for project in projects
        }

    def _last(self, project: str) -> int:
        return self._topics.read(project, 1 << 62, 1, Pattern(EVERYTHING)).last

    def _hear(self, project: str, batch: Batch | None, before: int) -> None:
        with self._news:
            if before > self._positions[project]:  # what lies before it was not told, or not yet
                self._hints[project] = max(self._hints.get(project, 0), batch.last if batch else before)
            elif batch is not None or not before:
                self._add(project, batch)
            self._news.notify_all()

    def _add(self, project: str, batch: Batch | None) -> None:
        self.told.append((project, batch))
        if batch is not None:
            self._positions[project] = max(batch.last, self._positions[project])

    def _catch_up(self) -> None:
        """Read what hints are about."""
        for project, last in list(self._hints.items()):
            while self._positions[project] < last:
                found = self._topics.read(project, self._positions[project], 1000, Pattern(EVERYTHING))
                with self._news:
                    for batch in found.batches:
                        self._add(project, batch)
                    self._positions[project] = max(found.position, self._positions[project])

    def batches(self, project: str = "acme") -> list[Batch]:
        """Each of the project that it was told, once, in the order of being told first."""
        with self._news:
            return list({batch.sequence: batch for name, batch in self.told if name == project and batch}.values())

    def hears(self, condition: Callable[[], bool], seconds: float = SOON) -> bool:
        """Whether what it has heard is enough, or will be within so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._catch_up()
            with self._news:
                if condition():
                    return True
                self._news.wait(0.05)
        return False

    def hears_of(self, sequence: int, project: str = "acme") -> bool:
        """Whether it hears of the batch that begins so; as a server does, it reads in the end what it was not told."""

        def heard() -> bool:
            return any(name == project and batch and batch.sequence == sequence for name, batch in self.told)

        if self.hears(heard, RECHECK):
            return True
        with self._news:
            self._hints[project] = max(self._hints.get(project, 0), self._last(project))
        return self.hears(heard)

    def hears_of_loss(self, project: str = "acme") -> bool:
        return self.hears(lambda: (project, LOST) in self.told)
