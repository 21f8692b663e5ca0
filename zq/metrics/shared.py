# SPDX-License-Identifier: Apache-2.0
"""Several worker processes count together: in files of a folder that the process above them makes and removes."""

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""By prometheus-client's rules; it reads this when it is imported."""
MEMORY: Final = Path("/dev/shm")
"""Where files are no files: counting must neither wait for a disk nor die (of SIGBUS) when it is full."""


def begin() -> None:
    """To be called once, by the process above those that serve, before it starts them.

    The folder goes when this process ends. Processes that serve alone count without it.
    """
    folder = tempfile.mkdtemp(prefix="zq-metrics-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
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


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a fork has inherited this
        shutil.rmtree(folder, ignore_errors=True)
