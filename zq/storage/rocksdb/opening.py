# SPDX-License-Identifier: Apache-2.0
"""The opening and closing of a RocksDB directory, and what is said when that fails."""

import fcntl
import logging
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from rocksdict import Options, Rdict

from zq.errors import StartRefused, Unavailable
from zq.storage.rocksdb.damage import is_damage

LOG = logging.getLogger(__name__)
OWNER_ONLY: Final = 0o700
"""The mode of a directory that is made here. Files in it have what the umask of the process leaves them."""
LOCK_PAUSE: Final = 0.1
LOCK_PATIENCE: Final = 3.0
"""A server whose master was killed takes about a second to notice."""
_opened: Final[set[Path]] = set()
"""Directories that this process has open: closing any file of one would end the lock on it."""


def open_database(path: Path, options: Options, families: dict[str, Options]) -> Rdict:
    """Open the directory; one that a dying process still holds is waited for a little."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            path.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
            opened = Rdict(str(path), options, column_families=families)
            _opened.add(path.resolve())
            return opened
        except Exception as error:
            if not is_locked(error) or time.monotonic() > deadline:
                raise refusal(path, error) from error
        time.sleep(LOCK_PAUSE)


def warn_of_others(path: Path) -> None:
    """Say so if other users of this machine may look into a directory that is there already."""
    with suppress(OSError):  # it is not there yet, or cannot be opened either, which is told soon
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & ~OWNER_ONLY & 0o777:
            LOG.warning(
                "Other users of this machine may be able to read the store's messages: %s has mode %o. chmod 700 %s",
                path,
                mode,
                path,
            )


def hold_lock(path: Path) -> IO[bytes]:
    """Keep every server from opening the directory, until the answer is closed, and change nothing in it.

    Raises ``StartRefused`` if one has it open. RocksDB takes the same lock, of the whole process: two parts of one
    process must not rely on it.
    """
    deadline = time.monotonic() + LOCK_PATIENCE
    names = ("LOCK", "CURRENT", "IDENTITY")
    try:
        file = next((path / name for name in names if (path / name).exists()), path / "LOCK").open("rb")
    except FileNotFoundError as error:
        raise StartRefused(f"There is no store in {path}.") from error
    except OSError as error:
        raise refusal(path, error) from error
    while path.resolve() not in _opened:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                break
        else:
            return file
        time.sleep(LOCK_PAUSE)
    raise in_use(path)


def let_go(path: Path) -> None:
    """The directory was closed."""
    _opened.discard(path.resolve())


def close_part(part: Rdict) -> None:
    """Close a database, or a view of one of its families. Raises ``Unavailable``."""
    try:
        part.close()
    except Exception as error:
        # After a failed write closing fails too; what was acknowledged is in the log already.
        if "IO error" not in str(error) and not is_damage(error):
            raise unavailable() from error


def unavailable() -> Unavailable:
    """What to raise where RocksDB refuses, with its error as the cause."""
    return Unavailable("The store cannot serve now. Try again later.")


def refusal(path: Path, error: BaseException) -> StartRefused:
    """What to say of a directory that RocksDB does not open."""
    if is_locked(error):
        return in_use(path)
    told = f"The store {path} cannot be opened: {str(error).splitlines()[0].strip(' .')}."
    if is_damage(error):
        told = f"{told[:-1]}; zq-server check-store tells what is damaged, zq-server salvage saves what can be read."
    return StartRefused(told)


def is_locked(error: BaseException) -> bool:
    """Whether another process, or this one, has the store open. RocksDB speaks of blocks too."""
    return re.search(r"\block (file|hold)", str(error)) is not None


def in_use(path: Path) -> StartRefused:
    """The refusal of a store that another process has open."""
    return StartRefused(
        f"The store {path} is in use by another process: stop that one, or give this server a store of its own "
        "(--store rocksdb:///another/path). One process owns an embedded store."
    )
