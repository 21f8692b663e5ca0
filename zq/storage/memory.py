# SPDX-License-Identifier: Apache-2.0
"""The in-memory driver for tests and demonstrations, which keeps all data in sorted dictionaries."""

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from sortedcontainers import SortedDict

from zq.errors import StartRefused
from zq.model import levels
from zq.model.expiry import Expiry
from zq.model.levels import Initial
from zq.model.stats import Measure
from zq.storage.api import Storage
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.ordered.store import Housekeeping, Range, Store, Write

LOG = logging.getLogger(__name__)
# Number of items that a scan reads first. Scans that end early should read few items.
FIRST_SCAN: Final = 8
# Maximum number of items that a scan reads at a time.
MAX_SCAN: Final = 512


def connect(uri: str, expiry: Expiry | None = None, initial: Initial = levels.initial) -> Storage:
    """Open an empty store. Raises ``StartRefused`` if the URI is not exactly ``memory:``."""
    if uri != "memory:":
        raise StartRefused(f"The URI of the in-memory store must be memory:, not {uri!r}.")
    LOG.info("The store is in memory: all messages are lost when this server stops.")
    store = MemoryStore()
    return OrderedStorage(lambda: store, expiry, store, initial=initial)


class MemoryStore(Store, Housekeeping):
    """A store with a sorted dictionary for each column family. All dictionaries share one lock."""

    is_prompt = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: defaultdict[str, SortedDict[bytes, bytes]] = defaultdict(SortedDict)
        self._size = 0

    def get(self, family: str, key: bytes) -> bytes | None:
        with self._lock:
            value: bytes | None = self._families[family].get(key)
        return value

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        with self._lock:
            values = self._families[family]
            return [values.get(key) for key in keys]

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        size = FIRST_SCAN
        while lower < upper:
            with self._lock:
                values = self._families[family]
                keys = values.irange(lower, upper, (True, False), backwards)
                found = [(key, values[key]) for key in islice(keys, size)]
            yield from found
            if len(found) < size:
                return
            last = found[-1][0]
            lower, upper = (lower, last) if backwards else (last + b"\0", upper)
            size = min(MAX_SCAN, 4 * size)

    def write(self, writes: Sequence[Write], removed_ranges: Sequence[Range] = ()) -> None:
        with self._lock:
            for family, lower, upper in removed_ranges:
                for key in list(self._families[family].irange(lower, upper, (True, False))):
                    self._put(family, key, None)
            for family, key, value in writes:
                self._put(family, key, value)

    def wait_durable(self, always: bool = False) -> None:
        """Return immediately, because no data outlives the process."""

    def close(self) -> None:
        with self._lock:
            self._families.clear()

    def measures(self) -> Iterator[Measure]:
        yield Measure("store_bytes", self._size, (("part", "memory"),))

    def _put(self, family: str, key: bytes, value: bytes | None) -> None:
        values = self._families[family]
        former = values.get(key)
        if former is not None:
            self._size -= len(key) + len(former)
        if value is not None:
            values[key] = value
            self._size += len(key) + len(value)
        elif former is not None:
            del values[key]
