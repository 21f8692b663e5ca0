# SPDX-License-Identifier: Apache-2.0
"""The note beside a file that is under way, and the lock on it: one run at a time posts a file."""

import os
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import BinaryIO, Self

from zq.errors import Conflict


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
        self._file.seek(0)
        return self._file.read()

    def write(self, text: bytes, durably: bool = False) -> None:
        """Note something else instead, in one step."""
        fresh = self.path.with_name(self.path.name + ".new")
        file = fresh.open("w+b")
        flock(file, LOCK_EX | LOCK_NB)  # before anybody can find it
        file.write(text)
        file.flush()
        if durably:
            os.fsync(file.fileno())
        fresh.replace(self.path)
        self._file.close()
        self._file = file

    def remove(self) -> None:
        """It is no longer needed."""
        self.path.unlink(missing_ok=True)

    def _locked(self) -> BinaryIO:
        while True:
            file = self.path.open("a+b")
            try:
                flock(file, LOCK_EX | LOCK_NB)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return file
            except BlockingIOError as error:
                file.close()
                raise Conflict("Another run posts this file.") from error
            except FileNotFoundError:
                pass
            file.close()  # it was replaced or removed between opening and locking
