# SPDX-License-Identifier: Apache-2.0
"""AIMD throttle of active expiry: rounds slow down while requests get slower, and speed up if they fall behind.

``LatencyMonitor`` observes the latency of storage verbs and derives the share of time in which a sweep may work. The
share rises by a constant, and falls by a factor if requests get slower. ``AdaptivePace`` is the pace of one round
(``zq.model.expiry.Pace``). A pause is proportional to the preceding work, so slow steps are followed by long pauses.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from zq.events import Events
from zq.model import QueueRef
from zq.model.expiry import Steps

# Target duration of a step in seconds while requests are served, because requests may wait for the step.
STEP_TIME: Final = 0.002
# Minimum number of entries that a step removes; with fewer, overhead dominates.
MIN_STEP: Final = 50
# Seconds without a request after which the sweep does not pause.
QUIET: Final = 0.25
# Number of samples per adjustment of the share; 1 / SAMPLES is also the weight of a new sample in the mean.
SAMPLES: Final = 16
# Ratio to the usual latency from which requests count as slowed down.
SLOWED_RATIO: Final = 1.25
# Factor by which the share falls if requests are slowed down.
DECREASE: Final = 0.7
# Amount by which the share rises otherwise; also the minimum share.
INCREASE: Final = 0.03
# Maximum share; also the share after ``ARREARS`` seconds of falling behind.
MAX_SHARE: Final = 0.5
# Seconds of falling behind after which rounds use the maximum share regardless of requests.
ARREARS: Final = 300.0
# Maximum duration of one pause in seconds.
MAX_PAUSE: Final = 1.0


class LatencyMonitor(Events):
    """The latency of storage verbs, during and between sweep rounds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.share = INCREASE
        """Fraction of a round's time in which the round may work; kept between rounds."""
        self.ratio = 1.0
        """Latest ratio of the latency during the round to the usual latency; 1 with too few samples."""
        self._lock = threading.Lock()
        self._usual: dict[str, tuple[float, int]] = {}
        self._sweeping = False
        self._sample_count = 0
        self._ratios = 0.0
        self._last = monotonic() - QUIET
        self._behind_since: float | None = None

    def store_called(self, verb: str, seconds: float) -> None:
        """Record the duration of a verb."""
        self._last = self.monotonic()
        with self._lock:
            usual, samples = self._usual.get(verb, (0.0, 0))
            if samples < SAMPLES or not self._sweeping:  # the first samples may fall into a sweep
                samples += 1
                self._usual[verb] = usual + max(1 / SAMPLES, 1 / samples) * (seconds - usual), samples
            else:
                self._sample_count += 1
                self._ratios += seconds / max(usual, 1e-6)

    def begin(self) -> None:
        """Begin a round. The usual latencies stay fixed until the round ends."""
        with self._lock:
            self._sweeping = True
            self.ratio = 1.0
            self._sample_count, self._ratios = 0, 0.0

    def end(self, exhausted: bool) -> None:
        """End a round; ``exhausted`` means that the round reached its limit with expired messages left."""
        with self._lock:
            self._sweeping = False
        self._behind_since = (self._behind_since or self.monotonic()) if exhausted else None

    def quiet(self) -> bool:
        """Return whether there were no recent requests."""
        return self.monotonic() - self._last >= QUIET

    def judge(self) -> None:
        """Adjust the share if there are enough samples since the last adjustment."""
        with self._lock:
            if self._sample_count >= SAMPLES:
                self.ratio = self._ratios / self._sample_count
                self._sample_count, self._ratios = 0, 0.0
                if self.ratio > SLOWED_RATIO:
                    self.share = max(INCREASE, self.share * DECREASE)
                else:
                    self.share = min(MAX_SHARE, self.share + INCREASE)
        if self._behind_since is not None and self.monotonic() - self._behind_since > ARREARS:
            self.share = MAX_SHARE


class AdaptivePace(Steps):
    """The pace of one sweep round.

    ``rest`` sleeps for the given seconds; it returns True if the server is stopping, which ends the round.
    """

    def __init__(
        self,
        monitor: LatencyMonitor,
        size: int,
        most: int,
        rest: Callable[[float], bool],
        expired: Callable[[int, QueueRef], None],
    ) -> None:
        super().__init__(size, most)
        self._monitor = monitor
        self._rest = rest
        self._expired = expired
        self._busy_size = min(size, MIN_STEP)
        self._began: float | None = None
        self.rested = 0.0

    def step(self) -> int:
        """Pause; return the maximum number of entries that the next step may remove, or 0 to end the round."""
        size, pause = self._size, 0.0
        if not self._monitor.quiet():
            if self._began is not None:
                pause = self._pause(self._monitor.monotonic() - self._began)
            size = self._busy_size
        self.rested += pause
        if self._rest(pause):
            return 0
        self._began = self._monitor.monotonic()
        return min(size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        """Count removed entries of the queue."""
        super().removed(count)
        if queue is not None:
            self._expired(count, queue)

    def _pause(self, worked: float) -> float:
        """Adapt the next step's size to the last step's duration; return the pause in seconds."""
        self._monitor.judge()
        fitting = int(self._busy_size * min(2.0, STEP_TIME / max(worked, 1e-6)))
        self._busy_size = min(self._size, max(MIN_STEP, fitting))
        return min(MAX_PAUSE, worked * (1 / self._monitor.share - 1))
