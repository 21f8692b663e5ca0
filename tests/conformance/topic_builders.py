# SPDX-License-Identifier: Apache-2.0
"""Short words for the verbs of topics, so that a test reads as the sentence that it proves."""

import threading
from collections.abc import Callable, Sequence

from zq.clock import ManualClock
from zq.model import Once, Stats
from zq.storage.api import Storage
from zq.topics import EVERYTHING, Batch, Entry, Keep, Pattern, Published, Reading, TopicRef

ROOMY = Keep(10**12, 10**9)
"""Nothing falls off."""
SOON = 5.0
"""Seconds within which a listener must have heard; drivers need milliseconds."""
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
        keep: Keep = ROOMY,
        once: Once | None = None,
    ) -> list[int]:
        """One batch of ``count`` messages; their sequences."""
        first = self.put(topic, entries(count, ttl, size), keep, once)
        return list(range(first, first + count))

    def put(self, topic: str, batch: Sequence[Entry], keep: Keep = ROOMY, once: Once | None = None) -> int:
        """One batch; its first sequence."""
        return self.storage.topics.publish(TopicRef(self.project, topic), batch, self.now, keep, once)

    def read(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> Reading:
        return self.storage.topics.read(self.project, after, limit, Pattern(match))

    def walk(self, match: str = EVERYTHING, after: int = 0, limit: int = 1000) -> list[Batch]:
        """All batches from a marker to the log's end, by position, as ``Reading`` promises them."""
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
    """A listener that remembers what it was told."""

    def __init__(self, storage: Storage, *projects: str) -> None:
        self.told: list[tuple[str, Batch | None]] = []
        self.before: dict[int, int] = {}
        """By a batch's sequence: what it was said to follow."""
        self._news = threading.Condition()
        self.topics = storage.topics
        self.topics.listen(self)
        for project in projects:
            self.topics.follow(project)

    def __call__(self, project: str, batch: Batch | None, before: int) -> None:
        with self._news:
            if batch is not None:
                self.before[batch.sequence] = before
            self.told.append((project, batch))
            self._news.notify_all()

    def batches(self, project: str = "acme") -> list[Batch]:
        """Each of the project that it was told, once, in the order of being told first."""
        with self._news:
            return list({batch.sequence: batch for name, batch in self.told if name == project and batch}.values())

    def hears(self, condition: Callable[[], bool]) -> bool:
        """Whether what it has heard is enough, or will be soon."""
        with self._news:
            return self._news.wait_for(condition, SOON)

    def hears_of(self, sequence: int, project: str = "acme") -> bool:
        """Whether it hears of the batch that begins so."""
        return self.hears(lambda: any(name == project and b and b.sequence == sequence for name, b in self.told))

    def hears_of_loss(self, project: str = "acme") -> bool:
        return self.hears(lambda: (project, LOST) in self.told)
