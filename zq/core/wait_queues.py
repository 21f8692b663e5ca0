# SPDX-License-Identifier: Apache-2.0
"""Slots for long polls and streams, shared fairly among projects, and the queues in which long polls wait."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

# Default percentage of a server's slots that one project may take (at least one slot).
SHARE: Final = 25
# Maximum number of notified read-only requests of one project that look at the same time.
MAX_LOOKING: Final = 4


class Slots:
    """The slots of one server for long polls or streams. The caller serializes calls with a lock."""

    def __init__(self, most: int, share: int = SHARE) -> None:
        """Initialize ``most`` slots, of which one project may take ``share`` percent by default."""
        self._free = self._most = most
        self._share = share
        self._taken: Counter[str] = Counter()

    def share(self, own: int | None) -> int:
        """Return how many slots a project may take.

        ``own``: the project's percentage, if it differs from the default.
        """
        return max(1, self._most * (self._share if own is None else own) // 100)

    def take(self, project: str, own: int | None = None) -> bool:
        """Take a slot for the project. Return ``False`` if none is free, or if the project's share is used up."""
        if self._free <= 0 or self._taken[project] >= self.share(own):
            return False
        self._free -= 1
        self._taken[project] += 1
        return True

    def give_back(self, project: str) -> None:
        """Release a slot of the project."""
        self._free += 1
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]


class Wakeup(threading.Event):
    """An event that wakes a thread, or calls a function if the request waits without a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._callback: Callable[[], object] | None = None

    def notify(self, callback: Callable[[], object] | None) -> None:
        """Call ``callback`` when the event is set; ``None`` = stop calling."""
        self._callback = callback

    def set(self) -> None:
        if not self.is_set():
            super().set()
            if (callback := self._callback) is not None:
                callback()


class Waiter:
    """One waiting request and its slot.

    Attributes:
        takes: Whether the request takes messages (claims or pops them), rather than only looking.
        in_vain: Whether the last look, after the deadline, found nothing.
    """

    __slots__ = ("has_left", "in_vain", "is_called", "places", "slots", "takes", "wakeup")

    def __init__(self, takes: bool, slots: Slots) -> None:
        self.takes = takes
        self.slots = slots
        self.wakeup = Wakeup()
        self.in_vain = self.has_left = False
        self.is_called = False
        """Whether the request was notified and has not looked since."""
        self.places = 0
        """Number of the places of ``Lookers`` that the request occupies."""

    def begin_look(self) -> None:
        """Begin a look. A notification from now on may be about a message that the look misses."""
        self.wakeup.clear()
        self.is_called = False

    def end_in_vain(self) -> None:
        """Record that the last look found no message."""
        self.in_vain = True

    def leave(self) -> None:
        """Leave the wait queue."""
        self.has_left = True


class Lookers:
    """The notified read-only requests of one project. At most ``MAX_LOOKING`` of them look at the same time."""

    __slots__ = ("looking", "pending")

    def __init__(self) -> None:
        self.looking = 0
        self.pending: deque[Waiter] = deque()

    def call(self, waiter: Waiter) -> None:
        """Queue a waiter for its turn to look, unless it is queued already."""
        if not waiter.is_called:
            waiter.is_called = True
            self.pending.append(waiter)

    def wake_next(self) -> bool:
        """Wake as many waiters as may look. Return ``False`` if none looks or is queued."""
        while self.pending and self.looking < MAX_LOOKING:
            waiter = self.pending.popleft()
            if not waiter.has_left:
                waiter.places += 1
                self.looking += 1
                waiter.wakeup.set()
        return self.looking > 0

    def free(self, waiter: Waiter) -> None:
        """Release the places of a waiter that has looked or left."""
        self.looking -= waiter.places
        waiter.places = 0


class WaitQueue:
    """The requests that wait for one queue, in order of arrival, and the queue's timer."""

    __slots__ = ("timer", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.timer = 0.0

    def set_timer(self, moment: float) -> None:
        """Set the timer to a time of the monotonic clock."""
        self.timer = moment

    def notify_taker(self) -> None:
        """Wake the first waiter that takes messages and is not awake."""
        for waiter in self.waiters:
            if waiter.takes and not waiter.wakeup.is_set():
                waiter.wakeup.set()
                return
