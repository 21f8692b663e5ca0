# SPDX-License-Identifier: Apache-2.0
"""Verification of webhook signatures, and detection of duplicate deliveries."""

import threading
import time
from collections.abc import Mapping

from zq.clock import local_time
from zq.wire import webhooks

__all__ = ["RecentDeliveries", "verify"]


def verify(secret: str, headers: Mapping[str, str], body: bytes, tolerance: float = 300) -> str:
    """Verify the signature of a delivery and return the delivery's id.

    All attempts of a delivery have one id. Raises ``Invalid`` if the signature is wrong or too old.

    Args:
        secret: Secret of the subscription (``whsec_…``).
        body: Unchanged request body.
        tolerance: Maximum age of the signature in seconds.
    """
    return webhooks.verify(secret, headers, body, local_time(), tolerance)


class RecentDeliveries:
    """A set of recent delivery ids for detecting duplicates. Thread-safe."""

    def __init__(self, seconds: float = 86400, max_ids: int = 100_000) -> None:
        """Create a set that keeps each id for ``seconds``, but at most the newest ``max_ids`` ids."""
        self._seconds = seconds
        self._max_ids = max_ids
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def is_new(self, id: str) -> bool:
        """Add the id. Return ``True`` if it was not in the set."""
        now = time.monotonic()
        with self._lock:
            if self._seen.get(id, now) > now:
                return False
            while self._seen:
                oldest = next(iter(self._seen))
                if self._seen[oldest] > now and len(self._seen) < self._max_ids:
                    break
                del self._seen[oldest]
            self._seen[id] = now + self._seconds
            return True
