# SPDX-License-Identifier: Apache-2.0
"""Where a process looks for ready messages of a queue: from its head on, and elsewhere after a collision.

Consumed and expired entries stay in the index for minutes, so a search from the beginning walks over all of them. The
head is a moment below which a search of this process found nothing. It is a hint: another process may have released a
message to an earlier place, so it is believed for a short while and never when it finds too little.
"""

import random
import threading
import time
from typing import Final

BELIEVED: Final = 2.0
"""Seconds for which a head is believed, and for which a search after a collision looks elsewhere."""
MARGIN: Final = 100
"""Milliseconds that the head stays behind what was found: servers' clocks differ."""
WARY: Final = 4
"""How many searches look elsewhere after one that met another process at the same messages."""


class Front:
    """One queue's hints. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head = 0
        self._until = 0.0
        self._lowerings = 0
        self._wary = 0
        self._wary_until = 0.0

    def look(self, want: int) -> tuple[int, int, int]:
        """From which moment to search and how many messages to skip; and a token for ``found``."""
        with self._lock:
            head = self._head if time.monotonic() < self._until else 0
            skip = 0
            if self._wary and time.monotonic() < self._wary_until:
                self._wary -= 1
                skip = random.randrange(2 * want)
            return head, skip, self._lowerings

    def found(self, first: int, token: int, *, searched_all: bool) -> None:
        """A search saw ``first`` as the earliest moment of all, or of all from the former head on."""
        with self._lock:
            if token == self._lowerings:
                self._head = max(0, first - MARGIN)
                if searched_all:
                    self._until = time.monotonic() + BELIEVED

    def lower(self) -> int:
        """This process has given a message an earlier moment, or found too little from the head on. A token."""
        with self._lock:
            self._lowerings += 1
            self._until = 0.0
            return self._lowerings

    def collide(self) -> None:
        """Another process took what this one had found."""
        with self._lock:
            self._wary, self._wary_until = WARY, time.monotonic() + BELIEVED
