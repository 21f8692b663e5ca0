# SPDX-License-Identifier: Apache-2.0
"""How hard a server sweeps (AIMD): rounds yield when requests suffer, and press on when they fall behind what expires.

``LatencyMonitor`` hears how long the store's verbs take and judges by that what share of its time a sweeper may work:
the share rises by a constant, and falls by a factor when requests suffer. ``AdaptivePace`` is the pace of one round
(``zq.model.expiry.Pace``). Rests are in proportion to the work between them: the slower a step, the longer the rest
behind it, whatever makes it slow. Nothing here knows what is removed.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from zq.events import Events
from zq.model import QueueRef
from zq.model.expiry import Steps

# Seconds that a step should take at most while requests are served: they may wait for it.
STEP_TIME: Final = 0.002
# Things that a step removes at least: less would be all overhead.
FEWEST: Final = 50
# Seconds without a request after which there is nobody to yield to.
QUIET: Final = 0.25
# Requests after which the share is judged anew; 1 / SAMPLES is the weight of a new one in what is usual.
SAMPLES: Final = 16
# Requests suffer when they take so many times as long as they do between rounds.
SUFFERING: Final = 1.25
# What the share is multiplied by when requests suffer.
DECREASE: Final = 0.7
# What the share grows by when they do not; no share is less.
INCREASE: Final = 0.03
# The share at most; in arrears also the least.
MOST: Final = 0.5
# Seconds after which rounds that do not catch up press on, whatever the requests say.
ARREARS: Final = 300.0
# Seconds of one rest at most.
LONGEST_REST: Final = 1.0


class LatencyMonitor(Events):
    """How long the verbs of the store take, between rounds and during them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.share = INCREASE
        """The part of a round's time that may be work; kept from one round to the next."""
        self.ratio = 1.0
        """How many times as long as usual requests took when the round judged it last; 1 if it did not."""
        self._lock = threading.Lock()
        self._usual: dict[str, tuple[float, int]] = {}
        self._sweeping = False
        self._heard = 0
        self._ratios = 0.0
        self._last = monotonic() - QUIET
        self._behind_since: float | None = None

    def store_called(self, verb: str, seconds: float) -> None:
        """A verb took so long."""
        self._last = self.monotonic()
        with self._lock:
            usual, samples = self._usual.get(verb, (0.0, 0))
            if samples < SAMPLES or not self._sweeping:  # better learnt from a sweep than not at all
                samples += 1
                self._usual[verb] = usual + max(1 / SAMPLES, 1 / samples) * (seconds - usual), samples
            else:
                self._heard += 1
                self._ratios += seconds / max(usual, 1e-6)

    def begin(self) -> None:
        """A round begins: what is usual stands until it ends."""
        with self._lock:
            self._sweeping = True
            self.ratio = 1.0
            self._heard, self._ratios = 0, 0.0

    def end(self, exhausted: bool) -> None:
        """The round is over; ``exhausted`` = before everything was gone."""
        with self._lock:
            self._sweeping = False
        self._behind_since = (self._behind_since or self.monotonic()) if exhausted else None

    def quiet(self) -> bool:
        """Whether nobody asks for anything."""
        return self.monotonic() - self._last >= QUIET

    def judge(self) -> None:
        """Change the share by what requests took since the last time, if they were enough to tell."""
        with self._lock:
            if self._heard >= SAMPLES:
                self.ratio = self._ratios / self._heard
                self._heard, self._ratios = 0, 0.0
                if self.ratio > SUFFERING:
                    self.share = max(INCREASE, self.share * DECREASE)
                else:
                    self.share = min(MOST, self.share + INCREASE)
        if self._behind_since is not None and self.monotonic() - self._behind_since > ARREARS:
            self.share = MOST


class AdaptivePace(Steps):
    """One round. ``rest`` sleeps so many seconds, and returns True when the server is to stop, which ends the round."""

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
        self._busy_size = min(size, FEWEST)
        self._began: float | None = None
        self.rested = 0.0

    def step(self) -> int:
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
        super().removed(count)
        if queue is not None:
            self._expired(count, queue)

    def _pause(self, worked: float) -> float:
        """The rest behind a step that took so long; the size of the next step is chosen by that too."""
        self._monitor.judge()
        fitting = int(self._busy_size * min(2.0, STEP_TIME / max(worked, 1e-6)))
        self._busy_size = min(self._size, max(FEWEST, fitting))
        return min(LONGEST_REST, worked * (1 / self._monitor.share - 1))
