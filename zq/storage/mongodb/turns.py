# SPDX-License-Identifier: Apache-2.0
"""Turns: the transactions of one process that would meet at a counter go one after the other.

Of two that meet the later one begins anew. Where short ones meet a long one again and again, that is always the long
one, so it would hardly ever come to its end.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from zq.errors import Unavailable

STRIPES: Final = 256
"""Locks for all counters there are; those that share one wait for each other without need."""


class Turns:
    """The turns of one process. Safe for any number of threads."""

    def __init__(self, patience: float) -> None:
        self._locks = [threading.Lock() for _ in range(STRIPES)]
        self._patience = patience

    @contextmanager
    def at(self, counters: Collection[str]) -> Iterator[None]:
        """Be the only one at these counters. Raises ``Unavailable`` when the turn does not come in time."""
        with ExitStack() as held:
            for stripe in sorted({hash(counter) % STRIPES for counter in counters}):
                if not self._locks[stripe].acquire(timeout=self._patience):
                    raise Unavailable("The store is too slow to serve now. Try again later.")
                held.callback(self._locks[stripe].release)
            yield
