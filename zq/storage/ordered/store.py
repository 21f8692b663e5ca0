# SPDX-License-Identifier: Apache-2.0
"""The protocol of an ordered key-value store.

A driver implements the methods of ``Store``; ``memory.py`` is the shortest example. Keys are compared as bytes.
Families (``layout.FAMILIES``) are separate key spaces.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from zq.errors import NotBuilt
from zq.model import Seconds
from zq.model.expiry import Expiry
from zq.model.stats import Measure, Snapshot

UNREADABLE: Final = "The data for this request is damaged. Retries do not help: the store must be salvaged."
# A key above all other keys.
LAST_KEY: Final = b"\xff" * 256

# Bounds that every store must accept: bytes of a key and of a value, and number and total bytes of the writes in one
# batch. The conformance suite stays within them. A server with higher limits than the default ones may exceed them.
MAX_KEY_BYTES: Final = 1_100
MAX_VALUE_BYTES: Final = 4 << 20
MAX_BATCH_WRITES: Final = 25_000
MAX_BATCH_BYTES: Final = 32 << 20

# Number of bodies per read if the caller stops at a total size. A larger number would read bodies that are not used.
BODY_READ_SIZE: Final = 16

# (family, key, value to put or None to delete)
Write = tuple[str, bytes, bytes | None]
# (family, lower, upper): all keys with ``lower <= key < upper``
Range = tuple[str, bytes, bytes]


class Readable(Protocol):
    """A read-only store, for example for an integrity check."""

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items with ``lower <= key < upper`` in key order."""
        ...


class Store(Protocol):
    """An open store. All methods are thread-safe and may raise ``Unavailable``.

    A store must accept writes within ``MAX_KEY_BYTES``, ``MAX_VALUE_BYTES``, ``MAX_BATCH_WRITES`` and
    ``MAX_BATCH_BYTES``.

    Reads raise ``StoreDamaged`` if a damaged file makes the data unreadable, unless the caller passes ``spare``.
    """

    # The write error after which the store rejects all writes, or None. The engine then reopens the store. A store that
    # remains usable after a failed write never sets this attribute.
    failure: Exception | None = None
    # Whether another process may take over the store. If so, the engine calls ``prove`` around each operation.
    contended: bool = False

    @property
    def is_prompt(self) -> bool:
        """Whether operations that read few entries may run on the event loop's thread.

        If true, no method may wait for anything slower than the local disk, and ``wait_durable`` must not block the
        event loop. On its thread, ``wait_durable`` stores a function in the request's ``Ticket`` and returns. The HTTP
        server later calls this function, which waits until the writes are durable.
        """
        return False

    def get(self, family: str, key: bytes) -> bytes | None: ...

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        """Return the value of each key in ``keys``, in the same order. The value of a missing key is None.

        With ``spare``, the value of a damaged key is b"".
        """
        ...

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield items with ``lower <= key < upper`` in key order, or in reverse order with ``backwards``.

        The scan may or may not see writes made while it runs, including writes by the scanning thread. With ``spare``,
        the scan stops at damaged data instead of raising an error.
        """
        ...

    def write(self, writes: Sequence[Write], removed_ranges: Sequence[Range] = ()) -> None:
        """Apply the writes and remove ``removed_ranges``, atomically. On ``Unavailable``, nothing was applied.

        When the method returns, the change is visible to all threads. Unless the store is volatile, the change survives
        if the process is killed; after ``wait_durable``, it also survives a power failure. The ranges must not contain
        any of the written keys. If several writes have the same key, the last one counts.
        """
        ...

    def wait_durable(self, always: bool = False) -> None:
        """Wait until this thread's writes are durable.

        The sync mode determines the durability. If ``always`` is true, wait until the writes are on disk, regardless of
        this mode.
        """
        ...

    def prove(self) -> None:
        """Check that this process still owns the store. Raises ``Unavailable`` if this is uncertain."""
        return

    def close(self) -> None:
        """Close the store. No other method may run during or after this call."""
        ...


def binary_search(
    store: Store, family: str, owner: int, low: int, high: int, is_before: Callable[[bytes], bool]
) -> int:
    """Search a sorted family for the first entry at which ``is_before`` is false.

    Return the number after the last entry for which ``is_before`` is true, or ``low`` if there is no such entry.

    Args:
        owner: The number in the first 8 bytes of each key. The entry's own number is in the next 8 bytes.
        low: The first number to search.
        high: The number at which the search ends (exclusive).
        is_before: A function of an entry's value. It must be true up to some entry, and false for all later entries.
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
    """The optional maintenance of a store. The same object is used after the store is reopened.

    By default, the methods do nothing; a driver overrides those that it supports. The engine calls all methods except
    ``check`` and ``has_low_space`` within an operation, while the store is open.
    """

    def allow_destruction(self, allowed: bool) -> None:
        """Allow or forbid the store to drop values that have expired according to the machine's clock.

        A store must not drop values before the first call, or while the clock is not trusted.
        """

    def configure(self, expiry: Expiry) -> bool:
        """Apply new expiry settings. Return whether the settings take effect only after the store is reopened."""
        return False

    def maintain(self, trimmed: Iterator[Range]) -> None:
        """Run maintenance. The engine calls this method every few seconds.

        ``trimmed`` yields the key ranges of trimmed batches to compact.
        """

    def bound_memory(self) -> None:
        """Limit the memory of unflushed writes. Raises ``Unavailable`` on failure.

        A large commit is completed in several writes. The engine calls this method after each of them.
        """

    def snapshot(self, moment: Seconds) -> AbstractContextManager[Snapshot]:
        """Return a context manager that provides a snapshot labelled with the time ``moment``.

        The context may outlast the current operation.
        """
        raise NotBuilt("A store in memory cannot be backed up.")

    def measures(self) -> Iterator[Measure]:
        """Return metrics for operators; see ``Storage.measures``."""
        return iter(())

    def has_low_space(self) -> bool:
        """Return whether the file system has too little free space for posts. May be called at any time."""
        return False

    def check(self) -> None:
        """Raise ``StoreDamaged`` if the store has found damage since it was first opened."""
