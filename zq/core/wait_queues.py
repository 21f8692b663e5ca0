# SPDX-License-Identifier: Apache-2.0
"""Slots for requests that last, of which each project gets a share, and the queues in which long polls wait."""

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

# Percent of the slots of a server that one project gets, at least one.
SHARE: Final = 25
# Requests of one project that only look, of all that were notified, which look at once.
MAX_LOOKING: Final = 4


class Slots:
    """The slots of one server for requests that last: to wait, or to stream. The caller serializes calls by a lock."""

    def __init__(self, most: int, share: int = SHARE) -> None:
        """``share``: percent."""
        self._free = self._most = most
        self._share = share
        self._taken: Counter[str] = Counter()

    def share(self, own: int | None) -> int:
        """Return how many slots a project gets; ``own``: its percent, where that is not what all have."""
        return max(1, self._most * (self._share if own is None else own) // 100)

    def take(self, project: str, own: int | None = None) -> bool:
        """Take a slot for the project, of its share; False if there is none for it."""
        if self._free <= 0 or self._taken[project] >= self.share(own):
            return False
        self._free -= 1
        self._taken[project] += 1
        return True

    def give_back(self, project: str) -> None:
        """Give back a slot that the project took."""
        self._free += 1
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]


class Wakeup(threading.Event):
    """An event that wakes a thread, or calls a function where a request waits without a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._callback: Callable[[], object] | None = None

    def notify(self, callback: Callable[[], object] | None) -> None:
        """Call ``callback`` when the event is set; None = call nothing any more."""
        self._callback = callback

    def set(self) -> None:
        if not self.is_set():
            super().set()
            if (callback := self._callback) is not None:
                callback()


class Waiter:
    """A waiting request, which takes one of the ``slots``.

    ``in_vain``: its time is up, and its last look found nothing.
    """

    __slots__ = ("has_left", "in_vain", "is_called", "places", "slots", "takes", "wakeup")

    def __init__(self, takes: bool, slots: Slots) -> None:
        self.takes = takes
        self.slots = slots
        self.wakeup = Wakeup()
        self.in_vain = self.has_left = False
        self.is_called = False
        """Whether it was notified and has not looked since."""
        self.places = 0
        """The number of places of ``Lookers`` that it holds."""

    def begin_look(self) -> None:
        """Begin a look: from now on a notification may be of a message that the look passes over."""
        self.wakeup.clear()
        self.is_called = False

    def end_in_vain(self) -> None:
        """End the last look without a message."""
        self.in_vain = True

    def leave(self) -> None:
        """Leave the wait queue."""
        self.has_left = True


class Lookers:
    """The requests of one project that were notified and only look; ``MAX_LOOKING`` of them look at once."""

    __slots__ = ("looking", "pending")

    def __init__(self) -> None:
        self.looking = 0
        self.pending: deque[Waiter] = deque()

    def call(self, waiter: Waiter) -> None:
        """Wake a waiter, or let it wait for its turn."""
        if not waiter.is_called:
            waiter.is_called = True
            self.pending.append(waiter)

    def wake_next(self) -> bool:
        """Wake as many as may look; return False if none looks, and none is to."""
        while self.pending and self.looking < MAX_LOOKING:
            waiter = self.pending.popleft()
            if not waiter.has_left:
                waiter.places += 1
                self.looking += 1
                waiter.wakeup.set()
        return self.looking > 0

    def free(self, waiter: Waiter) -> None:
        """Take back the places of a waiter that has looked, or has left."""
        self.looking -= waiter.places
        waiter.places = 0


class WaitQueue:
    """The requests that wait for one queue, first come first served, and the moment at which its timer fires."""

    __slots__ = ("timer", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.timer = 0.0

    def set_timer(self, moment: float) -> None:
        """Let the timer fire at this moment of the monotonic clock."""
        self.timer = moment

    def notify_taker(self) -> None:
        """Wake the first that takes and is not awake."""
        for waiter in self.waiters:
            if waiter.takes and not waiter.wakeup.is_set():
                waiter.wakeup.set()
                return
