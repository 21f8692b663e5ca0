# SPDX-License-Identifier: Apache-2.0
"""What the engine needs of an ordered key-value store. No vendor is known here.

A new store implements ``Store``: six methods. ``zq/storage/memory.py`` is the shortest example. Keys are compared as
bytes; families (``layout.FAMILIES``) are separate spaces of keys.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from zq.errors import NotBuilt
from zq.model import Seconds
from zq.model.expiry import Expiry
from zq.model.stats import Measure, Snapshot

UNREADABLE: Final = "The data for this request is damaged. Retries do not help: the store must be salvaged."
# Above every key.
TOP: Final = b"\xff" * 256

# Values that are read at a time by callers that may stop early, by the size of what they have read.
AHEAD: Final = 16

# (family, key, value to put or None to delete)
Write = tuple[str, bytes, bytes | None]
# (family, lower, upper): all keys with ``lower <= key < upper``
Range = tuple[str, bytes, bytes]


class Readable(Protocol):
    """A store that is only read, as a check does it."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of one key."""
        ...

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Items with ``lower <= key < upper`` in key order."""
        ...


class Store(Protocol):
    """An open store, safe for any number of threads. Every method may raise ``Unavailable``.

    ``spare`` matters where files can be damaged: what cannot be read raises ``StoreDamaged``, but for callers that
    spare it.
    """

    # The first write error of a store that refuses all writes from then on: the engine closes it and opens it anew.
    # A store whose failed writes leave no trace never sets it.
    failure: Exception | None = None
    # Whether another process may take the store over, so that ``prove`` is to be asked when a verb begins and ends.
    contended: bool = False

    @property
    def prompt(self) -> bool:
        """Whether short verbs may run on the event loop's thread now: no method waits for more than memory, and
        ``wait_durable`` leaves its wait to ``zq.storage.inline.current()``."""
        return False

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of one key."""
        ...

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        """The values of several keys, in their order; ``spare``: ``b""`` for a damaged one instead of an error."""
        ...

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Items with ``lower <= key < upper`` in key order, or ``backwards``.

        What is written while the scan is under way may be among them or not; callers often leave a scan early.
        ``spare``: a scan that meets damage ends there instead of an error.
        """
        ...

    def write(self, writes: Sequence[Write], gone: Sequence[Range] = ()) -> None:
        """Apply all writes, and the removal of ranges that hold none of them, in one step, visible to every thread.

        If it raises ``Unavailable``, none of them is applied. A killed process loses nothing of what was written
        (unless the store is volatile); a power cut may, until ``wait_durable`` has returned.
        """
        ...

    def wait_durable(self, always: bool = False) -> None:
        """Return when everything that this thread wrote is as durable as the store is configured to make it.

        ``always``: on disk, whatever is configured.
        """
        ...

    def prove(self) -> None:
        """Return if this process still owns the store. Raises ``Unavailable``."""
        return

    def close(self) -> None:
        """Let go of the store. No other call may be in flight or follow."""
        ...


def binary_search(
    store: Store, family: str, owner: int, low: int, high: int, is_before: Callable[[bytes], bool]
) -> int:
    """The number behind the last entry that ``is_before``; ``low`` if none is. Those from ``low`` to ``high`` are
    searched; their keys are ``owner`` and number, both of 8 bytes."""
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
    """What a store may do besides, outlasting stores that are opened anew: here nothing, for stores without needs.

    The engine calls all but ``check`` within a verb, so that the store is open.
    """

    def allow_destruction(self, allowed: bool) -> None:
        """Whether the store may by itself destroy values that have expired by the machine's clock: not before the
        clock has been checked, nor while it is doubted. A store that does so begins without."""

    def configure(self, expiry: Expiry) -> bool:
        """Give space back by these options; whether the store must be opened anew for them."""
        return False

    def maintain(self, trimmed: Iterator[Range]) -> None:
        """Called every few seconds. ``trimmed``: large ranges that were removed; each is given once."""

    def bound_memory(self) -> None:
        """Called after each slice of a large commit: bounds what memory holds of what was written. May raise
        ``Unavailable``."""

    def snapshot(self, moment: Seconds) -> AbstractContextManager[Snapshot]:
        """See ``capabilities.Snapshots``; called within a verb, which its context may outlast."""
        raise NotBuilt("A store in memory has no backup: nothing of it outlives its server.")

    def measures(self) -> Iterator[Measure]:
        """Figures for operators: see ``Storage.measures``."""
        return iter(())

    def check(self) -> None:
        """Raises ``StoreDamaged`` once something was met that cannot be read."""
