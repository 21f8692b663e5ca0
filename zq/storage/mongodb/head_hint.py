# SPDX-License-Identifier: Apache-2.0
"""The head hint: a time before which no message of a queue is ready, used as the start of searches."""

import random
import threading
import time
from typing import Final

# Seconds for which a head hint is valid, and for which searches skip messages after a collision.
VALIDITY: Final = 2.0
# Milliseconds between the hint and the earliest found message, because the clocks of servers differ.
MARGIN: Final = 100
# Number of searches that skip messages after a collision with another process.
SKIPS: Final = 4


class HeadHint:
    """The head hint of one queue in one process. All threads of the process can use it.

    MongoDB keeps the index entries of consumed and expired messages for minutes. A search from the beginning of the
    index reads all of these entries. The head hint is an available-at time (milliseconds) below which an earlier search
    of this process has found no message. A search that starts at the hint skips the obsolete entries.

    Another process may release a message with an earlier available-at time. The hint is therefore valid for a short
    time only, and is discarded if a search from the hint finds fewer messages than wanted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._head = 0
        self._until = 0.0
        self._invalidations = 0
        self._skips = 0
        self._skip_until = 0.0

    def get_start(self, want: int) -> tuple[int, int, int]:
        """Return the start of a search for ``want`` messages.

        The start is an available-at time in milliseconds (0 = the beginning), a number of messages to skip, and a token
        for ``update``.
        """
        with self._lock:
            head = self._head if time.monotonic() < self._until else 0
            skip = 0
            if self._skips and time.monotonic() < self._skip_until:
                self._skips -= 1
                skip = random.randrange(2 * want)
            return head, skip, self._invalidations

    def update(self, first: int, token: int, *, searched_all: bool) -> None:
        """Set the hint after a search, unless the hint was invalidated after ``token`` was returned.

        ``first`` is the available-at time of the first message that the search has found, in milliseconds. If
        ``searched_all`` is true, the search started at the beginning of the index, and the hint's validity is renewed.
        """
        with self._lock:
            if token == self._invalidations:
                self._head = max(0, first - MARGIN)
                if searched_all:
                    self._until = time.monotonic() + VALIDITY

    def invalidate(self) -> int:
        """Discard the hint, and return a new token for ``update``."""
        with self._lock:
            self._invalidations += 1
            self._until = 0.0
            return self._invalidations

    def record_collision(self) -> None:
        """Record that another process has changed messages that a search of this process had found.

        For a short time, searches then skip a random number of messages, so that the processes choose different ones.
        """
        with self._lock:
            self._skips, self._skip_until = SKIPS, time.monotonic() + VALIDITY
