# SPDX-License-Identifier: Apache-2.0
"""Read-only access to a damaged store. The directory is not changed, and scans skip damage.

RocksDB's iterators end at the first unreadable block and report its file and offset. A seek to any key in the block
fails with the same file and offset, so a binary search finds the end of the block. A scan skips this key range, even if
other files have keys in it; ``get`` can still read such keys.
"""

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict, ReadOptions

from zq.errors import StoreDamaged
from zq.storage.ordered.store import UNREADABLE
from zq.storage.rocksdb.admission import inspect_log
from zq.storage.rocksdb.files import close_part, damage_location, hold_lock, is_damage, unavailable_error
from zq.storage.rocksdb.tuning import Tuning
from zq.storage.rocksdb.write_ahead import Tear

READ_ALL: Final = DBRecoveryMode.skip_any_corrupted_record()
# Number of bytes by which the last key of a damaged block may be longer than its known neighbors.
KEY_SLACK: Final = 16
# The last bytes of every complete table file.
MAGIC: Final = bytes.fromhex("f7cff485b741e288")
UNLISTED_FINDING: Final = "{files}: not in the list of files, MANIFEST-*, whose end seems to be missing"
TORN: Final = (
    "The end of the write-ahead log is incomplete in {tear.file} at offset {tear.offset}: {tear.dropped} bytes contain "
    "no complete write. This is normal after a power failure, and the next start drops them"
)
DAMAGED: Final = (
    "The write-ahead log is damaged in {tear.file} at offset {tear.offset}, and readable writes of "
    "{tear.dropped} bytes follow. The server does not start, because it would drop them"
)
MISSING: Final = "{name} of the write-ahead log is missing, and its writes may be lost"


class Table(NamedTuple):
    """The metadata of a table file. ``entries`` is 0 if the file cannot be opened, and ``size`` is in bytes."""

    start: bytes
    end: bytes
    entries: int
    size: int


class Gap(NamedTuple):
    """A key range ``lower <= key < upper`` that a scan cannot read.

    ``entries`` is the estimated number of entries in the range, or 0 if the number is unknown.
    """

    family: str
    file: str
    lower: bytes
    upper: bytes
    table: Table | None
    entries: int
    cause: str

    def hides(self, key: bytes) -> bool:
        """Return whether the gap may contain an unreadable entry with this key."""
        its = self.table
        return self.lower <= key < self.upper and (its is None or its.start <= key <= its.end)

    def __str__(self) -> str:
        lower, upper = self.lower, self.upper
        if self.table is not None:
            lower, upper = max(lower, self.table.start), min(upper, self.table.end + b"\0")
        count = f"about {self.entries} entries" if self.entries else "entries whose number is not known"
        until = "the end" if upper.startswith(b"\xff" * 16) else upper.hex()
        return (
            f"{self.file}, family {self.family}, keys from {lower.hex() or 'the first'} to {until}: "
            f"{count} cannot be read ({self.cause})"
        )


class Survey:
    """A read-only view of a damaged store that skips unreadable data. The directory is locked until ``close``."""

    def __init__(self, path: Path) -> None:
        """Open the store read-only. Raises ``StartRefused`` if the store is in use."""
        self.notes: list[str] = []
        self.tear: Tear | None = None
        """The position at which the write-ahead log becomes unreadable."""
        self._gaps: dict[tuple[str, tuple[int, int]], Gap] = {}
        self._lock = hold_lock(path)
        try:
            self._note_log(path)
            self._plain = _open(path, READ_ALL, Options(raw_mode=True))
            # ``get`` tries both: with bloom filters, RocksDB reads fewer blocks, but the filters may be damaged too.
            self._filtered = _open(path, READ_ALL, Tuning().family(Options(raw_mode=True)))
        except BaseException:
            self._lock.close()
            raise
        self._views = [{name: db.get_column_family(name) for name in names} for db, names in self._databases()]
        self._tables = {_number(file["name"]): _table(file) for file in self._plain[0].live_files()}
        newest = max(self._tables, default=0)
        self.unlisted = sorted(
            file.name for file in path.glob("*.sst") if _number(file) > newest and _is_complete(file)
        )
        """Complete table files that are newer than all files in the manifest. RocksDB would remove them."""
        if self.unlisted:
            self.notes.append(UNLISTED_FINDING.format(files=", ".join(self.unlisted)))

    def add_notes(self, notes: Iterable[str]) -> None:
        """Add sentences that describe damage found before this survey."""
        self.notes += notes

    def _note_log(self, path: Path) -> None:
        try:
            self.tear, gone = inspect_log(path)
        except Exception:  # noqa: BLE001  (the binding raises no subclass; with an unreadable manifest, nothing is known)
            return
        self.notes += (MISSING.format(name=name) for name in gone)
        if self.tear is not None and self.tear.dropped:
            self.notes.append((DAMAGED if self.tear.has_records else TORN).format(tear=self.tear))

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key. Raises ``StoreDamaged`` if damage may hide the value."""
        damage: Exception | None = None
        for views in self._views:
            if family not in views:
                return None
            try:
                value: bytes | None = views[family].get(key)
                return value
            except Exception as error:  # noqa: BLE001  (the same)
                damage = error
        if damage is None or not is_damage(damage):
            raise unavailable_error() from damage
        raise StoreDamaged(UNREADABLE) from damage

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the readable items of a range. Afterwards, ``gaps`` includes the unreadable parts."""
        view = self._views[0].get(family)
        while view is not None and lower < upper:
            cursor = _Cursor(view, upper)
            for item in cursor.items(lower):
                yield item
                lower = item[0] + b"\0"
            error = cursor.failure()
            if error is None:
                return
            lower = self._skip_gap(family, view, lower, upper, error)

    def gaps(self, family: str = "") -> list[Gap]:
        """Return the gaps (unreadable key ranges) that scans have found in one family or, for "", in all families."""
        found = [gap for gap in self._gaps.values() if family in ("", gap.family)]
        return sorted(found, key=lambda gap: (gap.family, gap.lower))

    def damage(self) -> list[str]:
        """Return sentences that describe all damage found so far."""
        return [*self.notes, *map(str, self.gaps())]

    def close(self) -> None:
        """Close the store and release the directory's lock."""
        parts = [view for views in self._views for view in views.values()] + [db for db, _ in self._databases()]
        self._views = [{}, {}]
        del self._plain, self._filtered
        while parts:
            close_part(parts.pop())
        gc.collect()
        self._lock.close()

    def _databases(self) -> list[tuple[Rdict, list[str]]]:
        return [self._plain, self._filtered]

    def _skip_gap(self, family: str, view: Rdict, lower: bytes, upper: bytes, error: Exception) -> bytes:
        if not is_damage(error):
            raise unavailable_error() from error
        place = damage_location(error)

        def fails(key: bytes) -> bool:
            found = _Cursor(view, upper).failure(key)  # a new cursor, because a failed one may keep its error
            return found is not None and damage_location(found) == place

        table = self._tables.get(place[0])
        end = upper if table is None or not lower <= table.end < upper else table.end + b"\0"
        beyond = _find_end(fails, lower, upper if fails(end) else end)
        file = f"{place[0]:06d}.sst" if place[0] >= 0 else "a file"
        gap = Gap(family, file, lower, beyond, table, _estimate_loss(table, error), str(error).splitlines()[0].strip())
        self._gaps.setdefault((family, place), gap)
        return beyond


class FamilyGaps:
    """The key ranges of a family that a scan cannot read."""

    def __init__(self, gaps: list[Gap]) -> None:
        self._gaps = gaps
        self._lowers = [gap.lower for gap in gaps]

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def __contains__(self, key: bytes) -> bool:
        index = bisect_right(self._lowers, key) - 1
        return index >= 0 and key < self._gaps[index].upper

    def overlap(self, lower: bytes, upper: bytes) -> bool:
        """Return whether any gap overlaps the range ``lower <= key < upper``."""
        return any(gap.lower < upper and gap.upper > lower for gap in self._gaps)


def _open(path: Path, mode: DBRecoveryMode, family: Options) -> tuple[Rdict, list[str]]:
    options = Options(raw_mode=True)
    options.set_paranoid_checks(False)  # report a damaged or missing table on access, not when the store is opened
    options.set_wal_recovery_mode(mode)
    names: list[str] = Rdict.list_cf(str(path))
    return Rdict(str(path), options, dict.fromkeys(names, family), AccessType.read_only(False)), names


class _Cursor:
    """A RocksDB iterator with an upper bound.

    The cursor keeps the read options alive, because RocksDB has a pointer to the bound in these options.
    """

    def __init__(self, view: Rdict, upper: bytes) -> None:
        self._bounds = ReadOptions()
        self._bounds.set_iterate_upper_bound(upper)
        self._iterator = view.iter(self._bounds)

    def items(self, lower: bytes) -> Iterator[tuple[bytes, bytes]]:
        iterator = self._iterator
        iterator.seek(lower)
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()

    def failure(self, key: bytes | None = None) -> Exception | None:
        if key is not None:
            self._iterator.seek(key)
        if self._iterator.valid():
            return None
        try:
            self._iterator.status()
        except Exception as error:  # noqa: BLE001  (the same)
            return error
        return None


def _find_end(fails: Callable[[bytes], bool], lower: bytes, upper: bytes) -> bytes:
    """Find the first key between the bounds for which ``fails`` is false. The search is binary."""
    width = max(len(lower), len(upper)) + KEY_SLACK
    low, high = (int.from_bytes(key.ljust(width, b"\0")) for key in (lower, upper))
    while high - low > 1:
        middle = (low + high) // 2
        if fails(middle.to_bytes(width)):
            low = middle
        else:
            high = middle
    found = high.to_bytes(width)
    return upper if upper.ljust(width, b"\0") == found else found


def _estimate_loss(table: Table | None, error: Exception) -> int:
    """Estimate the number of entries in the damaged block that RocksDB's error names.

    If the error names no block, return the number of entries in the table file. If ``table`` is None, return 0.
    """
    if table is None:
        return 0
    size = str(error).rpartition(" size ")[2].split()[:1]
    if damage_location(error)[1] < 0 or not size or not size[0].isdigit():
        return table.entries
    return max(1, round(table.entries * int(size[0]) / max(table.size, 1)))


def _is_complete(file: Path) -> bool:
    with file.open("rb") as content:
        content.seek(max(0, file.stat().st_size - len(MAGIC)))
        return content.read() == MAGIC


def _number(name: str | Path) -> int:
    return int(Path(name).stem)


def _table(file: dict[str, Any]) -> Table:
    return Table(file["start_key"] or b"", file["end_key"] or b"", file["num_entries"], file["size"])
