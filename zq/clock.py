# SPDX-License-Identifier: Apache-2.0
"""Clocks of servers. Storage drivers receive the time as an argument.

``StoreClock`` follows the store's time, so that all servers of a deployment agree on the time. Decision 0054 explains
why ``StoreClock.now`` waits while the time is uncertain. ``ManualClock`` is for tests. The extensions contract,
section 1, "Time", specifies the protocol and its constants.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from zq.errors import Unavailable
from zq.model import Seconds

# Maximum step of the offset in seconds after a single sample. A larger step needs ``MIN_AGREEING_SAMPLES`` consecutive
# samples.
JUMP = 1.0
# Number of consecutive samples that confirm a larger step.
MIN_AGREEING_SAMPLES = 3
# Fraction by which the clock runs slower after the store's clock was set back, until the two agree.
SLEW_RATE = 0.05
# Maximum number of consecutive samples per refresh. Sampling stops as soon as the error is at most ``EXACT``.
SAMPLES = 5
# Error in seconds up to which a sample is good enough.
EXACT = 0.01
# Seconds after which no further consecutive sample is taken.
SAMPLING_SECONDS = 1.0
# Precision in seconds to which a store may round its time.
TIME_PRECISION = 0.001
# Seconds for which a sample is used. A slow reply may hide a small step of the store's clock.
MEMORY = 60.0
# Maximum relative drift between the clocks of two machines: a sample that is an hour old is 0.7 s less accurate.
DRIFT = 200e-6
# Maximum error of a time in seconds, in both directions: servers may differ by 50 ms (extensions contract, section 1).
TOLERANCE = 0.025
# Maximum seconds that ``now`` waits until a time has certainly passed.
LONGEST_WAIT = 5.0


class Clock(Protocol):
    """The interface of clocks."""

    def now(self) -> Seconds:
        """Return the current time in seconds, with millisecond precision.

        Later calls never return an earlier time.
        """
        ...

    def drift(self) -> Seconds:
        """Return the seconds by which this clock is ahead of the store's clock."""
        ...

    def uncertainty(self) -> Seconds:
        """Return the maximum difference in seconds between this clock's estimate and the store's time."""
        ...


class Offset(NamedTuple):
    """Bounds on the difference between the store's time and this machine's monotonic time.

    The bounds are valid at the monotonic time ``received``. Later, ``at`` returns wider bounds.
    """

    low: float
    high: float
    received: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def at(self, moment: float) -> "Offset":
        """Return the bounds at a later monotonic time, widened by the possible drift of the clocks."""
        grown = DRIFT * max(0.0, moment - self.received)
        return Offset(self.low - grown, self.high + grown, moment)

    def max_error(self, offset: float) -> Seconds:
        """Return the maximum error of ``offset``: its distance to the farther bound."""
        return max(self.high - offset, offset - self.low)


class StoreClock:
    """A clock that follows the store's time: this machine's monotonic clock plus an offset. It never runs backwards.

    ``refresh`` must be called every few seconds. It samples the store's time with ``read``. The round trip of a sample
    gives a lower and an upper bound for the offset. The clock intersects the bounds of all samples of the last minute,
    so a slow reply does not reduce its precision.

    If a sample contradicts the others, the store's clock was set forward or back. This clock follows a step back
    gradually. It follows a step forward immediately, but a step of more than a second only after three samples agree.

    Args:
        distrusted_lead: Returns the seconds by which the clock of the store's machine is ahead of the store's time.
            The result is 0, unless the machine's clock has made a large jump that the store still ignores.
    """

    def __init__(
        self,
        read: Callable[[], Seconds],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        distrusted_lead: Callable[[], Seconds] = lambda: 0.0,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._sleep = sleep
        self._distrusted_lead = distrusted_lead
        self._lock = threading.Lock()
        self._jumps: deque[Offset] = deque(maxlen=MIN_AGREEING_SAMPLES)
        self._last = 0.0
        began = monotonic()
        self._known = sample = self._sample()
        self._samples = [sample]
        self._offset = self._target = self._reported = sample.middle
        self._slewed_at = sample.received
        self._update_validity()
        self._sharpen(began)

    def now(self) -> Seconds:
        """Return the store's time with an error of at most ``TOLERANCE``.

        If the store's time is known less precisely, take the upper bound of the estimate, wait until the store has
        reached this time, and return it. Raises ``Unavailable`` if the wait would exceed ``LONGEST_WAIT`` seconds.
        """
        with self._lock:
            moment = self._monotonic()
            self._slew(moment)
            if moment <= self._sure_until:
                return self._rise(moment + self._offset)
            known = self._known.at(moment)
            reached = moment + known.high + (self._offset - self._target)
        wait = known.high - known.low - TOLERANCE
        if wait > LONGEST_WAIT:
            raise Unavailable("This server does not know the store's time precisely enough. Try again later.")
        self._sleep(wait)
        with self._lock:
            return self._rise(reached)

    def refresh(self) -> None:
        """Sample the store's time and adjust the offset. Repeat until the error is at most ``EXACT``."""
        began = self._monotonic()
        self._follow(self._sample())
        self._sharpen(began)

    def drift(self) -> Seconds:
        """Return the seconds by which this clock is ahead of the clock of the machine on which the store runs."""
        distrusted_lead = self._distrusted_lead()
        with self._lock:
            return self._offset - self._reported - distrusted_lead

    def uncertainty(self) -> Seconds:
        """Return the maximum difference in seconds between this clock's estimate and the store's time.

        The difference is half the round trip of the best sample, plus the possible clock drift since that sample.
        """
        with self._lock:
            return self._known.at(self._monotonic()).max_error(self._target)

    def _sample(self) -> Offset:
        sent = self._monotonic()
        answered = self._read()
        received = self._monotonic()
        return Offset(answered - received - TIME_PRECISION, answered - sent + TIME_PRECISION, received)

    def _sharpen(self, began: float) -> None:
        for _ in range(SAMPLES - 1):
            if self._jumps or self.uncertainty() <= EXACT or self._monotonic() - began > SAMPLING_SECONDS:
                return
            self._follow(self._sample())

    def _follow(self, sample: Offset) -> None:
        with self._lock:
            self._slew(sample.received)
            former = [known for known in self._samples if known.received > sample.received - MEMORY] or [self._known]
            if (agreed := _common([*former, sample])) is not None:
                self._samples = [*former, sample]
                self._apply_bounds(agreed)
            elif sample.middle - self._offset <= JUMP:
                self._follow_step([sample])
            else:
                self._reported = sample.middle
                self._jumps.append(sample)
                if len(self._jumps) == MIN_AGREEING_SAMPLES and _agree(self._jumps):
                    self._follow_step(list(self._jumps))

    def _apply_bounds(self, known: Offset) -> None:
        """Set the target offset, which this clock approaches, from the bounds that all samples have in common.

        If the bounds became narrower, their middle is the target. Otherwise, the target moves only if it is outside the
        bounds.
        """
        behind = self._offset - self._target
        if known.high - known.low <= 2 * self._known.at(known.received).max_error(self._target):
            self._target = known.middle
        else:
            self._target = min(max(self._target, known.low), known.high)
        self._offset = max(self._target, min(self._offset, self._target + behind))
        self._known, self._reported = known, self._target
        self._jumps.clear()
        self._update_validity()

    def _follow_step(self, samples: list[Offset]) -> None:
        self._known = _common(samples) or samples[-1]
        self._samples = samples if _common(samples) else samples[-1:]
        self._target = self._reported = self._known.middle
        self._offset = max(self._offset, self._target)
        self._jumps.clear()
        self._update_validity()

    def _update_validity(self) -> None:
        spare = TOLERANCE - self._known.max_error(self._target)
        self._sure_until = self._known.received + spare / DRIFT if spare >= 0 else -math.inf

    def _slew(self, moment: float) -> None:
        if self._target < self._offset:
            step = max(0.0, moment - self._slewed_at) * SLEW_RATE
            self._offset = max(self._target, self._offset - step)
        self._slewed_at = max(self._slewed_at, moment)

    def _rise(self, moment: Seconds) -> Seconds:
        self._last = max(self._last, round(moment, 3))
        return self._last


def _common(offsets: Sequence[Offset]) -> Offset | None:
    latest = offsets[-1].received
    grown = [offset.at(latest) for offset in offsets]
    low, high = max(offset.low for offset in grown), min(offset.high for offset in grown)
    return Offset(low, high, latest) if low <= high else None


def _agree(jumps: Sequence[Offset]) -> bool:
    return max(jump.low for jump in jumps) - min(jump.high for jump in jumps) <= JUMP


def local_time() -> Seconds:
    """Return this machine's time, for programs without a server clock."""
    return time.time()


class ManualClock:
    """A clock for tests, which changes only when ``advance`` is called."""

    def __init__(self, start: Seconds) -> None:
        self._now = round(start, 3)

    def now(self) -> Seconds:
        return self._now

    def drift(self) -> Seconds:
        return 0.0

    def uncertainty(self) -> Seconds:
        return 0.0

    def advance(self, seconds: float) -> Seconds:
        """Move the clock forward and return the new time."""
        if seconds < 0:
            raise ValueError("A clock can only move forward.")
        self._now = round(self._now + seconds, 3)
        return self._now
