# SPDX-License-Identifier: Apache-2.0
"""What of a store's files cannot be read: told apart from a store that cannot serve now, counted, and remembered."""

import logging
import re
import threading
from typing import Any, Final

from zq.errors import StoreDamaged

LOG = logging.getLogger(__name__)
UNREADABLE: Final = "The store is damaged where this request reads. Trying again does not help: it must be salvaged."
SEEN: Final = (
    "Parts of the store cannot be read. What does not need them is served; the log names the files. "
    "Stop the server, then run zq-server check-store and zq-server salvage."
)
TABLE: Final = re.compile(r"([0-9]+)\.sst")
OFFSET: Final = re.compile(r"\boffset ([0-9]+)")
GONE: Final = ("No such file", "Input/output error")
"""How RocksDB ends a word on a table file that is not there, or that the disk does not give back."""


def is_damage(error: BaseException) -> bool:
    """Whether RocksDB says that a file is corrupt, gone or cannot be read, by the text of its error."""
    text = str(error)
    return text.startswith("Corruption") or (TABLE.search(text) is not None and any(word in text for word in GONE))


def place_of(error: Exception) -> tuple[int, int]:
    """(number of the table file, offset of the block) that an error of RocksDB names; -1 for what it does not name."""
    table, offset = TABLE.search(str(error)), OFFSET.search(str(error))
    return int(table[1]) if table else -1, int(offset[1]) if offset else -1


def check_end(cursor: Any, lower: bytes, last: bytes | None, backwards: bool) -> None:
    """Raise RocksDB's error if it is damage that ended a scan, whose ``last`` key this was; ``cursor``: an iterator."""
    cursor.seek(lower if backwards or last is None else last + b"\0")
    while backwards and cursor.valid() and (last is None or cursor.key() < last):
        cursor.next()
    if not cursor.valid():
        cursor.status()


class Damage:
    """What was met of one store, by any number of threads; it outlives stores that are opened anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: set[tuple[int, int]] = set()
        self.families: frozenset[str] = frozenset()
        """Families of which something cannot be read: RocksDB must not compact them, or it would stop all writes."""
        self.count = 0
        """How often something was met; the same block each time that it is read."""

    def meet(self, error: Exception, family: str, key: bytes | None = None) -> bool:
        """Note what was met in a family, at or above ``key``, and log it once; whether it is the family's first."""
        place = place_of(error)
        with self._lock:
            self.count += 1
            known, first = place in self._places, family not in self.families
            self._places.add(place)
            self.families |= {family}
        if not known:
            where = "" if key is None else f", from key {key.hex() or 'the first'} on"
            LOG.critical("The store is damaged in family %s%s: %s", family or "unknown", where, error)
        return first

    def check(self) -> None:
        """Raises ``StoreDamaged`` once something was met."""
        if self.count:
            raise StoreDamaged(SEEN)
