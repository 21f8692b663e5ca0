# SPDX-License-Identifier: Apache-2.0
"""What goes on beside the requests: the clock follows the store, the store gives space back, and commits that nobody
carries on are finished."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from zq.clock import StoreClock
from zq.errors import Deposed, Unavailable
from zq.events import NO_EVENTS, Events
from zq.model.expiry import Expiry
from zq.serving.maintenance.throttle import AdaptivePace, LatencyMonitor
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Seconds between two samples of the store's time.
CLOCK_INTERVAL: Final = 2.0
# Seconds between two looks for commits that no server carries on.
RESUME_INTERVAL: Final = 1.0


class Upkeep:
    """Three threads: ``start``, ``configure`` as often as options change, ``stop``, which closes the store too."""

    def __init__(
        self,
        storage: Storage,
        clock: StoreClock,
        expiry: Expiry,
        sweep_interval: float,
        monitor: LatencyMonitor,
        events: Events = NO_EVENTS,
        resume: Callable[[], None] = lambda: None,
        deposed: Callable[[], None] = lambda: None,
    ) -> None:
        """``resume`` goes on with commits that nobody carries on. ``deposed`` is called when this process can never
        serve the store again."""
        self._storage = storage
        self._clock = clock
        self._expiry = expiry
        self._interval = sweep_interval
        self._monitor = monitor
        self._events = events
        self._resume = resume
        self._deposed = deposed
        self._stopping = threading.Event()
        self._sleep = self._stopping.wait
        self._changed = threading.Event()
        """Set to end the time between rounds: options have changed, or the server stops."""
        self._threads = [
            threading.Thread(target=self._follow, name="zq-clock", daemon=True),
            threading.Thread(target=self._sweep, name="zq-upkeep", daemon=True),
            threading.Thread(target=self._finish, name="zq-commits", daemon=True),
        ]

    def configure(self, expiry: Expiry, sweep_interval: float) -> None:
        """Sweep so from the next round on."""
        self._expiry, self._interval = expiry, sweep_interval
        self._changed.set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads and close the store."""
        self._stopping.set()
        self._changed.set()
        for thread in self._threads:
            thread.join()
        self._storage.close()

    def round(self) -> bool:
        """One round of the sweeper; whether it ended before everything was gone."""
        expiry, began = self._expiry, time.monotonic()
        limits = expiry.sweep_batch_size, expiry.sweep_max_deletes
        pace = AdaptivePace(self._monitor, *limits, self._sleep, self._events.expired)
        self._monitor.begin()
        try:
            removed = self._storage.maintain(self._clock.now(), expiry, pace)
        finally:
            exhausted = pace.left == 0
            self._monitor.end(exhausted)
        self._events.swept(time.monotonic() - began, removed, exhausted, pace.rested)
        self._events.throttled(self._monitor.ratio, self._monitor.share)
        return exhausted

    def _sweep(self) -> None:
        """A round that had to end early is followed by the next one at once, and so is a change of options."""
        exhausted = False
        while not self._stopping.is_set():
            if not exhausted:
                self._changed.wait(self._interval)
                self._changed.clear()
            if not self._stopping.is_set():
                exhausted = self._spared(self.round)

    def _follow(self) -> None:
        while not self._sleep(CLOCK_INTERVAL):
            self._spared(self._clock.refresh)

    def _finish(self) -> None:
        while not self._sleep(RESUME_INTERVAL):
            self._spared(self._resume)

    def _spared(self, task: Callable[[], bool | None]) -> bool:
        """Run what must not end its thread, whatever happens; its answer, False if it failed."""
        try:
            return bool(task())
        except Deposed as error:
            LOG.critical("%s", error)
            self._deposed()
        except Unavailable as error:
            LOG.warning("Upkeep of the store failed and is tried again: %s", error)
        except Exception:  # the edge of this thread, which must outlive any one failure
            LOG.critical("Upkeep failed for a reason that nobody foresaw, and is tried again.", exc_info=True)
        return False
