# SPDX-License-Identifier: Apache-2.0
"""The temporary directory through which worker processes share their metrics."""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

# Environment variable that prometheus-client reads at import.
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
# A directory in memory. On a disk, counting could block, or end with SIGBUS if the disk is full.
MEMORY: Final = Path("/dev/shm")  # noqa: S108  (only mkdtemp creates directories in it: mode 0700, unique name)

# Prefix of the directory names.
PREFIX: Final = "zq-metrics-"
# Name of the file that the processes lock while they use the directory.
OWNER: Final = "owner"


def begin() -> None:
    """Create the directory. Call this function in the parent process before it starts workers."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # the directory belongs to another user
            _remove_orphan(left)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    owner = os.open(f"{folder}/{OWNER}", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX)  # held while this process or one of its forks runs
    os.environ[VARIABLE] = folder
    atexit.register(_remove, folder, os.getpid())


def is_shared() -> bool:
    """Return whether this process shares metrics through the directory."""
    return VARIABLE in os.environ


def forget(process: int) -> None:
    """Remove the gauges of a dead worker process. Its counters remain."""
    if is_shared():
        for file in Path(os.environ[VARIABLE]).glob(f"gauge_live*_{process}.db"):
            with contextlib.suppress(FileNotFoundError):
                file.unlink()


def _remove_orphan(owner: Path) -> None:
    """Remove the metrics directory that contains the file ``owner``, unless a process holds the lock on this file."""
    with owner.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(owner.parent, ignore_errors=True)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # forks inherit this callback
        shutil.rmtree(folder, ignore_errors=True)
