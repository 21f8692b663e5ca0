# SPDX-License-Identifier: Apache-2.0
"""The check of a RocksDB directory's layout and log before the directory is opened for writing.

Opening a directory for writing changes it permanently: RocksDB creates missing column families, replays the log up to
the first damage, and drops the rest. This module therefore rejects an unsuitable directory before it is opened.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rocksdict import AccessType, DBRecoveryMode, Options, Rdict

from zq.errors import StartRefused
from zq.storage.rocksdb import write_ahead
from zq.storage.rocksdb.files import close_part, hold_lock, open_error
from zq.storage.rocksdb.write_ahead import Tear

LOG = logging.getLogger(__name__)
# The column family that every database has.
DEFAULT: Final = "default"
# A check of the column families and of values in ``DEFAULT``. It raises ``StartRefused`` for an unsuitable directory.
Check = Callable[[frozenset[str], Callable[[bytes], bytes | None]], object]
TORN: Final = (
    "The end of the write-ahead log is incomplete, as after a power failure: dropping %d bytes of %s and later files, "
    "from offset %d. They contain no complete write."
)
DAMAGED: Final = (
    "The store {path} cannot be opened: its write-ahead log is damaged in {tear.file} at offset {tear.offset}, and "
    "complete writes of {tear.dropped} bytes follow, which a start would drop. To save the readable data, run "
    "zq-server salvage, or restore a backup."
)
MISSING: Final = (
    "The store {path} cannot be opened: {names} of its write-ahead log is missing. Put the file back, restore a "
    "backup, or run zq-server salvage to save the data of the other files."
)
NO_LIST: Final = (
    "The store {path} cannot be opened: its file CURRENT is missing. Run zq-server check-store to find the damage, "
    "and zq-server salvage to save the readable data."
)


def admit(path: Path, check: Check) -> None:
    """Check that a directory may be opened for writing. The check does not change the directory.

    A missing directory is accepted.

    ``check`` receives the names of the column families, and a function that reads a value of the family ``default``.

    Raises:
        StartRefused: ``check`` fails, the directory is unreadable, a log file is missing, or complete writes follow
            damage in the log.
    """
    try:
        if not (path / "CURRENT").exists():
            if any(file.stat().st_size for file in (*path.glob("*.sst"), *path.glob("*.log"))):
                raise StartRefused(NO_LIST.format(path=path))
            return
    except OSError as error:
        raise open_error(path, error) from error
    with hold_lock(path):
        try:
            families = frozenset(Rdict.list_cf(str(path)))
            database, is_whole = _open(path)
            try:
                check(families, database.get)
                tear, gone = _inspect(path, database, is_whole)
            finally:
                close_part(database)
        except StartRefused:
            raise
        except Exception as error:
            raise open_error(path, error) from error
    if gone:
        raise StartRefused(MISSING.format(path=path, names=", ".join(gone)))
    if tear is not None and tear.has_records:
        raise StartRefused(DAMAGED.format(path=path, tear=tear))
    if tear is not None and tear.dropped:
        LOG.warning(TORN, tear.dropped, tear.file, tear.offset)


def inspect_log(path: Path) -> tuple[Tear | None, list[str]]:
    """Return the position at which the log becomes unreadable, and the names of missing log files.

    If the whole log is readable, the position is None. The caller must hold the directory's lock. If another file is
    unreadable, raises the exception of the RocksDB binding.
    """
    database, is_whole = _open(path)
    try:
        return _inspect(path, database, is_whole)
    finally:
        close_part(database)


def _inspect(path: Path, database: Rdict, is_whole: bool) -> tuple[Tear | None, list[str]]:
    min_number = int(database.property_int_value("rocksdb.min-log-number-to-keep") or 0)
    tear = None
    if not is_whole or write_ahead.end_in_zeros(path, min_number):
        tear = write_ahead.examine(path, int(database.latest_sequence_number()), min_number)
    return tear, write_ahead.find_missing(path, min_number)


def _open(path: Path) -> tuple[Rdict, bool]:
    """Open the default column family read-only, and return the database and whether the whole log was replayed."""
    try:
        return _read_only(path, DBRecoveryMode.absolute_consistency()), True
    except Exception as error:
        if re.search(r"\.sst|MANIFEST|CURRENT", str(error)):
            raise
    return _read_only(path, DBRecoveryMode.point_in_time()), False


def _read_only(path: Path, mode: DBRecoveryMode) -> Rdict:
    options = Options(raw_mode=True)
    options.set_wal_recovery_mode(mode)
    return Rdict(str(path), options, {DEFAULT: Options(raw_mode=True)}, AccessType.read_only(False))
