# SPDX-License-Identifier: Apache-2.0
"""Counters of this process: messages per queue and topic, and a histogram of request durations."""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.events import Events
from zq.model import Claim, Draft, Messages, Outcome, QueueRef, Seconds
from zq.model.topics import Entry, TopicRef

# The counters of a queue, in order. A topic has only the first.
RATES: Final = ("posted", "claimed", "finished", "lapsed")
# Maximum number of queues and topics with their own counters between two calls of ``Counts.drain``. All others of a
# project share the counters of ``OTHER_NAMES``.
MAX_NAMES: Final = 1000
# Maximum number of projects with their own ``OTHER_NAMES`` counters.
MAX_OTHERS: Final = 1000
# Name that stands for all queues or topics without their own counters.
OTHER_NAMES: Final = "*"
# Upper bounds of the histogram's buckets in seconds. One more bucket has no upper bound.
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

# A mapping from project and name to counters in the order of ``RATES``.
Tally = dict[tuple[str, str], list[int]]


class IntervalCounts(Struct, frozen=True):
    """Message and request counts of this process in one interval. ``times`` is a histogram of request durations."""

    queues: Tally
    topics: Tally
    times: Sequence[int]

    @property
    def requests(self) -> int:
        """The number of answered requests, excluding long polls."""
        return sum(self.times)

    @property
    def p95(self) -> Seconds | None:
        """The 95th percentile of request durations, rounded up to a bucket limit; None if there were no requests."""
        wanted, seen = 0.95 * self.requests, 0
        for bound, count in zip((*BOUNDS, BOUNDS[-1]), self.times, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return None


class Counts(Events):
    """An event listener that counts messages and requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiters = self.open_streams = 0
        self._begin()

    def _begin(self) -> None:
        self._queues: Tally = {}
        self._topics: Tally = {}
        self._times = [0] * (len(BOUNDS) + 1)

    def drain(self) -> IntervalCounts:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            drained = IntervalCounts(self._queues, self._topics, self._times)
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
            _counters(self._topics, topic)[0] += len(entries)

    def waiting(self, change: int) -> None:
        with self._lock:
            self.waiters += change

    def streams(self, change: int) -> None:
        with self._lock:
            self.open_streams += change

    def _add(self, queue: QueueRef, rate: int, count: int) -> None:
        with self._lock:
            _counters(self._queues, queue)[rate] += count


def _counters(tally: Tally, name: tuple[str, str]) -> list[int]:
    """Return the counters of a queue or topic. If ``tally`` is full, return shared counters for all further names."""
    found = tally.get(name)
    if found is None:
        if len(tally) >= MAX_NAMES:
            name = (name[0], OTHER_NAMES) if len(tally) < MAX_NAMES + MAX_OTHERS else ("", OTHER_NAMES)
        found = tally.setdefault(tuple(name), [0] * len(RATES))  # type: ignore[arg-type]
    return found
