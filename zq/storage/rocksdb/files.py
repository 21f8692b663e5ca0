# SPDX-License-Identifier: Apache-2.0
"""The files of a RocksDB directory: opening, closing, errors and damage."""

import fcntl
import logging
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from rocksdict import Checkpoint, Options, Rdict

from zq.errors import StartRefused, StoreDamaged, Unavailable
from zq.storage.rocksdb import write_ahead

LOG = logging.getLogger(__name__)
# The error message of ``StoreDamaged`` after damage was found.
DAMAGE_FOUND: Final = (
    "Parts of the store cannot be read; the log names the files. Requests that do not need them are served. "
    "Stop the server, then run zq-server check-store and zq-server salvage."
)
# The number of a table file in an error message of RocksDB.
TABLE: Final = re.compile(r"([0-9]+)\.sst")
# The offset of a block in an error message of RocksDB.
OFFSET: Final = re.compile(r"\boffset ([0-9]+)")
# Parts of RocksDB's error messages about a missing or unreadable table file.
MISSING_FILE_ERRORS: Final = ("No such file", "Input/output error")
# Parts of RocksDB's error messages about a full file system.
FULL_DISK_ERRORS: Final = ("No space left", "Disk quota exceeded")
STORE_FULL_ERROR: Final = "The store is full: its file system has no free space. Free disk space, and try again."
# Bytes that an opening writes besides the contents of the log files.
OPENING_BYTES: Final = 1 << 20
# The mode of new directories. The mode of the files in them depends on the umask of the process.
OWNER_ONLY: Final = 0o700
# Seconds between two attempts to lock a directory that another process has open.
LOCK_PAUSE: Final = 0.1
# Seconds after which the attempts to lock end. A worker whose master was killed keeps the lock for about one second.
LOCK_PATIENCE: Final = 3.0
# A flush that takes fewer seconds leaves few new writes in the write buffers.
QUICK_FLUSH_SECONDS: Final = 0.1
# Maximum number of flushes before the files are linked.
MAX_FLUSHES: Final = 6
# Directories that this process has open. If it closed another descriptor of the LOCK file, it would lose the lock.
_opened: Final[set[Path]] = set()


def is_damage(error: BaseException) -> bool:
    """Return whether an error of RocksDB reports a corrupt, missing or unreadable file."""
    text = str(error)
    return text.startswith("Corruption") or (
        TABLE.search(text) is not None and any(word in text for word in MISSING_FILE_ERRORS)
    )


def damage_location(error: Exception) -> tuple[int, int]:
    """Return the table file number and the block offset that RocksDB's error message names.

    Each of these numbers is -1 if the message does not contain it.
    """
    table, offset = TABLE.search(str(error)), OFFSET.search(str(error))
    return int(table[1]) if table else -1, int(offset[1]) if offset else -1


def check_end(cursor: Any, lower: bytes, last: bytes | None, backwards: bool) -> None:
    """Raise RocksDB's error if a scan ended at a damaged block instead of at the end of its range.

    ``cursor`` is a new iterator with the scan's upper bound. ``last`` is the last key that the scan returned, or None.
    """
    cursor.seek(lower if backwards or last is None else last + b"\0")
    while backwards and cursor.valid() and (last is None or cursor.key() < last):
        cursor.next()
    if not cursor.valid():
        cursor.status()


class Damage:
    """The damage found in one store. The same object is used after the store is reopened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locations: set[tuple[int, int]] = set()
        self.families: frozenset[str] = frozenset()
        """Column families with damaged data. A compaction of damaged data would make RocksDB stop all writes."""
        self.count = 0
        """Number of reads that have failed."""

    def record(self, error: Exception, family: str, key: bytes | None = None) -> bool:
        """Record and log a read error. Return whether this is the first known damage of the family.

        ``key`` is the first key that may be damaged, or None if it is unknown. ``family`` is "" if the family is
        unknown.
        """
        place = damage_location(error)
        with self._lock:
            self.count += 1
            known, first = place in self._locations, family not in self.families
            self._locations.add(place)
            self.families |= {family}
        if not known:
            where = "" if key is None else f", from key {key.hex() or 'the first'} on"
            LOG.critical("The store is damaged in family %s%s: %s", family or "unknown", where, error)
        return first

    def check(self) -> None:
        """Raise ``StoreDamaged`` if any damage has been found."""
        if self.count:
            raise StoreDamaged(DAMAGE_FOUND)


def open_database(path: Path, options: Options, families: dict[str, Options]) -> Rdict:
    """Open a RocksDB directory. If the directory is missing, create it.

    Wait up to ``LOCK_PATIENCE`` seconds for a locked directory. Raises ``StartRefused`` if the directory is still
    locked or cannot be opened.
    """
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            path.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
            opened = Rdict(str(path), options, column_families=families)
            _opened.add(path.resolve())
            return opened
        except Exception as error:
            if not is_locked(error) or time.monotonic() > deadline:
                raise open_error(path, error) from error
        time.sleep(LOCK_PAUSE)


def find_folder(path: Path) -> Path:
    """Return the store's directory or the nearest existing parent. Raises ``StartRefused`` if it is not writable."""
    folder = next(each for each in (path, *path.absolute().parents) if os.path.exists(each))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise StartRefused(
            f"The store {path} cannot be opened: {folder} is not a directory to which this user can write."
        )
    return folder


def warn_of_others(path: Path) -> None:
    """Log a warning if other users of this machine can access an existing directory."""
    with suppress(OSError):  # a missing directory is created later, and an inaccessible one is reported later
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & ~OWNER_ONLY & 0o777:
            LOG.warning(
                "Other users of this machine may be able to read the store's messages: %s has mode %o. Run: "
                "chmod 700 %s",
                path,
                mode,
                path,
            )


def hold_lock(path: Path) -> IO[bytes]:
    """Acquire RocksDB's lock on a directory without changing the directory. To release the lock, close the file.

    Wait up to ``LOCK_PATIENCE`` seconds for a locked directory. The lock belongs to the process, so it does not exclude
    other threads of this process.

    Raises ``StartRefused`` if a server has the directory open, or if there is no store.
    """
    deadline = time.monotonic() + LOCK_PATIENCE
    names = ("LOCK", "CURRENT", "IDENTITY")
    try:
        file = next((path / name for name in names if (path / name).exists()), path / "LOCK").open("rb")
    except FileNotFoundError as error:
        raise StartRefused(f"There is no store in {path}.") from error
    except OSError as error:
        raise open_error(path, error) from error
    while path.resolve() not in _opened:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                break
        else:
            return file
        time.sleep(LOCK_PAUSE)
    raise in_use_error(path)


def is_open(path: Path) -> bool:
    """Return whether another process has the directory open."""
    try:
        with (path / "LOCK").open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def create_directory(path: Path, source: Path | None = None) -> Iterator[Path]:
    """Provide a temporary directory for the files of a new store within a ``with`` block.

    If the block ends without an error, rename the directory to ``path``. Otherwise, remove the directory. ``source`` is
    the directory of the files that the block reads; see ``hold_unfinished``.
    """
    with hold_unfinished(path, source) as unfinished:
        yield unfinished
        unfinished.rename(path)


@contextmanager
def hold_unfinished(path: Path, source: Path | None) -> Iterator[Path]:
    """Provide the empty directory ``<path>.unfinished`` within a ``with`` block, and remove it at the end.

    The block may rename the directory. A lock on the directory excludes other processes until then. If a process was
    killed, its lock is free, and the next call removes its files.

    Raises ``StartRefused`` if ``path`` exists or is inside a store, if the directory contains ``source``, if another
    process uses the directory or a store in it, or if it cannot be created or emptied.
    """
    _reject_existing(path)
    for parent in Path(os.path.realpath(path)).parents:
        if os.path.lexists(parent / "CURRENT"):
            raise StartRefused(f"{path} is inside the store {parent}. Choose a directory outside it.")
    unfinished = path.with_name(f"{path.name}.unfinished")
    if source is not None and source.resolve().is_relative_to(unfinished.resolve()):
        raise StartRefused(
            f"{unfinished} is the temporary directory of {path}, but contains {source}. Rename it first."
        )
    try:
        lock = _lock_directory(unfinished)
    except BlockingIOError as error:
        raise StartRefused(
            f"Another process is creating a store in {path}. Wait until it has ended, or choose another directory."
        ) from error
    except OSError as error:
        raise StartRefused(f"The temporary directory {unfinished} cannot be written: {error.strerror}.") from error
    try:
        _remove_content(unfinished)
        try:
            _reject_existing(path)  # the previous owner of the lock may have completed the store
            yield unfinished
        finally:
            if _is_at(lock, unfinished):  # the directory of another process must stay
                shutil.rmtree(unfinished, ignore_errors=True)
    finally:
        os.close(lock)


def _remove_content(unfinished: Path) -> None:
    """Remove the files that an interrupted command has left in its temporary directory.

    Raises ``StartRefused`` if a process has a store in the directory open, or if a file cannot be removed.
    """
    with ExitStack() as locks:
        for file in unfinished.rglob("LOCK"):  # each open store has this file
            try:
                locks.enter_context(hold_lock(file.parent))
            except StartRefused as error:
                raise StartRefused(
                    f"The command must empty its temporary directory {unfinished}, but another process may be using "
                    f"the store {file.parent}. Stop the process, or choose another directory."
                ) from error
        try:
            for left in unfinished.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        except OSError as error:
            raise StartRefused(
                f"The command must empty its temporary directory {unfinished}, but cannot: {error.strerror}. Remove "
                "the directory as its owner, or choose another directory."
            ) from error


def _reject_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise StartRefused(f"{path} already exists, but this command creates a new store. Choose another directory.")


def _lock_directory(path: Path) -> int:
    """Create a directory if it is missing, lock it, and return its file descriptor, whose closing ends the lock.

    Raises ``BlockingIOError`` if another process has locked the directory.
    """
    while True:
        path.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(directory)
            raise
        if _is_at(directory, path):
            return directory
        os.close(directory)  # the previous owner has renamed or removed the directory


def _is_at(directory: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), path.lstat())
    except FileNotFoundError:
        return False


def flush_all(views: Iterable[Rdict]) -> None:
    """Flush the write buffers of the column families one by one, without blocking writers."""
    try:
        for view in views:
            view.flush()
    except Exception as error:
        raise unavailable_error() from error


def link_files(database: Rdict, folder: Path) -> float:
    """Hard-link the database's files into a new folder, and return the duration in seconds.

    RocksDB flushes the write buffers first, and blocks all threads for the whole time. To shorten this time, flush the
    buffers with ``flush_all`` before you call this function.
    """
    began = time.monotonic()
    try:
        Checkpoint(database).create_checkpoint(str(folder))
    except Exception as error:
        raise unavailable_error() from error
    return time.monotonic() - began


def link_flushed(database: Rdict, views: Sequence[Rdict], folder: Path) -> tuple[float, int]:
    """Flush all families repeatedly until a flush is quick, then hard-link the files into a new folder.

    Return the duration of linking in seconds, and a RocksDB sequence number up to which the files contain all writes.
    """
    for _ in range(MAX_FLUSHES):
        began = time.monotonic()
        flush_all(views)
        if time.monotonic() - began < QUICK_FLUSH_SECONDS:
            break
    last = int(database.latest_sequence_number())
    return link_files(database, folder), last


def note_closed(path: Path) -> None:
    """Record that the directory was closed, and list its log files for the check at the next opening."""
    write_ahead.record_files(path)
    _opened.discard(path.resolve())


def close_part(part: Rdict) -> None:
    """Close a database or a view of one of its families. Ignore I/O errors and damage."""
    try:
        part.close()
    except Exception as error:
        # After a failed write, closing also fails. Acknowledged writes are already in the log.
        if "IO error" not in str(error) and not is_damage(error):
            raise unavailable_error() from error


def unavailable_error(cause: BaseException | None = None) -> Unavailable:
    """Return the error to raise for a failed RocksDB call. ``cause`` is RocksDB's error."""
    return Unavailable(STORE_FULL_ERROR) if _is_full_disk(cause) else Unavailable()


def _is_full_disk(error: BaseException | None) -> bool:
    return any(words in str(error) for words in FULL_DISK_ERRORS)


def salvage_error(path: Path, error: BaseException) -> StartRefused:
    """Return the error to raise if the new store of a salvage cannot be written."""
    if _is_full_disk(error):
        return StartRefused(f"The file system of {path} is full. Salvage to another one.")
    return open_error(path, error)


def open_error(path: Path, error: BaseException) -> StartRefused:
    if is_locked(error):
        return in_use_error(path)
    if _is_full_disk(error):
        needed = sum(file.stat().st_size for file in write_ahead.log_files(path)) + OPENING_BYTES
        return StartRefused(
            f"The file system of the store {path} is full. Free at least {-(-needed >> 20)} MiB, and start again: "
            "messages can then be read and deleted."
        )
    sentence = f"The store {path} cannot be opened: {str(error).splitlines()[0].strip(' .')}."
    if "Permission denied" in str(error):
        sentence += " Run zq-server as the owner of the store."
    elif is_damage(error):
        sentence += " Run zq-server check-store to find the damage, and zq-server salvage to save the readable data."
    return StartRefused(sentence)


def is_locked(error: BaseException) -> bool:
    """Return whether RocksDB's error reports that a process has the store open."""
    return re.search(r"\block (file|hold)", str(error)) is not None


def in_use_error(path: Path) -> StartRefused:
    return StartRefused(
        f"The store {path} is in use by another process, and only one process can open an embedded store. Stop the "
        "other process, or use another store (--store rocksdb:///another/path)."
    )
