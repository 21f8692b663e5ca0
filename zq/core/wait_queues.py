# SPDX-License-Identifier: Apache-2.0
"""Slots for long polls and streams, shared fairly among projects, and the wait queues of long polls."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

# Default percentage of a server's slots that one project may occupy; at least one slot.
DEFAULT_SHARE: Final = 25
# Maximum number of woken read-only requests of one project that poll concurrently.
MAX_CONCURRENT_POLLS: Final = 4


class Slots:
    """A server's limited slots for long polls or streams, shared among projects. Not thread-safe."""

    def __init__(self, count: int, share: int = DEFAULT_SHARE) -> None:
        """Create ``count`` slots. By default, one project may occupy ``share`` percent of them."""
        self._free = self._count = count
        self._share = share
        self._taken: Counter[str] = Counter()

    def share(self, own: int | None) -> int:
        """Return the number of slots that a project may occupy.

        ``own`` is the project's percentage of all slots. If ``own`` is ``None``, the default percentage applies.
        """
        return max(1, self._count * (self._share if own is None else own) // 100)

    def acquire(self, project: str, own: int | None = None) -> bool:
        """Acquire a slot for the project. Return ``False`` if no slot is free or the project has used its share."""
        if self._free <= 0 or self._taken[project] >= self.share(own):
            return False
        self._free -= 1
        self._taken[project] += 1
        return True

    def release(self, project: str) -> None:
        self._free += 1
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]


class Wakeup(threading.Event):
    """An event that wakes a waiting request.

    The event wakes the thread of the request. If the request has no thread, the event calls a callback instead.
    """

    def __init__(self) -> None:
        super().__init__()
        self._callback: Callable[[], object] | None = None

    def set_callback(self, callback: Callable[[], object] | None) -> None:
        self._callback = callback

    def set(self) -> None:
        if not self.is_set():
            super().set()
            if (callback := self._callback) is not None:
                callback()


class Waiter:
    """A request that waits for messages, and its slot.

    ``takes``: whether the request claims or pops messages. ``found_nothing``: whether the request's last poll, at its
    deadline, found no message.
    """

    __slots__ = ("found_nothing", "has_left", "is_called", "poll_slots", "slots", "takes", "wakeup")

    def __init__(self, takes: bool, slots: Slots) -> None:
        self.takes = takes
        self.slots = slots
        self.wakeup = Wakeup()
        self.found_nothing = self.has_left = False
        self.is_called = False
        """Whether the request was queued for a poll and has not polled since."""
        self.poll_slots = 0
        """Number of poll slots that the request occupies in ``PollQueue``."""

    def begin_poll(self) -> None:
        """Clear the notification before a poll. A message that arrives during the poll then sets it again."""
        self.wakeup.clear()
        self.is_called = False

    def record_empty_poll(self) -> None:
        self.found_nothing = True

    def leave(self) -> None:
        self.has_left = True


class PollQueue:
    """A queue in which one project's read-only requests wait for their turn to poll.

    At most ``MAX_CONCURRENT_POLLS`` requests of the project poll at a time.
    """

    __slots__ = ("pending", "polling")

    def __init__(self) -> None:
        self.polling = 0
        self.pending: deque[Waiter] = deque()

    def enqueue(self, waiter: Waiter) -> None:
        """Queue the waiter for a poll, unless it is already queued."""
        if not waiter.is_called:
            waiter.is_called = True
            self.pending.append(waiter)

    def wake_next(self) -> bool:
        """Wake queued waiters up to the limit of concurrent polls. Return ``False`` if no waiter polls or is queued."""
        while self.pending and self.polling < MAX_CONCURRENT_POLLS:
            waiter = self.pending.popleft()
            if not waiter.has_left:
                waiter.poll_slots += 1
                self.polling += 1
                waiter.wakeup.set()
        return self.polling > 0

    def free(self, waiter: Waiter) -> None:
        """Release the poll slots of a waiter that has polled or left, so that another waiter can poll."""
        self.polling -= waiter.poll_slots
        waiter.poll_slots = 0


class WaitQueue:
    """The requests that wait for messages of one queue, in order of arrival.

    ``timer`` is the monotonic time at which the queue is polled even if no notification arrives.
    """

    __slots__ = ("timer", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.timer = 0.0

    def set_timer(self, moment: float) -> None:
        self.timer = moment

    def notify_taker(self) -> None:
        """Wake the first sleeping waiter that claims or pops messages."""
        for waiter in self.waiters:
            if waiter.takes and not waiter.wakeup.is_set():
                waiter.wakeup.set()
                return
