# SPDX-License-Identifier: Apache-2.0
"""Long polls: requests that wait until there is something to answer (extensions 2).

The store tells of queues that messages came to, in whatever process; one thread watches the clock for those that become
ready by the passing of time, and for tellings that were lost. Who waits asks the store only when woken. Of those that
want to take messages one is woken, and wakes the next one if it found something; of those that only look, all are.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from msgspec import Struct

from zq.broker.watch import UNWATCHED, Watch
from zq.clock import Clock
from zq.limits import Limits, within
from zq.model import QueueRef, Seconds
from zq.storage.api import Storage

T = TypeVar("T")
RECHECK: Final = 5.0
"""Seconds after which a queue with waiters is looked at though nothing was told."""
LOOKS: Final = 100
"""How often a second one server does so at most; where the queues are many, each has to wait longer."""
LATE: Final = 0.002
"""Seconds that the alarm rings after the moment for which it was set, so that the moment has surely come."""


class Polled(Struct, Generic[T], frozen=True):
    """What a poll came to. ``turned_away``: there was nothing, and no place to wait for it."""

    answer: T
    turned_away: bool = False


class _Waiter:
    """One waiting thread. ``in_vain``: the last look of one whose time is up found nothing."""

    __slots__ = ("bell", "in_vain", "takes")

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.bell = threading.Event()
        self.in_vain = False


class _Line:
    """All who wait for one queue, in the order in which they came, and when it is to be looked at next."""

    __slots__ = ("alarm", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[_Waiter, None] = {}
        self.alarm = 0.0

    def ring(self) -> None:
        """Wake all who look, and the first who takes."""
        for waiter in self.waiters:
            if not waiter.takes:
                waiter.bell.set()
        self.ring_taker()

    def ring_taker(self) -> None:
        """Wake the first who takes and is not awake."""
        for waiter in self.waiters:
            if waiter.takes and not waiter.bell.is_set():
                waiter.bell.set()
                return


class Waiters:
    """The requests of one server that wait. ``most`` of them at a time."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, most: int, watch: Watch = UNWATCHED) -> None:
        self._queues = storage.queues
        self._clock = clock
        self._limits = limits
        self._free = most
        self._lock = threading.Lock()
        self._lines: dict[QueueRef, _Line] = {}
        self._alarms: list[tuple[float, QueueRef]] = []
        self._set_alarm = threading.Condition(self._lock)
        self._closing = False
        self._alarm_clock: threading.Thread | None = None
        self._watch = watch
        storage.listen(self.wake)

    def poll(
        self,
        queue: QueueRef,
        wait: int | None,
        ask: Callable[[], T],
        found: Callable[[T], object],
        *,
        takes: bool,
        gone: Callable[[], bool] = lambda: False,
    ) -> Polled[T]:
        """What ``ask`` answers as soon as that is something, at the latest after ``wait`` seconds.

        ``takes``: asking takes what it finds, so it is not done for one who waited and is ``gone``.
        Raises ``Invalid`` for a ``wait`` out of bounds, before asking.
        """
        if not within("wait", wait or 0, 0, self._limits.max_wait):
            return Polled(ask())
        deadline = time.monotonic() + (wait or 0)
        with self._place(queue, takes) as waiter:
            if waiter is None:
                return self._at_once(ask, found)
            woken = False
            while True:
                waiter.bell.clear()
                asked = self._clock.now()
                answer = ask()
                if woken:
                    self._watch.woken(bool(found(answer)))
                if found(answer):
                    return Polled(answer)
                self._expect(queue, asked)
                left = deadline - time.monotonic()
                if left <= 0 or self._closing:
                    waiter.in_vain = True
                    return Polled(answer)
                woken = self._wait(waiter, left)
                if takes and gone():
                    return Polled(answer)  # what came is the next one's: see _leave

    def _at_once(self, ask: Callable[[], T], found: Callable[[T], object]) -> Polled[T]:
        """For whom there is no place to wait."""
        answer = ask()
        if found(answer):
            return Polled(answer)
        self._watch.turned_away()
        return Polled(answer, turned_away=True)

    def _wait(self, waiter: _Waiter, seconds: float) -> bool:
        """Whether the waiter was woken within so many seconds."""
        self._watch.waiting(1)
        try:
            return waiter.bell.wait(seconds)
        finally:
            self._watch.waiting(-1)

    def wake(self, queue: QueueRef) -> None:
        """Something came to the queue. Returns at once; most of the time nobody waits."""
        if queue in self._lines:
            with self._lock:
                line = self._lines.get(queue)
                if line is not None:
                    line.ring()

    def close(self) -> None:
        """Answer all who wait, and let nobody wait any more. May be called twice."""
        with self._lock:
            self._closing = True
            for line in self._lines.values():
                for waiter in line.waiters:
                    waiter.bell.set()
            self._set_alarm.notify()

    @contextmanager
    def seat(self) -> Iterator[bool]:
        """A place for a request that waits for something else than a queue; False if there is none."""
        with self._lock:
            seated = self._free > 0 and not self._closing
            self._free -= seated
        try:
            yield seated
        finally:
            with self._lock:
                self._free += seated

    @contextmanager
    def _place(self, queue: QueueRef, takes: bool) -> Iterator[_Waiter | None]:
        """A place to wait, or None."""
        with self._lock:
            if not self._free or self._closing:
                waiter = None
            else:
                self._free -= 1
                waiter = _Waiter(takes)
                self._lines.setdefault(queue, _Line()).waiters[waiter] = None
        if waiter is None:
            yield None
            return
        try:
            yield waiter
        finally:
            self._leave(queue, waiter)

    def _leave(self, queue: QueueRef, waiter: _Waiter) -> None:
        """Whoever leaves wakes the next one, for there may be more; but for one that looked in vain and was not woken
        since."""
        with self._lock:
            self._free += 1
            line = self._lines[queue]
            del line.waiters[waiter]
            if not line.waiters:
                del self._lines[queue]
            elif waiter.takes and (waiter.bell.is_set() or not waiter.in_vain):
                line.ring_taker()

    def _expect(self, queue: QueueRef, asked: Seconds) -> None:
        """Have the queue looked at when a message becomes ready by itself, or when it is time to look anyway.

        ``asked``: a moment not after the one by which nothing was found. What has become ready since is due at once.
        """
        due = self._queues.due(queue, asked)
        after = max(RECHECK, len(self._lines) / LOOKS)
        if due is not None:
            after = min(after, max(0.0, due - self._clock.now()) + LATE)
        alarm = time.monotonic() + after
        with self._lock:
            line = self._lines.get(queue)
            if line is None or time.monotonic() < line.alarm <= alarm:
                return
            line.alarm = alarm
            heappush(self._alarms, (alarm, queue))
            if self._alarm_clock is None:
                alarm_clock = threading.Thread(target=self._run, name="zq-waiters", daemon=True)
                alarm_clock.start()
                self._alarm_clock = alarm_clock
            elif self._alarms[0][0] == alarm:
                self._set_alarm.notify()

    def _run(self) -> None:
        """Ring when alarms are due."""
        with self._lock:
            while not self._closing:
                if not self._alarms:
                    self._set_alarm.wait()
                    continue
                moment, queue = self._alarms[0]
                left = moment - time.monotonic()
                if left > 0:
                    self._set_alarm.wait(left)
                    continue
                heappop(self._alarms)
                line = self._lines.get(queue)
                if line is not None and line.alarm == moment:
                    line.ring()
