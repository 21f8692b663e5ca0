# SPDX-License-Identifier: Apache-2.0
"""The readable data of a damaged store.

A scan cannot read a damaged block. It skips the block's whole key range, even if undamaged files have keys in this
range. The skipped keys come from two sources:

- other column families, for example an index that refers to the keys
- the *repaired copy*, which RocksDB builds from the undamaged files

The repaired copy may have outdated values. A value is read from it only if the damaged store cannot return the value,
and if no damaged file can contain the key.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocksdict import Options, Rdict

from zq.errors import StartRefused, StoreDamaged
from zq.storage.ordered.store import LAST_KEY
from zq.storage.rocksdb import write_ahead
from zq.storage.rocksdb.files import open_error
from zq.storage.rocksdb.survey import FamilyGaps, Survey

# Name prefixes of files that are not copied for a repair, because the repair or the next opening creates them.
RECREATED_FILES: Final = ("MANIFEST", "CURRENT", "OPTIONS", "LOCK", "LOG", write_ahead.LISTED)
Known = Callable[[], Iterable[bytes]]


def repair(path: Path, to: Path, without: Iterable[str] = ()) -> Path:
    """Copy a store to the folder ``to``, and let RocksDB rebuild the manifest of the copy. Return ``to``.

    ``without`` has the names of files that are not copied.
    """
    to.mkdir(mode=0o700)
    for file in path.iterdir():
        if file.name not in without and not file.name.startswith(RECREATED_FILES) and file.is_file():
            _copy(file, to)
    Rdict.repair(str(to), Options(raw_mode=True))
    return to


def copy_intact(path: Path, to: Path) -> Path:
    """Copy a store to the new folder ``to``, and return ``to``.

    Damaged writes in the write-ahead log are not copied.
    """
    to.mkdir(mode=0o700)
    for file in path.iterdir():
        if file.suffix == ".log":
            write_ahead.copy_intact(file, to / file.name)
        elif file.is_file():
            _copy(file, to)
    return to


def _copy(file: Path, to: Path) -> None:
    try:
        if file.suffix != ".sst":
            raise OSError
        os.link(file, to / file.name)
    except OSError:
        shutil.copyfile(file, to / file.name)


class DamagedDirectory:
    """The readable data of one damaged store; see ``ordered.salvage_copy.DamagedStore``."""

    def __init__(self, path: Path, workshop: Path, families: Iterable[str]) -> None:
        """Open the store and scan it for damage. Repaired copies of the store are written to the folder ``workshop``.

        Raises ``StartRefused`` if the store is in use or cannot be opened.
        """
        self._workshop = workshop
        self._rest: Survey | None = None
        notes: list[str] = []
        self.survey = self._open(path, notes)
        self.survey.add_notes(notes)
        for family in families:
            for _ in self.survey.scan(family, b"", LAST_KEY):
                pass
        damaged = {gap.file for gap in self.survey.gaps()}
        if damaged:
            with suppress(Exception):  # the repaired copy is optional, because it only helps to find more keys
                self._rest = Survey(repair(self._source, workshop / "rest", damaged))

    def entries(self, family: str, *known: Known) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield (key, value) for each readable entry, and (key, None) for each known key without a readable value.

        Each function in ``known`` returns keys of existing entries from another source, for example from an index.
        """
        yield from self.survey.scan(family, b"", LAST_KEY)
        gaps = self.gaps(family)
        if not gaps:
            return
        sure = {key for keys in known for key in keys() if key in gaps}
        rest = self._rest.scan(family, b"", LAST_KEY) if self._rest is not None else ()
        for key in sorted(sure.union(key for key, _ in rest if key in gaps)):
            try:
                value = self.get(family, key)
            except StoreDamaged:
                if key in sure:
                    yield key, None
                continue
            if value is not None:
                yield key, value

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.survey.scan(family, lower, upper)

    def gaps(self, family: str) -> FamilyGaps:
        return FamilyGaps(self.survey.gaps(family))

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key. Raises ``StoreDamaged`` if the current value may be in the unreadable data."""
        try:
            return self.survey.get(family, key)
        except StoreDamaged:
            if self._rest is None or any(gap.hides(key) for gap in self.survey.gaps(family)):
                raise
            return self._rest.get(family, key)

    def close(self) -> None:
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
                self._source = copy_intact(path, self._workshop / "mended")
                survey = Survey(self._source)
            if not survey.unlisted:
                return survey
            notes += survey.notes
            survey.close()
        except StartRefused:
            raise
        except Exception as error:  # noqa: BLE001  (the binding raises no other)
            cause = str(error).splitlines()[0].strip(" .")
            notes.append(f"The list of files cannot be read and was rebuilt from the intact files ({cause})")
        try:
            self._source = repair(path, self._workshop / "repaired")
            survey = Survey(self._source)
        except Exception as error:
            raise open_error(path, error) from error
        notes += (f"{file.name} is unreadable" for file in (self._source / "lost").glob("*.sst"))
        return survey
