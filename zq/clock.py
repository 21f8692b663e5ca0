# SPDX-License-Identifier: Apache-2.0
"""The one clock of a server. Everything below the broker gets its moments as arguments.

``StoreClock`` follows the store's time, so that all servers of a deployment agree, and never runs backwards;
``ManualClock`` is for tests. Contract: extensions 1, "Time"; the numbers are those of its protocol, and decision 0054
says why a moment that is not known well enough is waited for.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from zq.errors import Unavailable
from zq.model import Seconds

# Seconds that the offset may grow at once; a larger jump needs ``AGREEING`` samples in a row.
JUMP = 1.0
# Samples in a row that make a larger jump believable.
AGREEING = 3
# Share of elapsed time by which the clock may run slow while it waits for a store that fell behind.
SLEW = 0.05
# Samples that are taken in a row at most, until the best of them is ``EXACT``.
SAMPLES = 5
# Seconds by which a sample that is good enough may be wrong.
EXACT = 0.01
# Seconds after which no further sample of the row is taken.
PATIENCE = 1.0
# Seconds to which a store may round its answer.
GRAIN = 0.001
# Seconds for which a sample counts: a store may be set by less than a slow answer shows.
MEMORY = 60.0
# Share by which two machines' oscillators may disagree: a sample of an hour ago is 0.7 s worse.
DRIFT = 200e-6
# Seconds by which a moment may be wrong either way: servers may differ by 50 ms (extensions 1).
TOLERANCE = 0.025
# Seconds that ``now`` waits at most for a moment to have surely come.
LONGEST_WAIT = 5.0


class Clock(Protocol):
    """What the broker needs of a clock."""

    def now(self) -> Seconds:
        """A moment between the call and its return, in seconds, to the millisecond; never less than the last one."""
        ...

    def drift(self) -> Seconds:
        """How far this clock is from the store's; positive = ahead."""
        ...

    def uncertainty(self) -> Seconds:
        """How far the store's time may be from what is thought to be its time, either way."""
        ...


class Offset(NamedTuple):
    """The store's time minus the monotonic clock's, as far as it is known: from ``low`` to ``high`` at ``received``."""

    low: float
    high: float
    received: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def at(self, moment: float) -> "Offset":
        """What of it is still known at a later moment of the monotonic clock."""
        grown = DRIFT * max(0.0, moment - self.received)
        return Offset(self.low - grown, self.high + grown, moment)

    def wrong(self, offset: float) -> Seconds:
        """By how much that offset may be wrong."""
        return max(self.high - offset, offset - self.low)


class StoreClock:
    """The store's time, as an offset to this machine's monotonic clock.

    ``read`` asks the store for its time; ``refresh`` is to be called every few seconds. The store read its clock at
    some unknown time between question and answer; so each answer bounds the offset, and what the answers of
    the last minute agree on is believed: a slow one says little and moves nothing. An answer that contradicts the
    others shows a step. A smaller offset is slewed in then, a forward jump of more than a second is believed after
    three samples that agree. ``doubted``: how far the clock of the store's machine has leapt ahead of the store's.
    """

    def __init__(
        self,
        read: Callable[[], Seconds],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        doubted: Callable[[], Seconds] = lambda: 0.0,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._sleep = sleep
        self._doubted = doubted
        self._lock = threading.Lock()
        self._jumps: deque[Offset] = deque(maxlen=AGREEING)
        self._last = 0.0
        began = monotonic()
        self._known = sample = self._sample()
        self._samples = [sample]
        self._offset = self._target = self._told = sample.middle
        self._slewed_at = sample.received
        self._judge()
        self._sharpen(began)

    def now(self) -> Seconds:
        """The store's time to ``TOLERANCE``. Where less is known of it, a moment that had not come when this was called
        and has come when it returns, which takes as long as the two may be apart. Raises ``Unavailable`` if that is
        longer than ``LONGEST_WAIT``."""
        with self._lock:
            moment = self._monotonic()
            self._slew(moment)
            if moment <= self._sure_until:
                return self._rise(moment + self._offset)
            known = self._known.at(moment)
            reached = moment + known.high + (self._offset - self._target)
        wait = known.high - known.low - TOLERANCE
        if wait > LONGEST_WAIT:
            raise Unavailable("This server does not know the store's time well enough. Try again later.")
        self._sleep(wait)
        with self._lock:
            return self._rise(reached)

    def refresh(self) -> None:
        """Ask the store once more and follow it; more often, if what is known is not ``EXACT``."""
        began = self._monotonic()
        self._follow(self._sample())
        self._sharpen(began)

    def drift(self) -> Seconds:
        """How far this clock is from the store's last answer, or from its machine's clock; positive = ahead."""
        doubted = self._doubted()
        with self._lock:
            return self._offset - self._told - doubted

    def uncertainty(self) -> Seconds:
        """Half the round trip of the best answer, and more as it grows old."""
        with self._lock:
            return self._known.at(self._monotonic()).wrong(self._target)

    def _sample(self) -> Offset:
        sent = self._monotonic()
        answered = self._read()
        received = self._monotonic()
        return Offset(answered - received - GRAIN, answered - sent + GRAIN, received)

    def _sharpen(self, began: float) -> None:
        for _ in range(SAMPLES - 1):
            if self._jumps or self.uncertainty() <= EXACT or self._monotonic() - began > PATIENCE:
                return
            self._follow(self._sample())

    def _follow(self, sample: Offset) -> None:
        with self._lock:
            self._slew(sample.received)
            former = [known for known in self._samples if known.received > sample.received - MEMORY] or [self._known]
            if (agreed := _common([*former, sample])) is not None:
                self._samples = [*former, sample]
                self._sharper(agreed)
            elif sample.middle - self._offset <= JUMP:
                self._stepped([sample])
            else:
                self._told = sample.middle
                self._jumps.append(sample)
                if len(self._jumps) == AGREEING and _agree(self._jumps):
                    self._stepped(list(self._jumps))

    def _sharper(self, known: Offset) -> None:
        """The store's clock ran on; what is known of it is better than before, or worse. A worse one moves nothing, and
        a better one does not change by how much the clock is slow to follow a step back."""
        behind = self._offset - self._target
        if known.high - known.low <= 2 * self._known.at(known.received).wrong(self._target):
            self._target = known.middle
        else:
            self._target = min(max(self._target, known.low), known.high)
        self._offset = max(self._target, min(self._offset, self._target + behind))
        self._known, self._told = known, self._target
        self._jumps.clear()
        self._judge()

    def _stepped(self, samples: list[Offset]) -> None:
        """The store's clock was set: followed at once ahead, by and by back."""
        self._known = _common(samples) or samples[-1]
        self._samples = samples if _common(samples) else samples[-1:]
        self._target = self._told = self._known.middle
        self._offset = max(self._offset, self._target)
        self._jumps.clear()
        self._judge()

    def _judge(self) -> None:
        """Find out until when what is known is known to ``TOLERANCE``, if no answer comes."""
        spare = TOLERANCE - self._known.wrong(self._target)
        self._sure_until = self._known.received + spare / DRIFT if spare >= 0 else -math.inf

    def _slew(self, moment: float) -> None:
        if self._target < self._offset:
            step = max(0.0, moment - self._slewed_at) * SLEW
            self._offset = max(self._target, self._offset - step)
        self._slewed_at = max(self._slewed_at, moment)

    def _rise(self, moment: Seconds) -> Seconds:
        self._last = max(self._last, round(moment, 3))
        return self._last


def _common(offsets: Sequence[Offset]) -> Offset | None:
    """What all of them say, of the moment of the last one; None if they contradict each other."""
    latest = offsets[-1].received
    grown = [offset.at(latest) for offset in offsets]
    low, high = max(offset.low for offset in grown), min(offset.high for offset in grown)
    return Offset(low, high, latest) if low <= high else None


def _agree(jumps: Sequence[Offset]) -> bool:
    return max(jump.low for jump in jumps) - min(jump.high for jump in jumps) <= JUMP


def own() -> Seconds:
    """The time of this machine, for programs without a server's."""
    return time.time()


class ManualClock:
    """A clock that moves when it is advanced, only forward. Give it the present: stores also judge by real time."""

    def __init__(self, start: Seconds) -> None:
        self._now = round(start, 3)

    def now(self) -> Seconds:
        return self._now

    def drift(self) -> Seconds:
        return 0.0

    def uncertainty(self) -> Seconds:
        return 0.0

    def advance(self, seconds: float) -> Seconds:
        """Move forward and return the new moment."""
        if seconds < 0:
            raise ValueError("A clock moves only forward.")
        self._now = round(self._now + seconds, 3)
        return self._now
