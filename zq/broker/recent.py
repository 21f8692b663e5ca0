# SPDX-License-Identifier: Apache-2.0
"""A short memory, so that what every request needs to know does not cost each of them a question to the store."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST_REMEMBERED: Final = 10_000
"""Answers that are remembered."""
RECENT: Final = 1.0
"""Seconds for which the store is not asked again."""


class Recent(Generic[K, V]):
    """Answers of ``ask``, at most ``RECENT`` seconds old and exact about what this server changed; for any thread."""

    def __init__(self, ask: Callable[[K], V], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: dict[K, tuple[float, V]] = {}
        self._changes = 0

    def get(self, key: K) -> V:
        """What ``ask`` says of the key, or has just said."""
        known = self._known.get(key)
        if known is not None and self._monotonic() < known[0]:
            return known[1]
        changes, until = self._changes, self._monotonic() + RECENT
        answer = self._ask(key)
        with self._lock:
            if changes == self._changes:  # else the answer may be older than the change
                if len(self._known) >= MOST_REMEMBERED:
                    self._known.clear()
                self._known[key] = until, answer
        return answer

    def forget(self, key: K) -> None:
        """This server has changed what the answer is."""
        with self._lock:
            self._changes += 1
            self._known.pop(key, None)
