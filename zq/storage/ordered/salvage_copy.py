# SPDX-License-Identifier: Apache-2.0
"""The shared state of a salvage: the damaged store, the new store, and the losses."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from zq.errors import StoreDamaged
from zq.storage.ordered import layout, startup
from zq.storage.ordered.store import Readable, Store, Write

# Gap between the largest known value and the next one if another counter is lost.
LOST_COUNTER: Final = 1000 * startup.EPOCH_STRIDE
# Maximum size in bytes of one write to the new store.
MAX_WRITE_BYTES: Final = 4 << 20


class Gaps(Protocol):
    """The unreadable key ranges of a family."""

    def __bool__(self) -> bool: ...

    def __contains__(self, key: bytes) -> bool: ...

    def overlap(self, lower: bytes, upper: bytes) -> bool:
        """Return whether any key with ``lower <= key < upper`` may be unreadable."""
        ...


class DamagedStore(Readable, Protocol):
    """The readable part of a damaged store.

    ``scan`` skips damaged ranges. ``get`` raises ``StoreDamaged`` if it cannot read the value of the key.
    """

    def gaps(self, family: str) -> Gaps:
        """Return the ranges of a family that ``scan`` cannot read."""
        ...

    def entries(self, family: str, *known: Callable[[], Iterable[bytes]]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield all readable entries of a family, and (key, None) for each known key whose entry is unreadable.

        The functions ``known`` return keys of existing entries from other sources, for example from an index.
        """
        ...


class SalvageState:
    """The state of a running salvage. ``saved`` counts the copied records by kind. ``lost`` describes each loss."""

    def __init__(self, source: DamagedStore, store: Store, now: int) -> None:
        self.source = source
        self.now = now
        self.saved: Counter[str] = Counter()
        self.lost: list[str] = []
        self.top = 0
        """The largest number of a queue, history, log or stage found so far."""
        self.starts = 0
        self.strays: Counter[str] = Counter()
        """The number of records whose owner is unknown, by kind."""
        notes = source.scan("default", layout.PENDING_NUMBER, layout.prefix_end(layout.PENDING_NUMBER))
        self.dropped = {key[len(layout.PENDING_NUMBER) :] for key, _ in notes}
        """The numbers of removed histories and stages whose data is still stored."""
        self._store = store
        self._writes: list[Write] = []
        self._size = 0

    def raise_top(self, *numbers: int) -> None:
        """Record numbers that are in use, so that the new store issues only larger ones."""
        self.top = max(self.top, *numbers)

    def write(self, writes: Iterable[Write]) -> None:
        for write in writes:
            self._writes.append(write)
            self._size += len(write[1]) + len(write[2] or b"")
        if self._size >= MAX_WRITE_BYTES:
            self.flush()

    def save(self, kind: str, writes: Iterable[Write]) -> None:
        """Write a record and its index entries to the new store, and count it under ``kind``."""
        self.saved[kind] += 1
        self.write(writes)

    def flush(self) -> None:
        self._store.write(self._writes)
        self._writes, self._size = [], 0

    def read_number(self, key: bytes) -> int | None:
        """Return a number from the family ``default``, or 0 if there is no such number.

        If the number is unreadable, report the loss and return None.
        """
        try:
            return int.from_bytes(self.source.get("default", key) or b"")
        except StoreDamaged:
            self.lost.append(f"The counter {key.decode()!r} of the store is lost; a higher value replaces it")
            return None
