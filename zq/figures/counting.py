# SPDX-License-Identifier: Apache-2.0
"""What goes through this process, by queue and by topic, and how long its requests take."""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.events import Events
from zq.model import Claim, Draft, Messages, Outcome, QueueRef, Seconds
from zq.model.topics import Entry, TopicRef

# What is counted of a queue, in the order of their figures; of a topic only the first.
RATES: Final = ("posted", "claimed", "finished", "lapsed")
# Names that are counted by themselves between two drains; the others of a project are counted as ``REST``.
MOST_NAMES: Final = 1000
# Names besides these, of which each is the rest of a project.
MOST_RESTS: Final = 1000
# Stands for queues and topics without figures of their own.
REST: Final = "*"
# Upper bounds in seconds of the classes that requests are counted in; the last class has none.
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

# (project, name) -> as ``RATES``.
Tally = dict[tuple[str, str], list[int]]


class Drained(Struct, frozen=True):
    """What was counted since the last drain. ``times``: requests by the classes of ``BOUNDS``."""

    queues: Tally
    topics: Tally
    times: Sequence[int]

    @property
    def requests(self) -> int:
        """How many were answered, but for those that waited for messages."""
        return sum(self.times)

    @property
    def p95(self) -> Seconds | None:
        """Within how many seconds 19 of 20 requests were answered, by the bounds of classes; None without requests."""
        wanted, seen = 0.95 * self.requests, 0
        for bound, count in zip((*BOUNDS, BOUNDS[-1]), self.times, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return None


class Counts(Events):
    """A listener: each event costs a lock and a sum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiters = self.open_streams = 0
        self._begin()

    def _begin(self) -> None:
        self._queues: Tally = {}
        self._topics: Tally = {}
        self._times = [0] * (len(BOUNDS) + 1)

    def drain(self) -> Drained:
        """What was counted since the last call."""
        with self._lock:
            drained = Drained(self._queues, self._topics, self._times)
            self._begin()
        return drained

    def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
        if not waited:
            with self._lock:
                self._times[bisect_left(BOUNDS, seconds)] += 1

    def posted(self, queue: QueueRef, drafts: Sequence[Draft]) -> None:
        self._add(queue, 0, len(drafts))

    def claimed(self, queue: QueueRef, claim: Claim, now: Seconds) -> None:
        self._add(queue, 1, len(claim.messages))
        if claim.lapsed:
            self._add(queue, 3, claim.lapsed)

    def popped(self, queue: QueueRef, messages: Messages, now: Seconds) -> None:
        self._add(queue, 2, len(messages))

    def finished(self, queue: QueueRef, outcome: Outcome, count: int) -> None:
        if count:
            self._add(queue, 2, count)

    def published(self, topic: TopicRef, entries: Sequence[Entry]) -> None:
        with self._lock:
            _of(self._topics, topic)[0] += len(entries)

    def waiting(self, change: int) -> None:
        with self._lock:
            self.waiters += change

    def streams(self, change: int) -> None:
        with self._lock:
            self.open_streams += change

    def _add(self, queue: QueueRef, rate: int, count: int) -> None:
        with self._lock:
            _of(self._queues, queue)[rate] += count


def _of(tally: Tally, name: tuple[str, str]) -> list[int]:
    """The figures of that name, or of the rest that it is part of."""
    found = tally.get(name)
    if found is None:
        if len(tally) >= MOST_NAMES:
            name = (name[0], REST) if len(tally) < MOST_NAMES + MOST_RESTS else ("", REST)
        found = tally.setdefault(tuple(name), [0] * len(RATES))  # type: ignore[arg-type]
    return found
