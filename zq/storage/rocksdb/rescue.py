# SPDX-License-Identifier: Apache-2.0
"""The readable part of a damaged store, family by family.

A damaged block ends a scan of all files, so a gap also hides the entries that other files have in its range. The keys
in a gap are derived from index entries of other families, and from a second directory that RocksDB's repair creates
from the undamaged files. Their values are always read from the store itself, so that no outdated value is returned.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocksdict import Options, Rdict

from zq.errors import StartRefused, StoreDamaged
from zq.storage.ordered.store import TOP
from zq.storage.rocksdb import write_ahead
from zq.storage.rocksdb.files import refusal
from zq.storage.rocksdb.survey import Spans, Survey

# Prefixes of the names of files that a repair does not copy, because it creates them again.
MADE_ANEW: Final = ("MANIFEST", "CURRENT", "OPTIONS", "LOCK", "LOG", write_ahead.LISTED)
Known = Callable[[], Iterable[bytes]]


def repaired(path: Path, to: Path, without: Iterable[str] = ()) -> Path:
    """Copy a store and let RocksDB rebuild the list of its files. Tables are linked if possible."""
    to.mkdir(mode=0o700)
    for file in path.iterdir():
        if file.name not in without and not file.name.startswith(MADE_ANEW) and file.is_file():
            _copy(file, to)
    Rdict.repair(str(to), Options(raw_mode=True))
    return to


def mended(path: Path, to: Path) -> Path:
    """Copy a store; the log of the copy has only the readable writes."""
    to.mkdir(mode=0o700)
    for file in path.iterdir():
        if file.suffix == ".log":
            write_ahead.mend(file, to / file.name)
        elif file.is_file():
            _copy(file, to)
    return to


def _copy(file: Path, to: Path) -> None:
    """Link a table, which never changes, and copy any other file."""
    try:
        if file.suffix != ".sst":
            raise OSError
        os.link(file, to / file.name)
    except OSError:
        shutil.copyfile(file, to / file.name)


class Rescue:
    """The readable part of one store. ``workshop`` is a directory for copies, which the caller removes."""

    def __init__(self, path: Path, workshop: Path, families: Iterable[str]) -> None:
        """Open the store. Raises ``StartRefused`` if it is in use or has no readable data."""
        self._workshop = workshop
        self._rest: Survey | None = None
        notes: list[str] = []
        self.survey = self._open(path, notes)
        self.survey.add_notes(notes)
        for family in families:
            for _ in self.survey.scan(family, b"", TOP):
                pass
        damaged = {gap.file for gap in self.survey.gaps()}
        if damaged:
            with suppress(Exception):  # the repaired copy is optional: it only helps to find more keys
                self._rest = Survey(repaired(self._source, workshop / "rest", damaged))

    def entries(self, family: str, *known: Known) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield all readable items, and each unreadable key that is ``known`` to exist with the value None."""
        yield from self.survey.scan(family, b"", TOP)
        spans = self.gaps(family)
        if not spans:
            return
        sure = {key for keys in known for key in keys() if key in spans}
        rest = self._rest.scan(family, b"", TOP) if self._rest is not None else ()
        for key in sorted(sure.union(key for key, _ in rest if key in spans)):
            try:
                value = self.get(family, key)
            except StoreDamaged:
                if key in sure:
                    yield key, None
                continue
            if value is not None:
                yield key, value

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the readable items of a range."""
        return self.survey.scan(family, lower, upper)

    def gaps(self, family: str) -> Spans:
        """Return the ranges of a family that could not be read."""
        return Spans(self.survey.gaps(family))

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key.

        Raises ``StoreDamaged``, possibly also for a readable key, because RocksDB may read damaged files whose range
        does not include the key.
        """
        try:
            return self.survey.get(family, key)
        except StoreDamaged:
            if self._rest is None or any(gap.hides(key) for gap in self.survey.gaps(family)):
                raise
            return self._rest.get(family, key)

    def close(self) -> None:
        """Close the store and release its lock."""
        if self._rest is not None:
            self._rest.close()
        self.survey.close()

    def _open(self, path: Path, notes: list[str]) -> Survey:
        self._source = path
        try:
            survey = Survey(path)
            if not survey.unlisted and survey.tear is not None and survey.tear.has_records:
                notes += survey.notes
                survey.close()
                self._source = mended(path, self._workshop / "mended")
                survey = Survey(self._source)
            if not survey.unlisted:
                return survey
            notes += survey.notes
            survey.close()
        except StartRefused:
            raise
        except Exception as error:  # noqa: BLE001  (the binding raises no other)
            cause = str(error).splitlines()[0].strip(" .")
            notes.append(f"The list of files cannot be read and was made anew from the files that are whole ({cause})")
        try:
            self._source = repaired(path, self._workshop / "repaired")
            survey = Survey(self._source)
        except Exception as error:
            raise refusal(path, error) from error
        notes += (f"{file.name} cannot be read at all" for file in (self._source / "lost").glob("*.sst"))
        return survey
