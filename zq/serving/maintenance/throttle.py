# SPDX-License-Identifier: Apache-2.0
"""AIMD throttle of active expiry (sweeps that remove expired messages), so that sweeps do not slow down requests.

``LatencyMonitor`` measures the latency of storage operations and computes the fraction of time in which a sweep may
work. If sweeps slow down requests, the fraction is multiplied by a factor below 1; if not, a constant is added. If
sweeps fall behind for ``MAX_ARREARS`` seconds, the fraction is set to its maximum.

``AdaptivePace`` divides one round into steps (``zq.model.expiry.Pace``) and pauses between them. A pause is
proportional to the duration of the preceding step.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from zq.events import Events
from zq.model import QueueRef
from zq.model.expiry import Steps

# Target duration of a step in seconds while requests are served. Requests may wait for a step.
STEP_TIME: Final = 0.002
# Minimum number of entries to remove in a step. In smaller steps, overhead dominates.
MIN_STEP: Final = 50
# Seconds without a request after which the sweep does not pause.
IDLE_SECONDS: Final = 0.25
# Number of samples per adjustment of the share. The weight of a new sample in the mean is 1 / SAMPLES.
SAMPLES: Final = 16
# Ratio of latency during a sweep to usual latency above which requests count as slowed down.
SLOWED_RATIO: Final = 1.25
# Factor by which the share falls if requests are slowed down.
DECREASE: Final = 0.7
# Amount by which the share rises if requests are not slowed down. Also the minimum share.
INCREASE: Final = 0.03
# Maximum share.
MAX_SHARE: Final = 0.5
# Seconds of falling behind after which the share is set to its maximum.
MAX_ARREARS: Final = 300.0
# Maximum duration of one pause in seconds.
MAX_PAUSE: Final = 1.0


class LatencyMonitor(Events):
    """A monitor of the latency of storage operations. It computes the fraction of time that sweeps may use."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.share = INCREASE
        """Fraction of the time in which a round works instead of pausing. Kept between rounds."""
        self.ratio = 1.0
        """Ratio of the latency during the round to the usual latency; 1 if there are too few samples."""
        self._lock = threading.Lock()
        self._usual: dict[str, tuple[float, int]] = {}
        self._sweeping = False
        self._sample_count = 0
        self._ratios = 0.0
        self._last = monotonic() - IDLE_SECONDS
        self._behind_since: float | None = None

    def store_called(self, verb: str, seconds: float) -> None:
        """Record the duration of a storage operation."""
        self._last = self.monotonic()
        with self._lock:
            usual, samples = self._usual.get(verb, (0.0, 0))
            if samples < SAMPLES or not self._sweeping:  # the first samples count as usual even during a sweep
                samples += 1
                self._usual[verb] = usual + max(1 / SAMPLES, 1 / samples) * (seconds - usual), samples
            else:
                self._sample_count += 1
                self._ratios += seconds / max(usual, 1e-6)

    def begin(self) -> None:
        """Begin a sweep round. During the round, compare latencies with the average latency outside of rounds."""
        with self._lock:
            self._sweeping = True
            self.ratio = 1.0
            self._sample_count, self._ratios = 0, 0.0

    def end(self, exhausted: bool) -> None:
        """End a sweep round. If ``exhausted``, the round removed its maximum, so expired messages may remain."""
        with self._lock:
            self._sweeping = False
        self._behind_since = (self._behind_since or self.monotonic()) if exhausted else None

    def is_quiet(self) -> bool:
        """Return whether there was no request for ``IDLE_SECONDS`` seconds."""
        return self.monotonic() - self._last >= IDLE_SECONDS

    def adjust_share(self) -> None:
        """Adjust the fraction of time that sweeps may use, after every ``SAMPLES`` recorded latencies.

        If expired messages have remained after each round for more than ``MAX_ARREARS`` seconds, set the fraction to
        its maximum.
        """
        with self._lock:
            if self._sample_count >= SAMPLES:
                self.ratio = self._ratios / self._sample_count
                self._sample_count, self._ratios = 0, 0.0
                if self.ratio > SLOWED_RATIO:
                    self.share = max(INCREASE, self.share * DECREASE)
                else:
                    self.share = min(MAX_SHARE, self.share + INCREASE)
        if self._behind_since is not None and self.monotonic() - self._behind_since > MAX_ARREARS:
            self.share = MAX_SHARE


class AdaptivePace(Steps):
    """The pace of one sweep round: the size of its steps, and the pauses between them.

    Args:
        size: Maximum number of items to remove in a step.
        max_items: Maximum number of items to remove in the round.
        rest: Sleeps for the given seconds. Returns whether to end the round, because the server is stopping.
    """

    def __init__(
        self,
        monitor: LatencyMonitor,
        size: int,
        max_items: int,
        rest: Callable[[float], bool],
        expired: Callable[[int, QueueRef], None],
    ) -> None:
        super().__init__(size, max_items)
        self._monitor = monitor
        self._rest = rest
        self._expired = expired
        self._busy_size = min(size, MIN_STEP)
        self._began: float | None = None
        self.paused = 0.0

    def step(self) -> int:
        """Pause, then return the maximum number of items to remove in the next step, or 0 to end the round."""
        size, pause = self._size, 0.0
        if not self._monitor.is_quiet():
            if self._began is not None:
                pause = self._pause(self._monitor.monotonic() - self._began)
            size = self._busy_size
        self.paused += pause
        if self._rest(pause):
            return 0
        self._began = self._monitor.monotonic()
        return min(size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        """Record that ``count`` items were removed. If the items are expired messages, ``queue`` is their queue."""
        super().removed(count)
        if queue is not None:
            self._expired(count, queue)

    def _pause(self, worked: float) -> float:
        """Return the pause in seconds after ``worked`` seconds of work, and adapt the size of the next step."""
        self._monitor.adjust_share()
        fitting = int(self._busy_size * min(2.0, STEP_TIME / max(worked, 1e-6)))
        self._busy_size = min(self._size, max(MIN_STEP, fitting))
        return min(MAX_PAUSE, worked * (1 / self._monitor.share - 1))
