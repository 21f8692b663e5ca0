# SPDX-License-Identifier: Apache-2.0
"""Several worker processes count together: in files of a folder that the process above them makes and removes."""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

# By prometheus-client's rules; it reads this when it is imported.
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
# Where files are no files: counting must neither wait for a disk nor die (of SIGBUS) when it is full.
MEMORY: Final = Path("/dev/shm")  # noqa: S108  (only mkdtemp makes anything there: 0700, under a name of its own)

# What the names of folders begin with.
PREFIX: Final = "zq-metrics-"
# A file that is locked while a process counts in its folder.
OWNER: Final = "owner"


def begin() -> None:
    """To be called once, by the process above those that serve, before it starts them.

    The folder goes when this process ends; if it was killed, when the next one begins. Processes that serve alone
    count without it.
    """
    parent = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # another user's
            _remove_orphan(left)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    owner = os.open(f"{folder}/{OWNER}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX)  # for as long as this process or one that it has forked lives
    os.environ[VARIABLE] = folder
    atexit.register(_remove, folder, os.getpid())


def joined() -> bool:
    """Whether this process counts together with others."""
    return VARIABLE in os.environ


def forget(process: int) -> None:
    """A process that served is dead: what it has counted stays, what it was doing at the time goes."""
    if joined():
        for file in Path(os.environ[VARIABLE]).glob(f"gauge_live*_{process}.db"):
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


def _remove_orphan(owner: Path) -> None:
    """Remove the folder of an owner that has no lock any more."""
    with owner.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(owner.parent, ignore_errors=True)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a fork has inherited this
        shutil.rmtree(folder, ignore_errors=True)
