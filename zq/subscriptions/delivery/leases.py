# SPDX-License-Identifier: Apache-2.0
"""Leases that assign each subscription to one delivery worker at a time.

If a worker crashes, other workers take over its subscriptions when its leases expire. If a clock jumps, two workers can
deliver to one subscription for a short time. Messages can then be delivered twice, but none is lost.
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
# Duration of a lease in seconds. The worker renews a lease when half of this time has passed.
TTL: Final = 10.0


class Leases:
    """The leases of one delivery worker on delivery queues and topic logs.

    If ``alone`` is true, no other process uses the store, so the worker acquires every lease.
    """

    def __init__(self, documents: DocumentController, clock: Clock, alone: bool) -> None:
        self._documents = documents
        self._clock = clock
        self._alone = alone
        self._owner = uuid4().hex.encode()
        self._lock = threading.Lock()
        self._held: dict[QueueRef, float] = {}
        self._others: dict[QueueRef, float] = {}

    def acquire(self, queue: QueueRef) -> bool:
        """Acquire or renew the lease on a delivery queue. Return False if another worker holds the lease."""
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

    def seconds_left(self, queue: QueueRef) -> float:
        """Return the seconds until another worker's lease on a delivery queue expires. The result is at least 0.1."""
        return max(0.1, self._others.get(queue, 0.0) - time.monotonic())

    def release_all(self) -> None:
        """Release all leases, so that other workers take over immediately."""
        with self._lock:
            held, self._held = list(self._held), {}
        for queue in held:
            found = self._documents.get(_document(queue), self._clock.now())
            if found is not None and found.value == self._owner:
                self._documents.delete(_document(queue), self._clock.now(), expected=found.version)


def _document(queue: QueueRef) -> DocumentRef:
    return DocumentRef(queue.project, KIND, queue.name)
