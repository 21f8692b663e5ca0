# SPDX-License-Identifier: Apache-2.0
"""The protocol of an ordered key-value store for the engine, independent of vendors.

A new store implements the six methods of ``Store``; ``zq/storage/memory.py`` is the shortest example. Keys are compared
as bytes. Families (``layout.FAMILIES``) are separate key spaces.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from zq.errors import NotBuilt
from zq.model import Seconds
from zq.model.expiry import Expiry
from zq.model.stats import Measure, Snapshot

UNREADABLE: Final = "The data for this request is damaged. Retries do not help: the store must be salvaged."
# An upper bound of all keys.
TOP: Final = b"\xff" * 256

# Number of values that callers read at a time if a limit on their total size may end the read early.
AHEAD: Final = 16

# (family, key, value to put or None to delete)
Write = tuple[str, bytes, bytes | None]
# (family, lower, upper): all keys with ``lower <= key < upper``
Range = tuple[str, bytes, bytes]


class Readable(Protocol):
    """A store for read-only use, for example by an integrity check."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items with ``lower <= key < upper`` in key order."""
        ...


class Store(Protocol):
    """An open store. All methods are thread-safe and may raise ``Unavailable``.

    A value that is unreadable because of a damaged file raises ``StoreDamaged``, unless ``spare`` is set.
    """

    # The write error after which the store refuses all writes, or None. If it is set, the engine reopens the store. A
    # store that remains usable after a failed write never sets it.
    failure: Exception | None = None
    # Whether another process may take over the store. If so, ``prove`` is called when a verb begins and ends.
    contended: bool = False

    @property
    def prompt(self) -> bool:
        """Return whether short verbs may run on the event loop's thread.

        If so, methods wait for memory only, and ``wait_durable`` leaves its wait to ``zq.storage.inline.current()``.
        """
        return False

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        """Return the values of several keys, in order. With ``spare``, a damaged value is ``b""``, not an error."""
        ...

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield items with ``lower <= key < upper`` in key order, or in reverse order with ``backwards``.

        Concurrent writes may or may not be included. Callers often end a scan early. With ``spare``, a scan that finds
        damage ends there instead of raising an error.
        """
        ...

    def write(self, writes: Sequence[Write], gone: Sequence[Range] = ()) -> None:
        """Apply all writes and range removals in one step, visible to every thread.

        The ranges contain none of the writes. If the method raises ``Unavailable``, nothing is applied. The writes
        survive a kill of the process, unless the store is volatile. They survive a power failure after
        ``wait_durable``.
        """
        ...

    def wait_durable(self, always: bool = False) -> None:
        """Wait until this thread's writes are as durable as configured, or on disk with ``always``."""
        ...

    def prove(self) -> None:
        """Raise ``Unavailable`` if this process cannot prove that it still owns the store."""
        return

    def close(self) -> None:
        """Close the store. No other call may run at the same time or later."""
        ...


def binary_search(
    store: Store, family: str, owner: int, low: int, high: int, is_before: Callable[[bytes], bool]
) -> int:
    """Return the number that follows the last entry for which ``is_before`` is true, or ``low`` if there is none.

    The key of each entry consists of ``owner`` and a number, each of 8 bytes. The function searches the numbers from
    ``low`` up to ``high`` (exclusive). ``is_before`` must be true for all entries up to some number and false for the
    others.
    """
    prefix = owner.to_bytes(8)
    while low < high:
        middle = (low + high) // 2
        found = next(store.scan(family, prefix + middle.to_bytes(8), prefix + high.to_bytes(8)), None)
        if found is not None and is_before(found[1]):
            low = int.from_bytes(found[0][8:]) + 1
        else:
            high = middle
    return low


class Housekeeping:
    """The optional maintenance of a store. The object survives when the store is reopened.

    The methods of this class do nothing; a driver overrides those that it supports.

    The engine calls all methods except ``check`` within a verb, while the store is open.
    """

    def allow_destruction(self, allowed: bool) -> None:
        """Allow or forbid the store to drop values that have expired according to the machine's clock.

        A store must not drop values before the first call, or while the clock is not trusted.
        """

    def configure(self, expiry: Expiry) -> bool:
        """Apply new expiry settings. Return whether the store must be reopened for them."""
        return False

    def maintain(self, trimmed: Iterator[Range]) -> None:
        """Run maintenance. Called every few seconds. ``trimmed`` yields each large trimmed range once."""

    def bound_memory(self) -> None:
        """Limit the memory that writes occupy. Called after each slice of a large commit. Raises ``Unavailable``."""

    def snapshot(self, moment: Seconds) -> AbstractContextManager[Snapshot]:
        """Provide a snapshot; see ``capabilities.Snapshots``. Its context may last longer than the calling verb."""
        raise NotBuilt("A store in memory has no backup: nothing of it outlives its server.")

    def measures(self) -> Iterator[Measure]:
        """Return metrics for operators; see ``Storage.measures``."""
        return iter(())

    def check(self) -> None:
        """Raise ``StoreDamaged`` once damage has been found."""
