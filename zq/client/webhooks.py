# SPDX-License-Identifier: Apache-2.0
"""For those who receive deliveries of subscriptions: is this one from zq, and is it new?"""

import threading
import time
from collections.abc import Mapping

from zq.clock import own
from zq.wire.webhooks import verified

__all__ = ["Received", "verify"]


def verify(secret: str, headers: Mapping[str, str], body: bytes, tolerance: float = 300) -> str:
    """The id of a delivery, the same however often it is sent.

    ``secret``: as the subscription showed it when it was made (``whsec_…``); ``body``: the bytes as they came.
    Raises ``Invalid`` if it was not signed with the secret, or more than ``tolerance`` seconds ago.
    """
    return verified(secret, headers, body, own(), tolerance)


class Received:
    """Remembers ids of deliveries for ``seconds``, so that a repeat is known for one. Any thread may ask."""

    def __init__(self, seconds: float = 86400, most: int = 100_000) -> None:
        """``most``: ids that are remembered; the oldest go first."""
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def is_new(self, id: str) -> bool:
        """Whether the id has not come before; from now on it has."""
        now = time.monotonic()
        with self._lock:
            if self._seen.get(id, now) > now:
                return False
            while self._seen:
                oldest = next(iter(self._seen))
                if self._seen[oldest] > now and len(self._seen) < self._most:
                    break
                del self._seen[oldest]
            self._seen[id] = now + self._seconds
            return True
