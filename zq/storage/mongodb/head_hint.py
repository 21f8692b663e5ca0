# SPDX-License-Identifier: Apache-2.0
"""Where searches for what is ready begin."""

import random
import threading
import time
from typing import Final

# Seconds for which a head hint is used, and for which searches skip messages after a collision.
BELIEVED: Final = 2.0
# Milliseconds that the head hint stays below what was found: servers' clocks differ.
MARGIN: Final = 100
# How many searches skip messages after one that met another process at the same messages.
SKIPS: Final = 4


class HeadHint:
    """Where a process searches for ready messages of a queue. Safe for any number of threads.

    Consumed and expired entries stay in the index for minutes, so a search from the beginning walks over all of them.
    The head is a moment below which a search of this process found nothing. Another process may have released a message
    to an earlier moment, so the hint is used for a short while and never when it finds too little.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head = 0
        self._until = 0.0
        self._invalidations = 0
        self._skips = 0
        self._skip_until = 0.0

    def start(self, want: int) -> tuple[int, int, int]:
        """From which moment to search and how many messages to skip; and a token for ``found``."""
        with self._lock:
            head = self._head if time.monotonic() < self._until else 0
            skip = 0
            if self._skips and time.monotonic() < self._skip_until:
                self._skips -= 1
                skip = random.randrange(2 * want)
            return head, skip, self._invalidations

    def found(self, first: int, token: int, *, searched_all: bool) -> None:
        """A search found ``first`` as the earliest moment of all, or of all from the former head on."""
        with self._lock:
            if token == self._invalidations:
                self._head = max(0, first - MARGIN)
                if searched_all:
                    self._until = time.monotonic() + BELIEVED

    def invalidate(self) -> int:
        """This process has given a message an earlier moment, or found too little from the head on. A token."""
        with self._lock:
            self._invalidations += 1
            self._until = 0.0
            return self._invalidations

    def collided(self) -> None:
        """Another process took what this one had found."""
        with self._lock:
            self._skips, self._skip_until = SKIPS, time.monotonic() + BELIEVED
