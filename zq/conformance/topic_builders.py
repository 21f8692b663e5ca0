# SPDX-License-Identifier: Apache-2.0
"""Short verbs for tests of topics, so that a test reads like a specification."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from zq.clock import ManualClock
from zq.model import IdempotencyKey, Stats
from zq.model.topics import EVERYTHING, Batch, Entry, LogSlice, Pattern, PublishedMessage, Retention, TopicRef
from zq.storage.api import Storage

ROOMY = Retention(10**12, 10**9)
"""Retention that trims nothing."""
SOON = 30.0
"""Seconds within which a notification must arrive; drivers need milliseconds."""
RECHECK = 2.0
"""Seconds after which a follower reads the log, since the last notification may be lost."""
LOST = None
"""Notification that batches may be lost or were purged."""


def entries(count: int, ttl: int = 3600, size: int = 1) -> list[Entry]:
    """Return entries with the bodies 0, 1, 2 and so on, each padded to at least ``size`` bytes."""
    return [Entry((b"%d" % at).rjust(size, b" "), ttl, f"MD5:{at}" if at % 2 else "") for at in range(count)]


class Log:
    """The topics of one project of a store, with a clock."""

    def __init__(self, storage: Storage, clock: ManualClock, project: str = "acme") -> None:
        self.storage = storage
        self.clock = clock
        self.project = project

    @property
    def now(self) -> float:
        return self.clock.now()

    def of(self, project: str) -> "Log":
        """Return the topics of another project in the same store."""
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
        """Publish one batch of ``count`` messages; return their sequences."""
        first = self.put(topic, entries(count, ttl, size), keep, once)
        return list(range(first, first + count))

    def put(
        self, topic: str, batch: Sequence[Entry], keep: Retention = ROOMY, once: IdempotencyKey | None = None
    ) -> int:
        """Publish one batch and return its first sequence."""
        return self.storage.topics.publish(TopicRef(self.project, topic), batch, self.now, keep, once)

    def read(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> LogSlice:
        return self.storage.topics.read(self.project, after, limit, Pattern(match))

    def walk(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[Batch]:
        """Return all batches after a marker, and check each read against the contract of ``LogSlice``."""
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

    def messages(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[PublishedMessage]:
        """Return all living messages after a marker."""
        return [message for batch in self.walk(match, after, limit) for message in batch.messages(after, self.now)]

    def sequences(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[int]:
        return [message.sequence for message in self.messages(match, after, limit)]

    def purge(self, topic: str = "news") -> None:
        self.storage.topics.purge(TopicRef(self.project, topic))

    def stats(self, topic: str = "news") -> Stats:
        return self.storage.topics.stats(TopicRef(self.project, topic), self.now)

    def figures(self, topic: str = "news") -> tuple[int, int, int]:
        """Return the number of messages and the sequences of the oldest and the newest; zeros for an empty topic."""
        stats = self.stats(topic)
        assert stats.claimed == 0
        marks = [mark for mark in (stats.oldest, stats.newest) if mark]
        assert all(mark.id == str(mark.sequence) for mark in marks)
        oldest, newest = [mark.sequence for mark in marks] or [0, 0]
        return stats.free, oldest, newest

    def reclaim(self) -> None:
        """Run maintenance until it finds nothing more."""
        for _ in range(1000):
            if self.storage.maintain(self.now) == 0:
                return
        raise AssertionError("Maintenance finds something to reclaim forever.")


class Follower:
    """A listener that collects notified batches, and reads the batches that it has missed."""

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
            if before > self._positions[project]:  # Earlier batches were not notified, or not yet.
                self._hints[project] = max(self._hints.get(project, 0), batch.last if batch else before)
            elif batch is not None or not before:
                self._add(project, batch)
            self._news.notify_all()

    def _add(self, project: str, batch: Batch | None) -> None:
        self.told.append((project, batch))
        if batch is not None:
            self._positions[project] = max(batch.last, self._positions[project])

    def _catch_up(self) -> None:
        for project, last in list(self._hints.items()):
            while self._positions[project] < last:
                found = self._topics.read(project, self._positions[project], 1000, Pattern(EVERYTHING))
                with self._news:
                    for batch in found.batches:
                        self._add(project, batch)
                    self._positions[project] = max(found.position, self._positions[project])

    def batches(self, project: str = "acme") -> list[Batch]:
        """Return each notified batch of the project once, in the order of first notification."""
        with self._news:
            return list({batch.sequence: batch for name, batch in self.told if name == project and batch}.values())

    def wait_for(self, condition: Callable[[], bool], seconds: float = SOON) -> bool:
        """Wait up to ``seconds`` for the condition, and return whether it has become true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._catch_up()
            with self._news:
                if condition():
                    return True
                self._news.wait(0.05)
        return False

    def receives(self, sequence: int, project: str = "acme") -> bool:
        """Return whether the batch that begins at ``sequence`` arrives. Like a server, read a lost one from the log."""

        def heard() -> bool:
            return any(name == project and batch and batch.sequence == sequence for name, batch in self.told)

        if self.wait_for(heard, RECHECK):
            return True
        with self._news:
            self._hints[project] = max(self._hints.get(project, 0), self._last(project))
        return self.wait_for(heard)

    def receives_loss(self, project: str = "acme") -> bool:
        return self.wait_for(lambda: (project, LOST) in self.told)
