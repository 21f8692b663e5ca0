# SPDX-License-Identifier: Apache-2.0
"""The note beside a file that is under way, and the lock on it: one run at a time posts a file."""

import os
from pathlib import Path
from typing import BinaryIO, Self

from zq.errors import Conflict

try:
    import fcntl
except ImportError:  # Windows: no locks of this kind, and no open file can be replaced, so none is kept open
    fcntl = None  # type: ignore[assignment]


def note_beside(path: Path) -> Path:
    """Where it is noted how far the post of a file has come."""
    return path.with_name(path.name + ".zq")


class Note:
    """As a context manager: the note of a file, made if there is none. Raises ``Conflict`` if another run has it."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.path = note_beside(source)
        self._file = self._locked()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> bytes:
        """What is noted; nothing if it is new."""
        return self.path.read_bytes()

    def write(self, text: bytes, durably: bool = False) -> None:
        """Note something else instead, in one step."""
        fresh = self.path.with_name(self.path.name + ".new")
        file = fresh.open("w+b")
        _lock(file)  # before anybody can find it
        file.write(text)
        file.flush()
        if durably:
            os.fsync(file.fileno())
        kept = _kept(file)
        fresh.replace(self.path)
        self._file.close()
        self._file = kept

    def remove(self) -> None:
        """It is no longer needed."""
        self.path.unlink(missing_ok=True)

    def _locked(self) -> BinaryIO:
        while True:
            file = self.path.open("a+b")
            try:
                _lock(file)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return _kept(file)
            except BlockingIOError as error:
                file.close()
                raise Conflict("Another run posts this file.") from error
            except FileNotFoundError:
                pass
            file.close()  # it was replaced or removed between opening and locking


def _lock(file: BinaryIO) -> None:
    """Raises ``BlockingIOError`` if another run has it."""
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _kept(file: BinaryIO) -> BinaryIO:
    """Open, and so locked, where there are locks."""
    if not fcntl:
        file.close()
    return file
