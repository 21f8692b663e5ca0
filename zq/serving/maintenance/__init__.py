# SPDX-License-Identifier: Apache-2.0
"""Background work of a server: reading the store's clock, active expiry, and completion of interrupted commits."""

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
# Seconds between two reads of the store's time.
CLOCK_INTERVAL: Final = 2.0
# Seconds between two checks for abandoned commits.
RESUME_INTERVAL: Final = 1.0


class Upkeep:
    """The background threads that read the store's clock, remove expired messages and complete interrupted commits."""

    def __init__(
        self,
        storage: Storage,
        clock: StoreClock,
        expiry: Expiry,
        monitor: LatencyMonitor,
        events: Events = NO_EVENTS,
        resume: Callable[[], None] = lambda: None,
        deposed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the threads without starting them.

        ``resume`` is called once per second to continue unfinished work, such as interrupted commits. ``deposed`` is
        called if another process has taken over the store.
        """
        self._storage = storage
        self._clock = clock
        self._expiry = expiry
        self._monitor = monitor
        self._events = events
        self._resume = resume
        self._deposed = deposed
        self._stopping = threading.Event()
        self._sleep = self._stopping.wait
        self._changed = threading.Event()
        """An event that starts the next round early, because options have changed or the server is stopping."""
        self._threads = [
            threading.Thread(target=self._follow, name="zq-clock", daemon=True),
            threading.Thread(target=self._sweep, name="zq-upkeep", daemon=True),
            threading.Thread(target=self._finish, name="zq-commits", daemon=True),
        ]

    def configure(self, expiry: Expiry) -> None:
        self._expiry = expiry
        self._changed.set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._changed.set()
        for thread in self._threads:
            thread.join()

    def run_round(self) -> bool:
        """Remove expired messages in one round. Return whether the round reached its maximum number of removals.

        If so, further expired messages may exist.
        """
        expiry, began = self._expiry, time.monotonic()
        limits = expiry.sweep_batch_size, expiry.sweep_max_deletes
        pace = AdaptivePace(self._monitor, *limits, self._sleep, self._events.expired)
        self._monitor.begin()
        try:
            removed = self._storage.maintain(self._clock.now(), expiry, pace)
        finally:
            exhausted = pace.left == 0
            self._monitor.end(exhausted)
        self._events.swept(time.monotonic() - began, removed, exhausted, pace.paused)
        self._events.throttled(self._monitor.ratio, self._monitor.share)
        return exhausted

    def _sweep(self) -> None:
        exhausted = False
        while not self._stopping.is_set():
            if not exhausted:
                self._changed.wait(self._expiry.sweep_interval)
                self._changed.clear()
            if not self._stopping.is_set():
                exhausted = self._run_safely(self.run_round)

    def _follow(self) -> None:
        while not self._sleep(CLOCK_INTERVAL):
            self._run_safely(self._clock.refresh)

    def _finish(self) -> None:
        while not self._sleep(RESUME_INTERVAL):
            self._run_safely(self._resume)

    def _run_safely(self, task: Callable[[], bool | None]) -> bool:
        try:
            return bool(task())
        except Deposed as error:
            LOG.critical("%s", error)
            self._deposed()
        except Unavailable as error:
            LOG.warning("Store maintenance failed, will retry: %s", error)
        except Exception:  # the thread must survive every failure
            LOG.critical("Unexpected error in store maintenance, will retry.", exc_info=True)
        return False
