# SPDX-License-Identifier: Apache-2.0
"""How much each project has stored, as one process knows it, and what it may store more (tenancy 6)."""

import threading
from collections.abc import Callable
from typing import Final

from cachetools import FIFOCache

from zq.clock import Clock
from zq.errors import QuotaExceeded
from zq.model.quotas import Quota, Usage
from zq.storage.api import Storage

# Seconds for which a project's own values, and what it has stored, are remembered.
FRESH: Final = 10.0
# Seconds after which the store is asked again if it did not answer, or a project is near a quota.
RETRY: Final = 1.0
# Bytes of the metadata of a queue or topic that do not count.
FREE_METADATA: Final = 4096
# Projects that one process remembers.
MOST_KNOWN: Final = 10_000


class StoredUsage:
    """What a project had stored at a moment of the monotonic clock, and what it was allowed since."""

    __slots__ = ("bytes", "messages", "moment", "until")

    def __init__(self, usage: Usage, moment: float, quota: Quota) -> None:
        self.messages, self.bytes, self.moment = usage.messages, usage.bytes, moment
        near = 0 < quota.stored_messages <= 2 * usage.messages or 0 < quota.stored_bytes <= 2 * usage.bytes
        self.until = moment + (RETRY if near else FRESH)
        """When it is to be looked up again: soon, once half of a quota is used."""

    def add(self, messages: int, size: int, quota: Quota) -> QuotaExceeded | None:
        """Count so much more, or tell why not."""
        messages += self.messages
        size += self.bytes
        if messages > quota.stored_messages > 0:
            return exceeded("stored messages", quota.stored_messages)
        if size > quota.stored_bytes > 0:
            return exceeded("stored bytes", quota.stored_bytes)
        self.messages, self.bytes = messages, size
        return None


class Stored:
    """Bounds what projects store, by what the store says now and then and what this process has let in since.

    What other processes let in meanwhile is not seen: so much a project may have too much.
    """

    def __init__(self, storage: Storage, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._storage = storage
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: FIFOCache[str, StoredUsage] = FIFOCache(MOST_KNOWN)

    def take(self, project: str, messages: int, size: int, quota: Quota) -> QuotaExceeded | None:
        """Count so much more, or tell why not. Where the store does not know, nothing is bounded."""
        now = self._monotonic()
        held = self._held.get(project)
        if held is None or now >= held.until:
            held = self._look(project, now, quota)
        if held is None:
            return None
        with self._lock:
            refusal = held.add(messages, size, quota)
        if refusal is not None and now - held.moment >= RETRY:
            held = self._look(project, now, quota)
            with self._lock:
                return None if held is None else held.add(messages, size, quota)
        return refusal

    def _look(self, project: str, now: float, quota: Quota) -> StoredUsage | None:
        usage = self._storage.usage(project, self._clock.now())
        if usage is None:
            return None
        held = StoredUsage(usage, now, quota)
        with self._lock:
            self._held[project] = held
        return held

    def forget(self, project: str) -> None:
        """Read again."""
        with self._lock:
            self._held.pop(project, None)


class LargeMetadata:
    """Bounds the metadata of each project's queues and topics, but for the first ``FREE_METADATA`` bytes of each.

    It is counted when metadata beyond that grow, and remembered as what ``Stored`` knows is.
    """

    def __init__(self, measure: Callable[[str], int], monotonic: Callable[[], float]) -> None:
        """``measure`` returns what a project has, as the store says."""
        self._measure = measure
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: FIFOCache[str, tuple[float, int]] = FIFOCache(MOST_KNOWN)

    def take(self, project: str, size: int, former: int, most: int) -> None:
        """Count metadata that have ``size`` bytes, and had ``former``. Raises ``QuotaExceeded``."""
        more = beyond_free(size) - beyond_free(former)
        if not most or more <= 0:
            return
        now = self._monotonic()
        moment, total = self._known.get(project, (-FRESH, 0))
        measured = None
        if now - moment >= FRESH or (now - moment >= RETRY and total + more > most):
            measured = now, self._measure(project)
        with self._lock:
            moment, total = measured or self._known.get(project, (-FRESH, 0))
            fits = total + more <= most
            self._known[project] = moment, total + more if fits else total
        if not fits:
            raise exceeded("bytes of metadata", most)


def beyond_free(size: int) -> int:
    """Return how many bytes of metadata count."""
    return max(0, size - FREE_METADATA)


def exceeded(name: str, most: int) -> QuotaExceeded:
    """The refusal of one more."""
    return QuotaExceeded(f"The project may have {most} {name}.")
