# SPDX-License-Identifier: Apache-2.0
"""Long polls: requests that wait until there is something to answer (extensions 2).

The store tells of queues that messages came to, in whatever process; one thread watches the clock for those that become
ready by the passing of time, and for tellings that were lost. Who waits asks the store only when woken. Of those that
want to take messages one is woken, and wakes the next one if it found something; of those that only look, all are.
"""

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from zq.broker.places import Places
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


class _Bell(threading.Event):
    """Wakes a thread that waits for it, and calls ``tell`` for who waits without one."""

    tell: Callable[[], object] | None = None

    def set(self) -> None:
        if not self.is_set():
            super().set()
            if (tell := self.tell) is not None:
                tell()


class _Waiter:
    """One request that waits. ``in_vain``: the last look of one whose time is up found nothing."""

    __slots__ = ("bell", "in_vain", "takes")

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.bell = _Bell()
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
    """The requests of one server that wait. ``most`` of them at a time, and of one project a quarter of that."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, most: int, watch: Watch = UNWATCHED) -> None:
        self._queues = storage.queues
        self._limits = limits
        self._places = Places(most)
        self._lock = threading.Lock()
        self._lines: dict[QueueRef, _Line] = {}
        self._alarms: list[tuple[float, QueueRef]] = []
        self._set_alarm = threading.Condition(self._lock)
        self.closing = False
        self._alarm_clock: threading.Thread | None = None
        self.clock = clock
        self.watch = watch
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
        visit = self.enter(queue, wait, takes=takes)
        try:
            while (polled := visit.look(ask, found, gone)) is None:
                visit.sleep()
            return polled
        finally:
            visit.close()

    def enter(self, queue: QueueRef, wait: int | None, *, takes: bool) -> "Visit":
        """The same for one who has no thread to spend: looks, and between two looks is rung for.

        Raises ``Invalid`` for a ``wait`` out of bounds.
        """
        if not within("wait", wait or 0, 0, self._limits.max_wait):
            return Visit(self, queue, None, 0.0)
        deadline = time.monotonic() + (wait or 0)
        return Visit(self, queue, self._place(queue, takes), deadline)

    def wake(self, queue: QueueRef) -> None:
        """Something came to the queue. Returns at once; most of the time nobody waits."""
        if queue in self._lines:
            with self._lock:
                line = self._lines.get(queue)
                if line is not None:
                    line.ring()

    def recheck(self) -> None:
        """Have all who wait look again: the clock has leapt, and messages may have become ready by it."""
        with self._lock:
            for line in self._lines.values():
                line.ring()

    def close(self) -> None:
        """Answer all who wait, and let nobody wait any more. May be called twice."""
        with self._lock:
            self.closing = True
            for line in self._lines.values():
                for waiter in line.waiters:
                    waiter.bell.set()
            self._set_alarm.notify()

    def sit(self, project: str) -> bool:
        """Take a place for a request that waits for something else than a queue; False if there is none."""
        with self._lock:
            return not self.closing and self._places.take(project)

    def rise(self, project: str) -> None:
        """Give it back."""
        with self._lock:
            self._places.give_back(project)

    def _place(self, queue: QueueRef, takes: bool) -> _Waiter | None:
        """A place to wait, or None."""
        with self._lock:
            if self.closing or not self._places.take(queue.project):
                return None
            waiter = _Waiter(takes)
            self._lines.setdefault(queue, _Line()).waiters[waiter] = None
            return waiter

    def leave(self, queue: QueueRef, waiter: _Waiter) -> None:
        """Whoever leaves wakes the next one, for there may be more; but for one that looked in vain and was not woken
        since."""
        with self._lock:
            self._places.give_back(queue.project)
            line = self._lines[queue]
            del line.waiters[waiter]
            if not line.waiters:
                del self._lines[queue]
            elif waiter.takes and (waiter.bell.is_set() or not waiter.in_vain):
                line.ring_taker()

    def expect(self, queue: QueueRef, asked: Seconds) -> None:
        """Have the queue looked at when a message becomes ready by itself, or when it is time to look anyway.

        ``asked``: a moment not after the one by which nothing was found. What has become ready since is due at once.
        """
        due = self._queues.due(queue, asked)
        after = max(RECHECK, len(self._lines) / LOOKS)
        if due is not None:
            after = min(after, max(0.0, due - self.clock.now()) + LATE)
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
            while not self.closing:
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


class Visit:
    """One request's way to the messages of a queue; see ``Waiters.poll``.

    ``waiter`` is None if it does not wait, or there was no place to: ``deadline``, of the monotonic clock, tells which.
    """

    def __init__(self, owner: Waiters, queue: QueueRef, waiter: _Waiter | None, deadline: float) -> None:
        self._owner = owner
        self._queue = queue
        self._waiter = waiter
        self._deadline = deadline
        self._woken = False
        self._last: Polled[Any] | None = None

    def look(
        self, ask: Callable[[], T], found: Callable[[T], object], gone: Callable[[], bool] = lambda: False
    ) -> Polled[T] | None:
        """What ``ask`` answers, if that is something or the time is up; else None: sleep, and look again."""
        waiter, owner = self._waiter, self._owner
        if waiter is None:
            return self._at_once(ask, found)
        if waiter.takes and self._last is not None and gone():
            return self._last  # what came is the next one's: see leave
        waiter.bell.clear()
        asked = owner.clock.now()
        answer = ask()
        if self._woken:
            owner.watch.woken(bool(found(answer)))
        if found(answer):
            return Polled(answer)
        self._last = Polled(answer)
        owner.expect(self._queue, asked)
        if self.left() > 0 and not owner.closing:
            return None
        waiter.in_vain = True
        return self._last

    def left(self) -> float:
        """Seconds until the time is up."""
        return self._deadline - time.monotonic()

    def sleep(self) -> None:
        """Return when it is woken, or the time is up."""
        self.begin()
        if self._waiter is not None:
            self._waiter.bell.wait(self.left())
        self.end()

    def begin(self, ring: Callable[[], object] | None = None) -> None:
        """It waits from now on. ``ring`` is called when it is to look again, if need be at once."""
        self._owner.watch.waiting(1)
        if self._waiter is not None and ring is not None:
            self._waiter.bell.tell = ring
            if self._waiter.bell.is_set():
                ring()

    def end(self) -> None:
        """It waits no more."""
        self._owner.watch.waiting(-1)
        if self._waiter is not None:
            self._waiter.bell.tell = None
            self._woken = self._waiter.bell.is_set()

    def close(self) -> None:
        """Give the place back. May be called twice."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._owner.leave(self._queue, waiter)

    def _at_once(self, ask: Callable[[], T], found: Callable[[T], object]) -> Polled[T]:
        """For one who does not wait, or finds no place to."""
        answer = ask()
        if not self._deadline or found(answer):
            return Polled(answer)
        self._owner.watch.turned_away()
        return Polled(answer, turned_away=True)
