# SPDX-License-Identifier: Apache-2.0
"""A cache of queue counters in one process. It also detects queues to which other processes post."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from cachetools import LRUCache

from zq.model import Grouping
from zq.storage.mongodb.layout import QueueKey

# Maximum number of counters in the cache of a process.
MAX_CACHED_COUNTERS: Final = 10_000
# Maximum size in bytes of the metadata of a cached counter. The conditional update contains the metadata.
MAX_CACHED_METADATA: Final = 1024
# Seconds for which a counter is shared if the process can draw sequences. See the module ``numbering``.
SHARED_SECONDS: Final = 10.0
# Seconds for which a counter is shared if the process cannot draw sequences.
UNCACHED_SECONDS: Final = 1.0


class SequenceRange(NamedTuple):
    """A reserved range of sequences in a queue, and the state of the queue.

    - ``sequence``: the first sequence of the range.
    - ``number``: the length of the range.
    - ``available``: the available-at time of messages without delay, in milliseconds.
    - ``floor``: the last sequence that a purge or deletion has removed.
    """

    sequence: int
    number: int
    available: int
    metadata: bytes
    grouping: Grouping
    floor: int

    @property
    def last(self) -> int:
        return self.sequence + self.number - 1


class CachedCounter(NamedTuple):
    """The values of a counter after a committed transaction of this process.

    - ``sequence``: the last assigned sequence.
    - ``available``: the last available-at time of a message without delay, in milliseconds.
    - ``floor``: the last sequence that a purge or deletion has removed.
    """

    sequence: int
    available: int
    metadata: bytes
    grouping: Grouping
    floor: int


class CounterCache:
    """A thread-safe cache of the queue counters that a process knows.

    The process records all sequences that it assigns: for posts, moves, commits and deletions. If a counter is above
    the last recorded sequence, another process has advanced it. The counter is then *shared* for ``shared_seconds``.
    Shared counters are not cached.
    """

    def __init__(self, shared_seconds: float) -> None:
        self._shared_seconds = shared_seconds
        self._lock = threading.Lock()
        self._counters = LRUCache[str, CachedCounter](MAX_CACHED_COUNTERS)
        self._shared = LRUCache[str, float](MAX_CACHED_COUNTERS)
        self._recorded = LRUCache[str, int](MAX_CACHED_COUNTERS)

    def get(self, keys: Iterable[QueueKey]) -> Mapping[QueueKey, CachedCounter]:
        """Return the cached counters of these queues. A queue without a cached counter is not in the result."""
        with self._lock:
            return {key: self._counters[key.counter] for key in keys if key.counter in self._counters}

    def store(self, ranges: Mapping[QueueKey, SequenceRange]) -> None:
        """Cache the counters after a committed transaction that has reserved these ranges.

        A counter that the process has advanced again since that transaction is not cached.
        """
        now = time.monotonic()
        with self._lock:
            for key, one in ranges.items():
                is_exclusive = self._shared.get(key.counter, 0.0) < now and self._recorded.get(key.counter) == one.last
                if is_exclusive and one.available and len(one.metadata) <= MAX_CACHED_METADATA:
                    cached = CachedCounter(one.last, one.available, one.metadata, one.grouping, one.floor)
                    self._counters[key.counter] = cached

    def record(self, counter: str, before: int, after: int) -> None:
        """Record a change of a counter from ``before`` to ``after``, and drop the counter from the cache.

        Call this method in each transaction of this process that changes the counter, before the transaction commits.
        If ``before`` and ``after`` are equal, the process has only read the counter.
        """
        with self._lock:
            self._counters.pop(counter, None)
            recorded = self._recorded.get(counter, before)
            if before > recorded:
                self._shared[counter] = time.monotonic() + self._shared_seconds
            self._recorded[counter] = max(recorded, after)

    def drop(self, keys: Iterable[QueueKey]) -> None:
        """Remove the counters of these queues from the cache."""
        with self._lock:
            for key in keys:
                self._counters.pop(key.counter, None)

    def forget(self, key: QueueKey) -> None:
        """Forget the counter of a queue that no longer exists."""
        with self._lock:
            self._counters.pop(key.counter, None)
            self._recorded.pop(key.counter, None)

    def is_known(self, key: QueueKey) -> bool:
        """Return whether the process has recorded a value of the queue's counter, so that the queue probably exists."""
        with self._lock:
            return key.counter in self._recorded

    def is_shared(self, keys: Iterable[QueueKey]) -> bool:
        """Return whether another process has recently advanced the counter of one of these queues."""
        now = time.monotonic()
        with self._lock:
            return any(self._shared.get(key.counter, 0.0) >= now for key in keys)
