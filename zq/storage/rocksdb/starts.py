# SPDX-License-Identifier: Apache-2.0
"""Starts of servers on a store, which are counted on disk so that no sequence is ever given twice.

After a power cut the last writes may be gone, and with them sequences that a reader has already seen as a marker. So a
counter is larger by ``LOST_TAIL`` for each start since the one that wrote it, whether or not the starts between wrote
anything that lasted: above all that they gave out, unless more than that many of one counter were lost in all.
"""

from typing import Final

from zq.storage.rocksdb import layout
from zq.storage.rocksdb.port import Store

LOST_TAIL: Final = 1_000_000
"""Sequences, and positions of history, skipped for each start."""
KEY: Final = b"starts"


def count(store: Store) -> int:
    """The number of this start, from 1; it is on disk, in every sync mode. Raises ``Unavailable``."""
    start = int.from_bytes(store.get("default", KEY) or b"") + 1
    store.write([("default", KEY, layout.number.pack(start))])
    store.sync()
    return start


def skipped(before: int, start: int) -> int:
    """How much larger a counter is at this start than the one before left it."""
    return LOST_TAIL * (start - before)


def origin(start: int) -> int:
    """Where a new counter begins: above those of the same name that earlier starts made and lost."""
    return skipped(1, start)
