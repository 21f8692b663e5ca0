# SPDX-License-Identifier: Apache-2.0
"""Verification of received deliveries: origin and uniqueness."""

import threading
import time
from collections.abc import Mapping

from zq.clock import own
from zq.wire import webhooks

__all__ = ["Received", "verify"]


def verify(secret: str, headers: Mapping[str, str], body: bytes, tolerance: float = 300) -> str:
    """Verify a delivery and return its id, which is the same for every attempt.

    Args:
        secret: Secret of the subscription (``whsec_…``).
        body: Body as received.
        tolerance: Maximum age of the signature in seconds.

    Raises ``Invalid`` if the signature is not valid or too old.
    """
    return webhooks.verify(secret, headers, body, own(), tolerance)


class Received:
    """A set of delivery ids that detects duplicates within ``seconds``. Thread-safe."""

    def __init__(self, seconds: float = 86400, most: int = 100_000) -> None:
        """Initialize for up to ``most`` ids. Beyond that, the oldest are dropped."""
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def is_new(self, id: str) -> bool:
        """Return whether the id is new, and record it."""
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
