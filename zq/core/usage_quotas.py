# SPDX-License-Identifier: Apache-2.0
"""Enforcement of storage and metadata quotas of projects, based on cached usage (tenancy contract, section 6)."""

import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cachetools import FIFOCache

from zq.clock import Clock
from zq.errors import QuotaExceeded
from zq.model.quotas import Quota, Usage
from zq.storage.api import Storage

# Seconds for which a project's settings and usage are cached.
CACHE_TTL: Final = 10.0
# Seconds after which usage is read again if the last read failed or the project is near a quota.
RETRY_INTERVAL: Final = 1.0
# Metadata bytes per queue or topic that do not count against the quota.
FREE_METADATA: Final = 4096
# Seconds after which a cached usage is no longer reported in metrics.
REPORTED_AGE: Final = 300.0
# Maximum number of projects in a cache.
MAX_PROJECTS: Final = 10_000


class LargestUse(NamedTuple):
    """The project that has used the largest fraction of its quota, and this fraction (``ratio``)."""

    ratio: float
    project: str


class StoredUsage:
    """A project's usage, as read from the store at the monotonic time ``moment``, plus later writes of this process."""

    __slots__ = ("bytes", "messages", "moment", "until")

    def __init__(self, usage: Usage, moment: float, quota: Quota) -> None:
        self.messages, self.bytes, self.moment = usage.messages, usage.bytes, moment
        near = 0 < quota.stored_messages <= 2 * usage.messages or 0 < quota.stored_bytes <= 2 * usage.bytes
        self.until = moment + (RETRY_INTERVAL if near else CACHE_TTL)
        """Monotonic time at which the usage must be read again: earlier if more than half of a quota is used."""

    def add(self, messages: int, size: int, quota: Quota) -> QuotaExceeded | None:
        """Add messages and bytes to the usage. If the sum exceeds the quota, return the error without adding them."""
        messages += self.messages
        size += self.bytes
        if messages > quota.stored_messages > 0:
            return exceeded("stored_messages", quota.stored_messages)
        if size > quota.stored_bytes > 0:
            return exceeded("stored_bytes", quota.stored_bytes)
        self.messages, self.bytes = messages, size
        return None


class StorageQuotas:
    """Enforcement of storage quotas in one process.

    Usage is read from the store periodically. In between, each process counts its own writes only, so a project may
    temporarily exceed its quota by the writes of other processes.
    """

    def __init__(self, storage: Storage, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._storage = storage
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: FIFOCache[str, StoredUsage] = FIFOCache(MAX_PROJECTS)

    def take(self, project: str, messages: int, size: int, quota: Quota) -> QuotaExceeded | None:
        """Reserve quota for messages and bytes. Return the error if the quota is exceeded, otherwise ``None``."""
        now = self._monotonic()
        held = self._held.get(project)
        if held is None or now >= held.until:
            held = self._refresh(project, now, quota)
        if held is None:
            return None
        with self._lock:
            refusal = held.add(messages, size, quota)
        if refusal is not None and now - held.moment >= RETRY_INTERVAL:
            held = self._refresh(project, now, quota)
            with self._lock:
                return None if held is None else held.add(messages, size, quota)
        return refusal

    def _refresh(self, project: str, now: float, quota: Quota) -> StoredUsage | None:
        usage = self._storage.usage(project, self._clock.now())
        if usage is None:
            return None
        held = StoredUsage(usage, now, quota)
        with self._lock:
            self._held[project] = held
        return held

    def recent(self) -> Iterator[tuple[str, str, int]]:
        """Yield the cached usage that is at most ``REPORTED_AGE`` old, as tuples of project, quota name and use."""
        oldest = self._monotonic() - REPORTED_AGE
        with self._lock:
            held = list(self._held.items())
        for project, usage in held:
            if usage.moment >= oldest:
                yield project, "stored_messages", usage.messages
                yield project, "stored_bytes", usage.bytes

    def forget(self, project: str) -> None:
        """Invalidate the project's cached usage."""
        with self._lock:
            self._held.pop(project, None)


class MetadataQuotas:
    """Enforcement of the metadata quota of projects in one process.

    Only metadata beyond the first ``FREE_METADATA`` bytes of a queue or topic counts. The quota is checked when the
    counted size of a queue or topic grows. The project's total is cached like the usage in ``StorageQuotas``.
    """

    def __init__(self, measure: Callable[[str], int], monotonic: Callable[[], float]) -> None:
        self._measure = measure
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: FIFOCache[str, tuple[float, int]] = FIFOCache(MAX_PROJECTS)

    def take(self, project: str, size: int, former: int, limit: int) -> None:
        """Reserve quota for metadata that grows from ``former`` to ``size`` bytes.

        Raises ``QuotaExceeded`` if the project's total would exceed ``limit`` (0 = no limit).
        """
        more = beyond_free(size) - beyond_free(former)
        if not limit or more <= 0:
            return
        now = self._monotonic()
        moment, total = self._known.get(project, (-CACHE_TTL, 0))
        measured = None
        if now - moment >= CACHE_TTL or (now - moment >= RETRY_INTERVAL and total + more > limit):
            measured = now, self._measure(project)
        with self._lock:
            moment, total = measured or self._known.get(project, (-CACHE_TTL, 0))
            fits = total + more <= limit
            self._known[project] = moment, total + more if fits else total
        if not fits:
            raise exceeded("metadata_bytes", limit)

    def recent(self) -> Iterator[tuple[str, str, int]]:
        """Yield the cached totals that are at most ``REPORTED_AGE`` old, as tuples of project, quota name and use."""
        oldest = self._monotonic() - REPORTED_AGE
        with self._lock:
            known = list(self._known.items())
        for project, (moment, total) in known:
            if moment >= oldest:
                yield project, "metadata_bytes", total


def beyond_free(size: int) -> int:
    """Return the number of metadata bytes that count against the quota: ``size`` minus ``FREE_METADATA``, or 0."""
    return max(0, size - FREE_METADATA)


def exceeded(name: str, limit: int) -> QuotaExceeded:
    """Build the error for a project that has reached a limit. ``name`` is the limit's name in ``Quota``."""
    objects = "bytes of metadata" if name == "metadata_bytes" else name.replace("_", " ")
    return QuotaExceeded(f"The project may have at most {limit} {objects}.", name)
