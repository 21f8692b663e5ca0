# SPDX-License-Identifier: Apache-2.0
"""Long polls: requests that wait until a message is available (extensions contract, section 2).

Each queue has a wait queue. When a queue receives messages, the store notifies every server. A timer covers lost
notifications and messages that become ready later. A waiting request reads the store only after it was woken.

A notification wakes one of the requests that claim or pop. After a request has found a message, the next request is
woken. A notification also wakes the read-only requests, but only a few of each project at a time.

The steps of a long poll under Granian:

1. ``zq.http.waiting`` takes a slot and polls the store once. If that poll finds nothing, the request becomes pending.
2. ``zq.serving.asgi`` registers the pending request in the wait queue, and waits for a notification, the client's
   disconnect or the timeout. The request holds no thread meanwhile.
3. After a notification, ``zq.serving.asgi`` polls again. If that poll finds nothing, step 2 is repeated.

Under gunicorn, a waiting request blocks its thread; see ``PendingRequest.drive`` in ``zq.http.pending``.
"""

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from zq.clock import Clock
from zq.core.quotas import NO_QUOTAS, AnyQuotas
from zq.core.wait_queues import DEFAULT_SHARE, PollQueue, Slots, Waiter, WaitQueue
from zq.events import NO_EVENTS, Events
from zq.model import QueueRef, Seconds
from zq.model.limits import Limits, check_range
from zq.storage.api import Storage

T = TypeVar("T")
# A function that raises an error if the request must not wait any longer.
Check = Callable[[], object]
# Seconds after which a queue with waiters is polled without a notification.
RECHECK_INTERVAL: Final = 5.0
# Maximum number of polls without a notification per second in one server. With many queues, their interval grows.
MAX_RECHECKS: Final = 100
# Seconds added to every timer, so that the message is ready when the timer fires.
TIMER_SLACK: Final = 0.002
# Number of regular slots per reserve slot. The reserve has at least one slot.
SLOTS_PER_RESERVE_SLOT: Final = 4
# Seconds for which a request may wait in the reserve.
RESERVE_WAIT: Final = 1.0


class PollResult(Struct, Generic[T], frozen=True):
    """The result of a poll. ``turned_away``: no message was found, and no slot was free for waiting."""

    answer: T
    turned_away: bool = False


class Waiters:
    """The waiting requests of one server, at most ``max_waiters``. One project may use ``share`` percent of them."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        max_waiters: int,
        events: Events = NO_EVENTS,
        share: int = DEFAULT_SHARE,
        quotas: AnyQuotas = NO_QUOTAS,
    ) -> None:
        self._queues = storage.queues
        self._limits = limits
        self._slots = Slots(max_waiters, share)
        self._reserve = Slots(max(1, max_waiters // SLOTS_PER_RESERVE_SLOT), share)
        self._quotas = quotas
        self._lock = threading.Lock()
        self._wait_queues: dict[QueueRef, WaitQueue] = {}
        self._poll_queues: dict[str, PollQueue] = {}
        self._timers: list[tuple[float, QueueRef]] = []
        self._timer_set = threading.Condition(self._lock)
        self.closing = False
        self._timer_thread: threading.Thread | None = None
        self.clock = clock
        self.events = events
        storage.listen(self.wake)

    def enter(
        self,
        queue: QueueRef,
        wait: int | None,
        *,
        takes: bool,
        check: Check | None = None,
        may_use_reserve: bool = False,
    ) -> "QueuePoll":
        """Register a request that may wait up to ``wait`` seconds for a message. Return a handle for its long poll.

        Args:
            takes: Whether the request claims or pops messages. A notification wakes only one of these requests.
            check: Called before each poll, and at least every ``RECHECK_INTERVAL`` seconds. An error ends the long
                poll.
            may_use_reserve: Whether the request may wait in a reserve slot, up to ``RESERVE_WAIT`` seconds, if no other
                slot is free. Set it for clients that poll again immediately after an empty response.
        """
        if not check_range("wait", wait or 0, 0, self._limits.max_wait, unit="seconds"):
            return QueuePoll(self, queue, None, 0.0)
        began = time.monotonic()
        deadline, waiter = began + (wait or 0), self._acquire_slot(queue, takes, self._slots)
        if waiter is None and may_use_reserve and (waiter := self._acquire_slot(queue, takes, self._reserve)):
            deadline = min(deadline, began + RESERVE_WAIT)
            self.events.poll_refused()
        return QueuePoll(self, queue, waiter, deadline, check)

    def wake(self, queue: QueueRef) -> None:
        """Wake requests after messages have arrived in the queue. Does not read the store."""
        if queue in self._wait_queues:
            with self._lock:
                wait_queue = self._wait_queues.get(queue)
                if wait_queue is not None:
                    self._notify(queue.project, wait_queue)

    def _notify(self, project: str, wait_queue: WaitQueue) -> None:
        """Wake a few read-only requests, and one request that claims or pops. The caller must hold the lock."""
        for waiter in wait_queue.waiters:
            if not waiter.takes:
                self._poll_queues.setdefault(project, PollQueue()).enqueue(waiter)
        self._wake_next(project)
        wait_queue.notify_taker()

    def _wake_next(self, project: str) -> None:
        poll_queue = self._poll_queues.get(project)
        if poll_queue is not None and not poll_queue.wake_next():
            del self._poll_queues[project]

    def record_poll(self, queue: QueueRef, waiter: Waiter) -> None:
        """Record that the waiter has polled, so that another notified request of its project may poll."""
        if waiter.poll_slots:
            with self._lock:
                self._free_poll(queue.project, waiter)

    def _free_poll(self, project: str, waiter: Waiter) -> None:
        if waiter.poll_slots:
            self._poll_queues[project].free(waiter)
            self._wake_next(project)

    def recheck(self) -> None:
        """Wake all waiting requests after a clock jump, because messages may have become ready."""
        with self._lock:
            for queue, wait_queue in self._wait_queues.items():
                self._notify(queue.project, wait_queue)

    def close(self) -> None:
        """Wake all waiting requests so that they receive a response. Later requests do not wait. Idempotent."""
        with self._lock:
            self.closing = True
            for wait_queue in self._wait_queues.values():
                for waiter in wait_queue.waiters:
                    waiter.wakeup.set()
            self._timer_set.notify()

    def acquire_slot(self, project: str) -> bool:
        """Acquire a slot for a request that waits for messages of a topic.

        Return ``False`` if no slot is free, the project has used its share, or the server is stopping.
        """
        own = self._quotas.share_of(project)
        with self._lock:
            return not self.closing and self._slots.acquire(project, own)

    def release_slot(self, project: str) -> None:
        with self._lock:
            self._slots.release(project)

    def _acquire_slot(self, queue: QueueRef, takes: bool, slots: Slots) -> Waiter | None:
        own = self._quotas.share_of(queue.project)
        with self._lock:
            if self.closing or not slots.acquire(queue.project, own):
                return None
            waiter = Waiter(takes, slots)
            self._wait_queues.setdefault(queue, WaitQueue()).waiters[waiter] = None
            return waiter

    def leave(self, queue: QueueRef, waiter: Waiter) -> None:
        """Remove a waiter. If messages may be available, wake the next request that claims or pops.

        No message is available if the waiter's last poll, at its deadline, found none and no notification has arrived
        since. A read-only waiter wakes no request.
        """
        with self._lock:
            waiter.leave()
            self._free_poll(queue.project, waiter)
            waiter.slots.release(queue.project)
            wait_queue = self._wait_queues[queue]
            del wait_queue.waiters[waiter]
            if not wait_queue.waiters:
                del self._wait_queues[queue]
            elif waiter.takes and (waiter.wakeup.is_set() or not waiter.found_nothing):
                wait_queue.notify_taker()

    def schedule(self, queue: QueueRef, poll_start: Seconds) -> None:
        """Set the time at which waiting requests poll the queue again without a notification.

        This is the time at which the next message becomes ready or the next regular poll is due, whichever is earlier.
        An earlier time that is already set is kept. ``poll_start`` is the start of the last poll, which found no
        message. If a message has become ready since then, the requests poll immediately.
        """
        due = self._queues.ready(queue, 0, poll_start).next
        after = max(RECHECK_INTERVAL, len(self._wait_queues) / MAX_RECHECKS)
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


class QueuePoll:
    """The long poll of a queue by one request.

    ``waiter`` is ``None`` if the request does not wait. ``deadline`` is a monotonic time; 0 = no wait.
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
        self._last: PollResult[Any] | None = None

    def poll(
        self, ask: Callable[[], T], found: Callable[[T], object], is_disconnected: Callable[[], bool] = lambda: False
    ) -> PollResult[T] | None:
        """Poll once. Return the result, or ``None`` if the caller must wait and poll again.

        The result may have no messages, for example after the deadline or if the request does not wait.

        Args:
            ask: Polls the queue and returns the result.
            found: Returns whether a result contains messages.
            is_disconnected: Returns whether the client has disconnected. If so, a request that claims or pops does not
                poll again.
        """
        waiter, owner = self._waiter, self._owner
        if waiter is None:
            return self._at_once(ask, found)
        if waiter.takes and self._last is not None and is_disconnected():
            return self._last  # ``leave`` passes the notification on to the next waiter
        if self._check is not None and self._last is not None:
            self._check()
            if not waiter.wakeup.is_set() and self._time_left() > 0 and not owner.closing:
                return None  # woken only for the check
        waiter.begin_poll()
        asked = owner.clock.now()
        try:
            answer = ask()
        except Exception:
            waiter.wakeup.set()  # another request, possibly on another thread, must handle the notification
            raise
        finally:
            owner.record_poll(self._queue, waiter)
        if self._woken:
            owner.events.woken(bool(found(answer)))
        if found(answer):
            return PollResult(answer)
        self._last = PollResult(answer)
        owner.schedule(self._queue, asked)
        if self._time_left() > 0 and not owner.closing:
            return None
        waiter.record_empty_poll()
        return self._last

    def seconds_left(self) -> float:
        """Return the seconds until the deadline or the next check, whichever is earlier."""
        left = self._time_left()
        return left if self._check is None else min(left, RECHECK_INTERVAL)

    def _time_left(self) -> float:
        return self._deadline - time.monotonic()

    def begin(self, notify: Callable[[], object]) -> None:
        """Register a function to call when the request should poll again.

        If a notification has already arrived, call the function at once.
        """
        self._owner.events.waiting(1)
        if self._waiter is not None:
            self._waiter.wakeup.set_callback(notify)
            if self._waiter.wakeup.is_set():
                notify()

    def end(self) -> None:
        """Unregister the function that ``begin`` has registered."""
        self._owner.events.waiting(-1)
        if self._waiter is not None:
            self._waiter.wakeup.set_callback(None)
            self._woken = self._waiter.wakeup.is_set()

    def close(self) -> None:
        """End the long poll and release its slot. Idempotent."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._owner.leave(self._queue, waiter)

    def _at_once(self, ask: Callable[[], T], found: Callable[[T], object]) -> PollResult[T]:
        answer = ask()
        if not self._deadline or found(answer):
            return PollResult(answer)
        self._owner.events.poll_refused()
        return PollResult(answer, turned_away=True)
