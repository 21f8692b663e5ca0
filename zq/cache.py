# SPDX-License-Identifier: Apache-2.0
"""A read-through cache with a time to live and single flight."""

import threading
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final, Generic, TypeVar

from zq.errors import ZqError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")

# Divisor of the size of a full cache, for the number of entries to evict at once. Python finds the first entry of a
# dictionary in time proportional to the number of entries that were deleted before it.
EVICTION_DIVISOR: Final = 8


class _Flight(Generic[V]):
    """A load in progress. It ends with a value, with an error, or with neither if ``load`` failed unexpectedly."""

    value: V
    error: ZqError | None = None

    def __init__(self) -> None:
        self.ended = threading.Lock()
        self.ended.acquire()


class ReadThroughCache(Generic[K, V]):
    """A cache of the values that ``load`` returns. Thread-safe.

    Concurrent lookups of a missing key share one load, and its error if that is a ``ZqError``. Errors are not cached.
    Entries are in a plain dictionary, which is read without a lock and in half the time of a ``cachetools.FIFOCache``.

    Args:
        load: Returns the value of a key. Must not look up its own key.
        size: Maximum number of entries. The oldest ones are evicted.
        ttl: Seconds for which a value is cached, counted from the start of its load, or a function that returns them.
            If it returns 0, the value is not cached.
    """

    def __init__(
        self,
        load: Callable[[K], V],
        size: int,
        ttl: float | Callable[[V], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._size, self._monotonic = load, size, monotonic
        self._ttl: Callable[[V], float] = ttl if callable(ttl) else lambda _: ttl
        self._lock = threading.Lock()
        self._entries: dict[K, tuple[float, V]] = {}
        self._flights: dict[K, _Flight[V]] = {}

    def get(self, key: K, now: float | None = None) -> V:
        """Return the cached value of the key. If there is none, load it.

        Args:
            now: Current monotonic time, if the caller has read the clock.
        """
        try:
            until, value = self._entries[key]
        except KeyError:
            return self._load_once(key)
        return value if (now or self._monotonic()) < until else self._load_once(key)

    def peek(self, key: K, default: D, *, expired: bool = False) -> V | D:
        """Return the cached value of the key, or ``default``. If ``expired``, return an expired value too."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and (expired or self._monotonic() < entry[0]) else default

    def forget(self, key: K) -> None:
        """Remove the key after its value was changed. A load that began before is not cached."""
        with self._lock:
            self._entries.pop(key, None)
            self._flights.pop(key, None)

    def clear(self) -> None:
        """Remove all keys."""
        with self._lock:
            self._entries.clear()
            self._flights.clear()

    def _load_once(self, key: K) -> V:
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None and self._monotonic() < entry[0]:  # another thread has loaded the value meanwhile
                    return entry[1]
                other = self._flights.get(key)
                if other is None:
                    flight: _Flight[V] = _Flight()  # without a type argument, which would take a microsecond
                    self._flights[key] = flight
                    break
            with other.ended:
                if other.error is not None:
                    raise other.error
                if hasattr(other, "value"):
                    return other.value
        began = self._monotonic()
        try:
            flight.value = self._load(key)
        except ZqError as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                if self._flights.get(key) is flight:  # otherwise the value may be older than a change
                    del self._flights[key]
                    if hasattr(flight, "value"):
                        self._store(key, flight.value, began)
            flight.ended.release()
        return flight.value

    def _store(self, key: K, value: V, began: float) -> None:
        self._entries.pop(key, None)
        ttl = self._ttl(value)
        if ttl > 0:
            if len(self._entries) >= self._size:
                for oldest in list(islice(self._entries, 1 + self._size // EVICTION_DIVISOR)):
                    del self._entries[oldest]
            self._entries[key] = began + ttl, value
