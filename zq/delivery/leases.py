# SPDX-License-Identifier: Apache-2.0
"""Who delivers to a subscription: one worker of all that share a store, so that one delivery is under way at a time.

A worker that is killed keeps its leases until they end; meanwhile nobody delivers what it had. Two may deliver side by
side for a moment where a clock leaps, which doubles a delivery at worst: nothing is lost by it.
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
# Seconds of a lease; it is renewed when half of it is over.
LASTING: Final = 10.0


class Leases:
    """Of one worker. ``alone``: no other process has the store, so that none are needed."""

    def __init__(self, documents: DocumentController, clock: Clock, alone: bool) -> None:
        self._documents = documents
        self._clock = clock
        self._alone = alone
        self._owner = uuid4().hex.encode()
        self._lock = threading.Lock()
        self._held: dict[QueueRef, float] = {}
        self._others: dict[QueueRef, float] = {}

    def hold(self, queue: QueueRef) -> bool:
        """Whether this worker may deliver now. Raises ``Unavailable``."""
        asked = time.monotonic()
        if self._alone or self._held.get(queue, 0.0) > asked + LASTING / 2:
            return True
        if self._others.get(queue, 0.0) > asked:
            return False
        ref, now = _document(queue), self._clock.now()
        found = self._documents.get(ref, now)
        if found is not None and found.value != self._owner:
            with self._lock:
                self._others[queue] = asked + max(0.1, (found.expires or now) - now)
            return False
        version = found.version if found else ""
        if not self._documents.put(ref, self._owner, now, expected=version, expires=now + LASTING):
            return False
        with self._lock:
            self._held[queue] = asked + LASTING
            self._others.pop(queue, None)
        return True

    def left(self, queue: QueueRef) -> float:
        """In how many seconds to ask again."""
        return max(0.1, self._others.get(queue, 0.0) - time.monotonic())

    def release_all(self) -> None:
        """Let others deliver at once."""
        with self._lock:
            held, self._held = list(self._held), {}
        for queue in held:
            found = self._documents.get(_document(queue), self._clock.now())
            if found is not None and found.value == self._owner:
                self._documents.delete(_document(queue), self._clock.now(), expected=found.version)


def _document(queue: QueueRef) -> DocumentRef:
    return DocumentRef(queue.project, KIND, queue.name)
