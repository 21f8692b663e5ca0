# SPDX-License-Identifier: Apache-2.0
"""A read-through cache with a time to live and single flight."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final, Generic, TypeVar

from zq.errors import ZqError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")

# A full cache evicts its size divided by this number at once. Python finds the first entry of a dictionary in time
# proportional to the number of entries that were deleted before it.
EVICTION_DIVISOR: Final = 8


class _Flight(Generic[V]):
    value: V
    until = -math.inf
    """The time at which the value expires."""
    error: ZqError | None = None

    def __init__(self, began: float, is_shared: bool) -> None:
        self.began = began
        self.is_shared = is_shared
        self.ended = threading.Lock()
        self.ended.acquire()


class ReadThroughCache(Generic[K, V]):
    """A cache of the values that ``load`` returns. Thread-safe. Lookups of cached keys take no lock.

    If several threads look up a missing key at the same time, ``load`` is called once for all of them. If ``load``
    raises a ``ZqError``, all these lookups raise the error, and the error is not cached. A thread that runs an event
    loop calls ``load`` itself, so that the thread never waits for another thread.

    Args:
        ttl: Seconds for which a value is cached, counted from the start of its load; 0 = not cached. If
            ``ttl`` is a function, it computes the seconds for each value.
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
        """Return the cached value of the key. If there is none, load it."""
        try:
            until, value = self._entries[key]
        except KeyError:
            return self._load_once(key)
        return value if (now or self._monotonic()) < until else self._load_once(key)

    def peek(self, key: K, default: D, *, expired: bool = False) -> V | D:
        """Return the cached value of the key, or ``default``. If ``expired`` is true, return an expired value too."""
        entry = self._entries.get(key)
        return entry[1] if entry is not None and (expired or self._monotonic() < entry[0]) else default

    def forget(self, key: K) -> None:
        """Remove the key, because its value has changed. If the key is being loaded, do not cache the result."""
        with self._lock:
            self._entries.pop(key, None)
            self._flights.pop(key, None)

    def clear(self) -> None:
        """Remove all keys."""
        with self._lock:
            self._entries.clear()
            self._flights.clear()

    def _load_once(self, key: K) -> V:
        asked, shares = self._monotonic(), not _runs_event_loop()
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and asked < entry[0]:  # another thread has loaded the value meanwhile
                return entry[1]
            other = self._flights.get(key)
            if other is None:
                # Without a type argument, which would take a microsecond.
                flight: _Flight[V] = _Flight(asked, shares)
                self._flights[key] = flight
        if other is None:
            return self._lead(key, flight)
        if not (shares and other.is_shared):
            return self._load(key)
        with other.ended:
            error = other.error
        if error is not None:
            try:
                raise error.with_traceback(None)
            finally:
                del error, other  # the traceback refers to this frame
        # The value may be older than this lookup allows, if the load began long ago.
        return other.value if asked < other.until else self._load(key)

    def _lead(self, key: K, flight: _Flight[V]) -> V:
        try:
            value = flight.value = self._load(key)
            flight.until = flight.began + self._ttl(value)
            return value
        except ZqError as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                if self._flights.get(key) is flight:  # otherwise the value may be older than a change
                    del self._flights[key]
                    if flight.until > -math.inf:  # the load succeeded
                        self._store(key, flight)
            flight.ended.release()
            del flight  # the traceback of its error refers to this frame

    def _store(self, key: K, flight: _Flight[V]) -> None:
        self._entries.pop(key, None)
        if flight.until > flight.began:
            if len(self._entries) >= self._size:
                for oldest in list(islice(self._entries, 1 + self._size // EVICTION_DIVISOR)):
                    del self._entries[oldest]
            self._entries[key] = flight.until, flight.value


def _runs_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
