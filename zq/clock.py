# SPDX-License-Identifier: Apache-2.0
"""The one clock of a server. Everything below the broker gets its moments as arguments.

``StoreClock`` follows the store's time, so that all servers of a deployment agree, and never runs backwards;
``ManualClock`` is for tests. Contract: extensions 1, "Time"; the numbers are those of its protocol.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from zq.model import Seconds

JUMP = 1.0
"""Seconds that the offset may grow at once; a larger jump needs ``AGREEING`` samples in a row."""
AGREEING = 3
SLEW = 0.05
"""Share of elapsed time by which the clock may run slow while it waits for a store that fell behind."""
SLOWEST_ROUND_TRIP = 0.1


class Clock(Protocol):
    """What the broker needs of a clock."""

    def now(self) -> Seconds:
        """The present moment in seconds, to the millisecond; never less than the last one returned."""
        ...

    def drift(self) -> Seconds:
        """How far this clock is from the store's; positive = ahead."""
        ...


class StoreClock:
    """The store's time, as an offset to this machine's monotonic clock.

    ``read`` asks the store for its time; ``refresh`` is to be called every few seconds. A smaller offset is slewed in,
    a forward jump of more than a second is believed after three samples that agree.
    """

    def __init__(self, read: Callable[[], Seconds], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._jumps: deque[float] = deque(maxlen=AGREEING)
        self._offset = self._sample() or read() - monotonic()
        self._target = self._heard = self._offset
        self._slewed_at = monotonic()
        self._last = 0.0

    def now(self) -> Seconds:
        with self._lock:
            moment = self._monotonic()
            if self._target < self._offset:
                step = (moment - self._slewed_at) * SLEW
                self._offset = max(self._target, self._offset - step)
            self._slewed_at = moment
            self._last = max(self._last, round(moment + self._offset, 3))
            return self._last

    def refresh(self) -> None:
        """Ask the store once more and follow it. A reply that took too long to be exact changes nothing."""
        offset = self._sample()
        if offset is None:
            return
        with self._lock:
            self._heard = offset
            if offset - self._offset <= JUMP:
                self._jumps.clear()
                self._target = offset
                self._offset = max(self._offset, offset)
                return
            self._jumps.append(offset)
            if len(self._jumps) == AGREEING and max(self._jumps) - min(self._jumps) <= JUMP:
                self._target = self._offset = offset
                self._jumps.clear()

    def drift(self) -> Seconds:
        """How far this clock is from the store's last answer; positive = ahead."""
        with self._lock:
            return self._offset - self._heard

    def _sample(self) -> float | None:
        """Store time minus monotonic time; None if the round trip was too slow to tell."""
        sent = self._monotonic()
        told = self._read()
        received = self._monotonic()
        if received - sent > SLOWEST_ROUND_TRIP:
            return None
        return told - (sent + received) / 2


def own() -> Seconds:
    """The time of this machine, for programs that no server tells its own."""
    return time.time()


class ManualClock:
    """A clock that moves only when told, only forward. Give it the present: stores also judge by real time."""

    def __init__(self, start: Seconds) -> None:
        self._now = round(start, 3)

    def now(self) -> Seconds:
        return self._now

    def drift(self) -> Seconds:
        return 0.0

    def advance(self, seconds: float) -> Seconds:
        """Move forward and return the new moment."""
        if seconds < 0:
            raise ValueError("A clock moves only forward.")
        self._now = round(self._now + seconds, 3)
        return self._now
