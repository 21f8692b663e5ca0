# SPDX-License-Identifier: Apache-2.0
"""The write-ahead log of a RocksDB directory: its format, damage to it, and missing log files.

A log file consists of blocks of 32 KiB, and no record crosses the end of a block. A record has a header and content:

- The header has a masked CRC-32C, the length and the type. In a file that RocksDB may recycle, it also has the low half
  of the file's number.
- The content is a write. If the write does not fit into the block, the content is a fragment of the write. A write
  begins with the sequence number of its first entry and the number of its entries.

After a power failure, the last writes may be torn. RocksDB drops torn writes when it opens the directory. After a
damaged record, RocksDB silently drops all later writes, even complete ones. ``examine`` distinguishes the two cases
before the directory is opened.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

BLOCK: Final = 32 << 10
# The types of records: a whole write, or its first, middle or last fragment.
WHOLE, FIRST, MIDDLE, LAST = range(1, 5)
# RocksDB adds this number to the types of records in a file that may be recycled.
RECYCLABLE: Final = 4
# Header sizes in bytes of record types without content, which RocksDB may write at the beginning of a file.
NOTES: Final = {9: 7, 10: 7, 11: 11, 130: 7, 131: 11}
# The header of a record: CRC, length and type.
HEADER: Final = Struct("<IHB")
# The low half of the file's number, which follows the header in a file that may be recycled.
NUMBER: Final = Struct("<I")
# The beginning of a write: sequence number and number of entries.
BATCH: Final = Struct("<QI")
# Maximum distance of a plausible sequence number from the last known one.
MAX_PLAUSIBLE_GAP: Final = 1 << 40
MASK: Final = 0xA282EAD8
# Number of zeros at the end of a log file that indicates damage. A write may end with fewer zeros.
MIN_ZEROS: Final = 16
# The file with the numbers of the existing log files.
LISTED: Final = ".zq-logs"


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE: Final = _table()


def masked_crc(content: bytes) -> int:
    """Return the CRC-32C of the content in the masked form that RocksDB stores."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + MASK) & 0xFFFFFFFF


class Fragment(NamedTuple):
    """A record in a log file. If the record has no content, ``kind`` is 0.

    ``start``, ``content`` and ``end`` are byte offsets in the file.
    """

    start: int
    content: int
    end: int
    kind: int


class Batch(NamedTuple):
    """A write in a log file, or a record without content, for which ``entries`` is 0.

    ``start`` and ``end`` are byte offsets in the file. ``sequence`` is the sequence number of the first entry.
    """

    start: int
    end: int
    sequence: int
    entries: int
    fragments: list[Fragment]

    @property
    def last(self) -> int:
        """The sequence number of the last entry."""
        return self.sequence + self.entries - 1


class Tear(NamedTuple):
    """The position at which a log becomes unreadable.

    ``dropped`` is the number of bytes that RocksDB drops when it opens the directory. If these bytes include complete
    writes, ``has_records`` is true: the log is damaged, not only incomplete after a power failure.
    """

    file: str
    offset: int
    dropped: int
    has_records: bool


class LogFile:
    """The content of one log file."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._number = number_of(path)
        with path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""

    def fragment(self, at: int) -> Fragment | None:
        """Return the record at the offset ``at``, or None if its header is invalid. The CRC is not checked."""
        end_of_block = min((at // BLOCK + 1) * BLOCK, self.size)
        if at + HEADER.size > end_of_block:
            return None
        _, length, kind = HEADER.unpack_from(self._content, at)
        header = HEADER.size
        if kind in NOTES:
            header, kind = NOTES[kind], 0
        elif RECYCLABLE < kind <= RECYCLABLE + LAST:
            header, kind = header + NUMBER.size, kind - RECYCLABLE
        elif not WHOLE <= kind <= LAST:
            return None
        if at + header + length > end_of_block:
            return None
        if header > HEADER.size and NUMBER.unpack_from(self._content, at + HEADER.size)[0] != self._number & 0xFFFFFFFF:
            return None
        return Fragment(at, at + header, at + header + length, kind)

    def is_intact(self, batch: Batch) -> bool:
        """Return whether the CRCs of all fragments of a write are correct."""
        return all(
            HEADER.unpack_from(self._content, each.start)[0]
            == masked_crc(self._content[each.start + HEADER.size - 1 : each.end])
            for each in batch.fragments
        )

    def batch(self, at: int) -> Batch | None:
        """Return the write at the offset ``at``, or None if a header is invalid. CRCs are not checked."""
        fragments: list[Fragment] = []
        place, head = at, b""
        while (found := self.fragment(self._next(place))) is not None:
            if found.kind and (found.kind in (WHOLE, FIRST)) != (not fragments):
                return None
            if found.kind:
                fragments.append(found)
                head += self._content[found.content : min(found.end, found.content + BATCH.size - len(head))]
            elif not fragments:
                return Batch(found.start, found.end, 0, 0, [found])
            if found.kind in (WHOLE, LAST):
                if len(head) < BATCH.size:
                    return None
                sequence, entries = BATCH.unpack(head)
                return Batch(at, found.end, sequence, entries, fragments)
            place = found.end
        return None

    def _next(self, at: int) -> int:
        """Return the offset of the next header at or after ``at``."""
        rest = -at % BLOCK
        if rest < HEADER.size or (rest < HEADER.size + NUMBER.size and not any(self._content[at : at + rest])):
            return at + rest
        return at

    def readable(self, recovered: int) -> tuple[int, int, int]:
        """Return the end offset, the first sequence number and the last sequence number of the readable writes.

        If there are no readable writes, both sequence numbers are 0. CRCs are checked only for writes with sequence
        numbers above ``recovered``.
        """
        at = first = last = 0
        while (batch := self.batch(at)) is not None:
            if batch.last > recovered and not self.is_intact(batch):
                break
            at = batch.end
            if batch.entries:
                first, last = first or batch.sequence, batch.last
        return min(self._next(at), self.size), first, last

    def intact_after(self, at: int, known: int) -> Iterator[Batch]:
        """Yield the intact writes that start at or after ``at``, the offset of the damage.

        ``known`` is the last known sequence number. The search ignores data whose sequence number is not between
        ``known`` and ``known + MAX_PLAUSIBLE_GAP`` (both exclusive).
        """
        for start in self._possible_starts(at):
            found = self.batch(start)
            while found is not None and found.entries and known < found.sequence < known + MAX_PLAUSIBLE_GAP:
                if not self.is_intact(found):
                    break
                yield found
                found = self.batch(found.end)

    def _possible_starts(self, at: int) -> Iterator[int]:
        """Yield the offsets, from ``at`` on, at which a write may start.

        The block of ``at`` is damaged, so a write may start at any offset in this block. In later blocks, writes start
        only at records of the type ``WHOLE`` or ``FIRST``.
        """
        block = (at // BLOCK + 1) * BLOCK
        yield from range(at, min(block, self.size))
        while block < self.size:
            place = block
            while (found := self.fragment(place)) is not None:
                if found.kind in (WHOLE, FIRST):
                    yield place
                place = found.end
                if place % BLOCK == 0:
                    break
            block += BLOCK

    def read_content(self, batch: Batch) -> bytes:
        """Return the bytes of a write in RocksDB's encoding."""
        return b"".join(self._content[each.content : each.end] for each in batch.fragments)


def number_of(path: Path) -> int:
    return int(path.stem)


def log_files(path: Path, min_number: int = 0) -> list[Path]:
    """Return the directory's log files whose number is at least ``min_number``, oldest first."""
    files = [file for file in path.glob("*.log") if file.stem.isdecimal()]
    return sorted((file for file in files if number_of(file) >= min_number), key=number_of)


def end_in_zeros(path: Path, min_number: int) -> bool:
    """Return whether any log file ends with at least ``MIN_ZEROS`` zero bytes. No intact write ends like this.

    After a power failure, a file system may leave zeros in place of lost writes. RocksDB treats the zeros as the end of
    the log. ``min_number`` is the number of the first log file to check.
    """
    return any(_ends_in_zeros(file) for file in log_files(path, min_number))


def _ends_in_zeros(file: Path) -> bool:
    with file.open("rb") as content:
        size = os.fstat(content.fileno()).st_size
        content.seek(max(0, size - MIN_ZEROS))
        return size > 0 and not content.read().strip(b"\0")


def examine(path: Path, recovered: int, min_number: int) -> Tear | None:
    """Return the position at which RocksDB's replay of the log stops, or None if RocksDB reads the whole log.

    ``recovered`` is the last sequence number that RocksDB reports after a replay that ended at damage. ``min_number``
    is the number of the first log file that RocksDB replays.
    """
    # The second call checks all CRCs. It finds damage before ``recovered``, which may come from the manifest.
    return _examine(path, recovered, min_number) or _examine(path, 0, min_number)


def _examine(path: Path, recovered: int, min_number: int) -> Tear | None:
    tear: Tear | None = None
    known = recovered
    for file in map(LogFile, log_files(path, min_number)):
        end, first, last = file.readable(recovered)
        # If the sequence numbers of this file follow on, the former file was torn before this one was created, and
        # RocksDB continues.
        if tear is not None and (last > recovered if recovered else first > known + 1):
            return tear._replace(dropped=tear.dropped + file.size, has_records=True)
        known = max(known, last)
        if end == file.size:
            continue
        lost = next(file.intact_after(end, known), None)
        place = tear or Tear(file.name, end, 0, False)
        tear = place._replace(dropped=place.dropped + file.size - end, has_records=lost is not None)
        if lost is not None:
            return tear
    return tear


def copy_intact(file: Path, to: Path) -> None:
    """Copy all intact writes of a damaged log file; RocksDB itself would skip the rest of each damaged block."""
    source, at, last = LogFile(file), 0, 0
    with to.open("wb") as target:
        while True:
            batch = source.batch(at)
            if batch is None or not source.is_intact(batch):
                batch = next(source.intact_after(at, last), None)
            if batch is None:
                return
            if batch.entries:
                target.write(_records(source.read_content(batch), target.tell()))
            at, last = batch.end, max(last, batch.last)


def _records(content: bytes, at: int) -> bytes:
    written, kind = b"", 0
    while not kind or content:
        rest = -(at + len(written)) % BLOCK or BLOCK
        if rest < HEADER.size:
            written += bytes(rest)
            continue
        is_first = not kind
        part, content = content[: rest - HEADER.size], content[rest - HEADER.size :]
        kind = (FIRST if is_first else MIDDLE) if content else (WHOLE if is_first else LAST)
        written += HEADER.pack(masked_crc(bytes([kind]) + part), len(part), kind) + part
    return written


def find_missing(path: Path, min_number: int) -> list[str]:
    """Return the names of log files that ``record_files`` has listed and that no longer exist."""
    try:
        listed = [int(word) for word in (path / LISTED).read_text("ascii").split()]
    except (OSError, ValueError):
        return []
    return [name for number in listed if number >= min_number and not (path / (name := f"{number:06d}.log")).exists()]


def record_files(path: Path) -> None:
    """Write the list of existing log files to disk, so that ``find_missing`` can detect lost files. Ignore errors."""
    # A power failure does not make ``find_missing`` report a file by mistake: the directory is synced before the list
    # is written, and RocksDB removes a file only after its synced manifest shows that the file is no longer needed.
    with suppress(OSError):
        names = " ".join(str(number_of(file)) for file in log_files(path))
        if (path / LISTED).exists() and (path / LISTED).read_text("ascii") == names:
            return
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
            unfinished = path / f"{LISTED}.unfinished"
            with unfinished.open("w", encoding="ascii") as file:
                file.write(names)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path / LISTED)
        finally:
            os.close(folder)
