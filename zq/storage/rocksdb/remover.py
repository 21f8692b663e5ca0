# SPDX-License-Identifier: Apache-2.0
"""Layer 1 of giving space back: one thread removes the expired messages that readers have met.

It works a fifth of its time at most. What does not fit into its queue meanwhile is the sweeper's, whose pace follows
the requests.
"""

import logging
import threading
import time
from typing import Final

from zq.errors import Unavailable
from zq.storage.rocksdb import removal
from zq.storage.rocksdb.keeper import Keeper

LOG = logging.getLogger(__name__)
BATCH: Final = 100
"""Messages in one write: few, since it holds up every thread for as long as it lasts."""
REST: Final = 4
"""It rests so many times as long as it worked."""
LONGEST: Final = 0.5
"""Seconds that it rests at most."""


class Remover:
    """Works from ``start`` to ``close``."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._leftovers = keeper.around.leftovers
        self._thread = threading.Thread(target=self._run, name="zq-remover", daemon=True)
        self.removed = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Forget what waits, and return when nothing is being removed any more."""
        self._leftovers.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._leftovers.wait():
            began = time.monotonic()
            self._remove(self._leftovers.take(BATCH))
            time.sleep(min(LONGEST, REST * (time.monotonic() - began)))

    def _remove(self, told: removal.Told) -> None:
        try:
            with self._keeper as opened:
                for number, its in removal.by_queue(told.items()):
                    self.removed += removal.remove(opened, number, its, sweeping=False)[0]
        except Unavailable:
            pass  # the sweeper will find them
        except Exception:  # the edge of this thread, which must outlive any one failure
            LOG.critical("Removal failed for a reason that nobody foresaw; the sweep will do it.", exc_info=True)
