# SPDX-License-Identifier: Apache-2.0
"""How hard a server sweeps: rounds yield when requests suffer, and press on when they fall behind what expires.

``Load`` hears how long the store's verbs take and judges by that what share of its time a sweeper may work;
``AdaptivePace`` is the pace of one round (``zq.expiry.Pace``). Rests are in proportion to the work between them, so the
slower a step, the longer the rest behind it, whatever makes it slow. Nothing here knows what is removed.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from zq.expiry import Steps
from zq.model import QueueRef

SLICE: Final = 0.002
"""Seconds that a step should take at most while requests are served: they may wait for it."""
FEWEST: Final = 50
"""Things that a step removes at least: less would be all overhead."""
QUIET: Final = 0.25
"""Seconds without a request after which there is nobody to yield to."""
SAMPLES: Final = 16
"""Requests after which the share is judged anew."""
SUFFERING: Final = 1.25
"""Requests suffer when they take so many times as long as they do between rounds."""
WELL: Final = 1.1
ARREARS: Final = 300.0
"""Seconds for which rounds may have been behind before they press on, whatever the requests say."""
SMOOTHING: Final = 0.02
"""Weight of a new sample in what a verb takes between rounds; of the first ones all weigh the same."""
LONGEST: Final = 1.0
"""Seconds of one rest at most."""

YIELD: Final = 0.7
GAIN: Final = 0.02
"""The share is multiplied by the one when requests suffer, and grows by the other when they do not."""
LEAST: Final = 0.03
FIRST: Final = 0.2
MOST: Final = 0.8
PRESSING: Final = 0.5
"""Shares of a round's time that are work, not rest: at least, at first, at most, and at least when pressing on."""


class Load:
    """How long the verbs of the store take, between rounds and during them. ``note`` is called by every request."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.share = FIRST
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

    def note(self, verb: str, seconds: float) -> None:
        """A verb took so long."""
        self._last = self.monotonic()
        with self._lock:
            usual, samples = self._usual.get(verb, (0.0, 0))
            if samples < SAMPLES or not self._sweeping:  # better learnt from a sweep than not at all
                samples += 1
                self._usual[verb] = usual + max(SMOOTHING, 1 / samples) * (seconds - usual), samples
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
                    self.share = max(LEAST, self.share * YIELD)
                elif self.ratio < WELL:
                    self.share = min(MOST, self.share + GAIN)
        if self._behind_since is not None and self.monotonic() - self._behind_since > ARREARS:
            self.share = max(PRESSING, self.share)


class AdaptivePace(Steps):
    """One round. ``rest`` sleeps so many seconds, and returns True when the server is to stop, which ends the round."""

    def __init__(
        self,
        load: Load,
        size: int,
        most: int,
        rest: Callable[[float], bool],
        expired: Callable[[int, QueueRef], None],
    ) -> None:
        super().__init__(size, most)
        self._load = load
        self._rest = rest
        self._expired = expired
        self._busy_size = min(size, FEWEST)
        self._began: float | None = None
        self.rested = 0.0

    def step(self) -> int:
        size, pause = self._size, 0.0
        if not self._load.quiet():
            if self._began is not None:
                pause = self._pause(self._load.monotonic() - self._began)
            size = self._busy_size
        self.rested += pause
        if self._rest(pause):
            return 0
        self._began = self._load.monotonic()
        return min(size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        super().removed(count)
        if queue is not None:
            self._expired(count, queue)

    def _pause(self, worked: float) -> float:
        """The rest behind a step that took so long; the size of the next step is chosen by that too."""
        self._load.judge()
        fitting = int(self._busy_size * min(2.0, SLICE / max(worked, 1e-6)))
        self._busy_size = min(self._size, max(FEWEST, fitting))
        return min(LONGEST, worked * (1 / self._load.share - 1))
