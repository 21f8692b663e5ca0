# SPDX-License-Identifier: Apache-2.0
"""The common part of a salvage's steps: the damaged store that they read, and the new store that they write."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from zq.errors import StoreDamaged
from zq.storage.ordered import layout, startup
from zq.storage.ordered.store import Readable, Store, Write

# By how much a counter that was lost begins above all that is known to have been given out.
LOST_COUNTER: Final = 1000 * startup.EPOCH_STRIDE
# Bytes of one write to the new store.
FULL: Final = 4 << 20


class Gaps(Protocol):
    """Which keys of a family cannot be read."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        ...

    def __contains__(self, key: bytes) -> bool: ...

    def overlap(self, lower: bytes, upper: bytes) -> bool:
        """Whether there are any with ``lower <= key < upper``."""
        ...


class Wreck(Readable, Protocol):
    """All that can be read of a damaged store; ``scan`` steps over damage, ``get`` raises ``StoreDamaged``."""

    def gaps(self, family: str) -> Gaps:
        """What ``scan`` cannot read of a family."""
        ...

    def entries(self, family: str, *known: Callable[[], Iterable[bytes]]) -> Iterator[tuple[bytes, bytes | None]]:
        """All that can be read, in gaps too; and with None keys that are ``known`` to be there and cannot be read."""
        ...


class Copy:
    """A salvage under way, which its steps share."""

    def __init__(self, rescue: Wreck, store: Store, now: int) -> None:
        self.rescue = rescue
        self.now = now
        self.saved: Counter[str] = Counter()
        self.lost: list[str] = []
        self.top = 0
        """The largest number of a queue, a history, a log or a stage."""
        self.starts = 0
        self.strays: Counter[str] = Counter()
        """Things whose owner is not known, by kind."""
        notes = rescue.scan("default", layout.PENDING_NUMBER, layout.after(layout.PENDING_NUMBER))
        self.dropped = {key[len(layout.PENDING_NUMBER) :] for key, _ in notes}
        """Numbers of histories and stages that have no owner any more."""
        self._store = store
        self._writes: list[Write] = []
        self._size = 0

    def raise_top(self, *numbers: int) -> None:
        """Note numbers that are in use: the new store gives out larger ones only."""
        self.top = max(self.top, *numbers)

    def write(self, writes: Iterable[Write]) -> None:
        """Write to the new store, together with earlier writes."""
        for write in writes:
            self._writes.append(write)
            self._size += len(write[1]) + len(write[2] or b"")
        if self._size >= FULL:
            self.flush()

    def save(self, kind: str, writes: Iterable[Write]) -> None:
        """Write something to the new store, and count it under its kind."""
        self.saved[kind] += 1
        self.write(writes)

    def flush(self) -> None:
        self._store.write(self._writes)
        self._writes, self._size = [], 0

    def noted(self, key: bytes) -> int | None:
        """Return a number of ``default``; 0 if it is missing, None if it cannot be read."""
        try:
            return int.from_bytes(self.rescue.get("default", key) or b"")
        except StoreDamaged:
            self.lost.append(f"The number {key.decode()!r} of the store; a safe one takes its place")
            return None
