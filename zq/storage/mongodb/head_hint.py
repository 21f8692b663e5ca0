# SPDX-License-Identifier: Apache-2.0
"""The moment at which searches for ready messages begin."""

import random
import threading
import time
from typing import Final

# Seconds for which a head hint is valid, and for which searches skip messages after a collision.
BELIEVED: Final = 2.0
# Milliseconds by which the hint is below the moment that was found, since the clocks of servers differ.
MARGIN: Final = 100
# Searches that skip messages after a collision with another process.
SKIPS: Final = 4


class HeadHint:
    """The place at which a process searches for ready messages of a queue. Safe for any number of threads.

    Index entries of consumed and expired messages stay for minutes, and a search from the beginning walks over all of
    them. The head is a moment below which a search of this process found nothing. Another process may have released a
    message to an earlier moment, so the hint is valid for a short time, and not if a search from it finds too little.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head = 0
        self._until = 0.0
        self._invalidations = 0
        self._skips = 0
        self._skip_until = 0.0

    def start(self, want: int) -> tuple[int, int, int]:
        """Return the moment to search from, the number of messages to skip, and a token for ``found``."""
        with self._lock:
            head = self._head if time.monotonic() < self._until else 0
            skip = 0
            if self._skips and time.monotonic() < self._skip_until:
                self._skips -= 1
                skip = random.randrange(2 * want)
            return head, skip, self._invalidations

    def found(self, first: int, token: int, *, searched_all: bool) -> None:
        """Note the earliest moment that a search has found: of all messages, or from the former head on."""
        with self._lock:
            if token == self._invalidations:
                self._head = max(0, first - MARGIN)
                if searched_all:
                    self._until = time.monotonic() + BELIEVED

    def invalidate(self) -> int:
        """Drop the hint: a message is earlier, or a search found too little. Return a token for ``found``."""
        with self._lock:
            self._invalidations += 1
            self._until = 0.0
            return self._invalidations

    def collided(self) -> None:
        """Let the next searches skip messages: another process took those that this one had found."""
        with self._lock:
            self._skips, self._skip_until = SKIPS, time.monotonic() + BELIEVED
