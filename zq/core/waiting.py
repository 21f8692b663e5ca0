# SPDX-License-Identifier: Apache-2.0
"""Long polls: requests that wait until there is something to answer (extensions 2).

Each queue has a wait queue. The store notifies of queues that messages came to, in whatever process; a timer does so
for messages that become ready by the passing of time, and for notifications that were lost. A request that waits asks
the store only when it is woken. Of the requests that want to take messages one is woken, and wakes the next one if it
found something; of those that only look, all are, of one project a few at a time.
"""

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from zq.clock import Clock
from zq.core.quotas import NO_QUOTAS, AnyQuotas
from zq.core.wait_queues import SHARE, Lookers, Slots, Waiter, WaitQueue
from zq.events import NO_EVENTS, Events
from zq.limits import Limits, within
from zq.model import QueueRef, Seconds
from zq.storage.api import Storage

T = TypeVar("T")
# Raises if whoever waits may not wait on.
Check = Callable[[], object]
# Seconds after which a queue with waiters is looked at without a notification.
RECHECK: Final = 5.0
# How often a second one server does so at most; where the queues are many, each has to wait longer.
MAX_RECHECKS: Final = 100
# Seconds by which a timer fires after the moment for which it was set, so that the moment has surely come.
TIMER_SLACK: Final = 0.002
# Of so many slots there is one more in the reserve, and at least one.
RESERVED: Final = 4
# Seconds for which a request may wait in the reserve.
PAUSE: Final = 1.0


class Polled(Struct, Generic[T], frozen=True):
    """What a poll came to. ``turned_away``: there was nothing, and no slot to wait in."""

    answer: T
    turned_away: bool = False


class Waiters:
    """The requests of one server that wait: ``most`` at a time, and of one project ``share`` percent of that."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        most: int,
        events: Events = NO_EVENTS,
        share: int = SHARE,
        quotas: AnyQuotas = NO_QUOTAS,
    ) -> None:
        self._queues = storage.queues
        self._limits = limits
        self._slots = Slots(most, share)
        self._reserve = Slots(max(1, most // RESERVED), share)
        self._quotas = quotas
        self._lock = threading.Lock()
        self._wait_queues: dict[QueueRef, WaitQueue] = {}
        self._lookers: dict[str, Lookers] = {}
        self._timers: list[tuple[float, QueueRef]] = []
        self._timer_set = threading.Condition(self._lock)
        self.closing = False
        self._timer_thread: threading.Thread | None = None
        self.clock = clock
        self.events = events
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
        check: Check | None = None,
        paused: bool = False,
    ) -> Polled[T]:
        """What ``ask`` answers as soon as that is something, at the latest after ``wait`` seconds.

        ``takes``: asking takes what it finds, so it is not done for one who waited and is ``gone``. ``check``: called
        while it waits, at least every ``RECHECK`` seconds and before it asks again; what it raises ends the wait.
        ``paused``: its caller would come again at once if it were turned away, so that it waits in the reserve then,
        for ``PAUSE`` seconds, if there is room. Raises ``Invalid`` for a ``wait`` out of bounds, before asking.
        """
        visit = self.enter(queue, wait, takes=takes, check=check, paused=paused)
        try:
            while (polled := visit.look(ask, found, gone)) is None:
                visit.sleep()
            return polled
        finally:
            visit.close()

    def enter(
        self, queue: QueueRef, wait: int | None, *, takes: bool, check: Check | None = None, paused: bool = False
    ) -> "Visit":
        """The same for a request that has no thread to spend: it looks, and between two looks it is notified.

        Raises ``Invalid`` for a ``wait`` out of bounds.
        """
        if not within("wait", wait or 0, 0, self._limits.max_wait):
            return Visit(self, queue, None, 0.0)
        began = time.monotonic()
        deadline, waiter = began + (wait or 0), self._take_slot(queue, takes, self._slots)
        if waiter is None and paused and (waiter := self._take_slot(queue, takes, self._reserve)):
            deadline = min(deadline, began + PAUSE)
            self.events.turned_away()
        return Visit(self, queue, waiter, deadline, check)

    def wake(self, queue: QueueRef) -> None:
        """Something came to the queue. Returns at once; most of the time nobody waits."""
        if queue in self._wait_queues:
            with self._lock:
                wait_queue = self._wait_queues.get(queue)
                if wait_queue is not None:
                    self._notify(queue.project, wait_queue)

    def _notify(self, project: str, wait_queue: WaitQueue) -> None:
        """Wake all that look, a few at a time, and the first that takes. Under the lock."""
        for waiter in wait_queue.waiters:
            if not waiter.takes:
                self._lookers.setdefault(project, Lookers()).call(waiter)
        self._wake_lookers(project)
        wait_queue.notify_taker()

    def _wake_lookers(self, project: str) -> None:
        lookers = self._lookers.get(project)
        if lookers is not None and not lookers.wake_next():
            del self._lookers[project]

    def looked(self, queue: QueueRef, waiter: Waiter) -> None:
        """Let the next one look that was notified."""
        if waiter.places:
            with self._lock:
                self._free(queue.project, waiter)

    def _free(self, project: str, waiter: Waiter) -> None:
        if waiter.places:
            self._lookers[project].free(waiter)
            self._wake_lookers(project)

    def recheck(self) -> None:
        """Have all that wait look again: the clock has leapt, and messages may have become ready by it."""
        with self._lock:
            for queue, wait_queue in self._wait_queues.items():
                self._notify(queue.project, wait_queue)

    def close(self) -> None:
        """Answer all requests that wait, and let none wait any more. May be called twice."""
        with self._lock:
            self.closing = True
            for wait_queue in self._wait_queues.values():
                for waiter in wait_queue.waiters:
                    waiter.wakeup.set()
            self._timer_set.notify()

    def take_slot(self, project: str) -> bool:
        """Take a slot for a request that waits for something else than a queue; False if there is none."""
        own = self._quotas.share_of(project)
        with self._lock:
            return not self.closing and self._slots.take(project, own)

    def give_back_slot(self, project: str) -> None:
        """Give that slot back."""
        with self._lock:
            self._slots.give_back(project)

    def _take_slot(self, queue: QueueRef, takes: bool, slots: Slots) -> Waiter | None:
        """A slot in the wait queue, or None."""
        own = self._quotas.share_of(queue.project)
        with self._lock:
            if self.closing or not slots.take(queue.project, own):
                return None
            waiter = Waiter(takes, slots)
            self._wait_queues.setdefault(queue, WaitQueue()).waiters[waiter] = None
            return waiter

    def leave(self, queue: QueueRef, waiter: Waiter) -> None:
        """Leave the wait queue. The next one is woken, for there may be more, but not by one that looked in vain and
        was not woken since."""
        with self._lock:
            waiter.leave()
            self._free(queue.project, waiter)
            waiter.slots.give_back(queue.project)
            wait_queue = self._wait_queues[queue]
            del wait_queue.waiters[waiter]
            if not wait_queue.waiters:
                del self._wait_queues[queue]
            elif waiter.takes and (waiter.wakeup.is_set() or not waiter.in_vain):
                wait_queue.notify_taker()

    def schedule(self, queue: QueueRef, asked: Seconds) -> None:
        """Set the queue's timer to when a message becomes ready by itself, or when it is time to look anyway.

        ``asked``: a moment not after the one by which nothing was found. What has become ready since is due at once.
        """
        due = self._queues.ready(queue, 0, asked).next
        after = max(RECHECK, len(self._wait_queues) / MAX_RECHECKS)
        if due is not None:
            after = min(after, max(0.0, due - self.clock.now()) + TIMER_SLACK)
        timer = time.monotonic() + after
        with self._lock:
            wait_queue = self._wait_queues.get(queue)
            if wait_queue is None or time.monotonic() < wait_queue.timer <= timer:
                return
            wait_queue.set_timer(timer)
            heappush(self._timers, (timer, queue))
            if self._timer_thread is None:
                timer_thread = threading.Thread(target=self._run, name="zq-waiters", daemon=True)
                timer_thread.start()
                self._timer_thread = timer_thread
            elif self._timers[0][0] == timer:
                self._timer_set.notify()

    def _run(self) -> None:
        """Notify the wait queues whose timers fire."""
        with self._lock:
            while not self.closing:
                if not self._timers:
                    self._timer_set.wait()
                    continue
                moment, queue = self._timers[0]
                left = moment - time.monotonic()
                if left > 0:
                    self._timer_set.wait(left)
                    continue
                heappop(self._timers)
                wait_queue = self._wait_queues.get(queue)
                if wait_queue is not None and wait_queue.timer == moment:
                    self._notify(queue.project, wait_queue)


class Visit:
    """One request's way to the messages of a queue; see ``Waiters.poll``.

    ``waiter`` is None if it does not wait, or there was no slot to: ``deadline``, of the monotonic clock, tells which.
    """

    def __init__(
        self,
        owner: Waiters,
        queue: QueueRef,
        waiter: Waiter | None,
        deadline: float,
        check: Check | None = None,
    ) -> None:
        self._owner = owner
        self._queue = queue
        self._waiter = waiter
        self._deadline = deadline
        self._check = check
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
        if self._check is not None and self._last is not None:
            self._check()
            if not waiter.wakeup.is_set() and self._time_left() > 0 and not owner.closing:
                return None  # it was time to check, and nothing else
        waiter.begin_look()
        asked = owner.clock.now()
        try:
            answer = ask()
        except Exception:
            waiter.wakeup.set()  # what it was notified of is still to be looked at, maybe on another thread
            raise
        finally:
            owner.looked(self._queue, waiter)
        if self._woken:
            owner.events.woken(bool(found(answer)))
        if found(answer):
            return Polled(answer)
        self._last = Polled(answer)
        owner.schedule(self._queue, asked)
        if self._time_left() > 0 and not owner.closing:
            return None
        waiter.end_in_vain()
        return self._last

    def left(self) -> float:
        """Seconds until the time is up, or it is time to check whether it may wait on."""
        left = self._time_left()
        return left if self._check is None else min(left, RECHECK)

    def _time_left(self) -> float:
        return self._deadline - time.monotonic()

    def sleep(self) -> None:
        """Return when it is woken, or the time is up."""
        self.begin()
        if self._waiter is not None:
            self._waiter.wakeup.wait(self.left())
        self.end()

    def begin(self, notify: Callable[[], object] | None = None) -> None:
        """It waits from now on. ``notify`` is called when it is to look again, if need be at once."""
        self._owner.events.waiting(1)
        if self._waiter is not None and notify is not None:
            self._waiter.wakeup.notify(notify)
            if self._waiter.wakeup.is_set():
                notify()

    def end(self) -> None:
        """It waits no more."""
        self._owner.events.waiting(-1)
        if self._waiter is not None:
            self._waiter.wakeup.notify(None)
            self._woken = self._waiter.wakeup.is_set()

    def close(self) -> None:
        """Give the slot back. May be called twice."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._owner.leave(self._queue, waiter)

    def _at_once(self, ask: Callable[[], T], found: Callable[[T], object]) -> Polled[T]:
        """For a request that does not wait, or finds no slot to."""
        answer = ask()
        if not self._deadline or found(answer):
            return Polled(answer)
        self._owner.events.turned_away()
        return Polled(answer, turned_away=True)
