# SPDX-License-Identifier: Apache-2.0
"""Leases of subscriptions, by which one worker at a time delivers to each subscription.

If a worker is killed, its subscriptions wait until its leases expire. If a clock jumps, two workers may deliver to a
subscription for a moment. A message may then be delivered twice, but no message is lost.
"""

import threading
import time
from typing import Final
from uuid import uuid4

from zq.clock import Clock
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

KIND: Final = "delivering"
# The duration of a lease in seconds. Its worker renews it after half of that time.
TTL: Final = 10.0


class Leases:
    """The leases of one worker. ``alone``: no other process opens the store, so no leases are written."""

    def __init__(self, documents: DocumentController, clock: Clock, alone: bool) -> None:
        self._documents = documents
        self._clock = clock
        self._alone = alone
        self._owner = uuid4().hex.encode()
        self._lock = threading.Lock()
        self._held: dict[QueueRef, float] = {}
        self._others: dict[QueueRef, float] = {}

    def hold(self, queue: QueueRef) -> bool:
        """Acquire or renew the lease of a queue, and return whether this worker holds it. Raises ``Unavailable``."""
        began = time.monotonic()
        if self._alone or self._held.get(queue, 0.0) > began + TTL / 2:
            return True
        if self._others.get(queue, 0.0) > began:
            return False
        ref, now = _document(queue), self._clock.now()
        found = self._documents.get(ref, now)
        if found is not None and found.value != self._owner:
            with self._lock:
                self._others[queue] = began + max(0.1, (found.expires or now) - now)
            return False
        version = found.version if found else ""
        if not self._documents.put(ref, self._owner, now, expected=version, expires=now + TTL):
            return False
        with self._lock:
            self._held[queue] = began + TTL
            self._others.pop(queue, None)
        return True

    def left(self, queue: QueueRef) -> float:
        """Return the seconds to wait before another attempt to acquire a lease that another worker holds."""
        return max(0.1, self._others.get(queue, 0.0) - time.monotonic())

    def release_all(self) -> None:
        """Release all leases, so that other workers need not wait for their expiry."""
        with self._lock:
            held, self._held = list(self._held), {}
        for queue in held:
            found = self._documents.get(_document(queue), self._clock.now())
            if found is not None and found.value == self._owner:
                self._documents.delete(_document(queue), self._clock.now(), expected=found.version)


def _document(queue: QueueRef) -> DocumentRef:
    return DocumentRef(queue.project, KIND, queue.name)
