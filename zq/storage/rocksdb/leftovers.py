# SPDX-License-Identifier: Apache-2.0
"""Expired messages that readers have met, on their way to be removed: a bounded queue.

Nothing depends on it. What does not fit is dropped and counted, and the sweeper finds it by its own index.
"""

import threading
from collections.abc import Iterable
from itertools import islice


class Leftovers:
    """Keys of ``messages``, each once, in the order of meeting; for any number of readers and one remover."""

    def __init__(self) -> None:
        self._met: dict[bytes, int] = {}
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self.capacity = 0
        """How many may wait; 0 = readers hand over nothing."""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._met)

    def meet(self, keys: Iterable[bytes], now: int) -> None:
        """Hand over what had expired at ``now``; never waits for the remover."""
        if not self.capacity:
            return
        with self._changed:
            for key in keys:
                if len(self._met) < self.capacity:
                    self._met.setdefault(key, now)
                elif key not in self._met:
                    self.dropped += 1
            self._changed.notify()

    def wait(self) -> bool:
        """Return when something has been met; False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._met or self._closed)
            return not self._closed

    def take(self, most: int) -> dict[bytes, int]:
        """The oldest of what waits, each with the moment at which it had expired; they wait no more."""
        with self._changed:
            taken = dict(islice(self._met.items(), most))
            for key in taken:
                del self._met[key]
        return taken

    def close(self) -> None:
        """Forget everything and let ``wait`` end."""
        with self._changed:
            self._met.clear()
            self._closed = True
            self._changed.notify()
