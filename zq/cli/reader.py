# SPDX-License-Identifier: Apache-2.0
"""Whoever reads standard output, as far as it can be seen: what was written into a pipe may never be read."""

import os
import select
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from typing import Final

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PAGE: Final = 4096
LOOK: Final = 500
"""Milliseconds after which a wait looks whether it is still wanted."""
PAUSE: Final = 0.001
"""Seconds between looks at a pipe that could not be made small."""


class Reader:
    """Reads from a pipe; without one, whatever was written counts as read."""

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def has_all(self, hurried: Callable[[], bool]) -> bool:
        """Waits until all that was written has been read; False if the reader has gone before, or time is short."""
        while self._pipe is not None and unread(self._pipe):
            room = select.poll()
            room.register(self._pipe, select.POLLOUT)
            # A pipe of one page has room again when the page has been read.
            events = dict(room.poll(LOOK)).get(self._pipe, 0)
            if events & select.POLLERR or hurried():
                return not unread(self._pipe)
            if events:
                time.sleep(PAUSE)
        return True


@contextmanager
def reader_of_output(gone: Callable[[], object]) -> Generator[Reader, None, None]:
    """That of standard output; ``gone`` is called when it goes away, be there anything to read or not.

    The pipe has a single page meanwhile, so that the reader is seen to take each line.
    """
    pipe, ended = output_pipe(), threading.Event()
    if pipe is None:
        yield Reader(None)
        return
    watching = threading.Thread(target=watch, args=(pipe, gone, ended), name="zq-reader", daemon=True)
    watching.start()
    before = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PAGE)
    try:
        yield Reader(pipe)
    finally:
        ended.set()
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, before)


def watch(pipe: int, gone: Callable[[], object], ended: threading.Event) -> None:
    """Waits for the end of whoever reads a pipe, which the kernel tells unasked."""
    errors = select.poll()
    errors.register(pipe, 0)
    while not ended.is_set():
        if errors.poll(LOOK):
            gone()
            ended.wait(LOOK / 1000)  # a loop that had not begun yet did not hear it


def output_pipe() -> int | None:
    """The file descriptor of standard output, if it is a pipe whose unread bytes are told: Linux alone does."""
    with suppress(OSError, UnsupportedOperation):
        output = sys.stdout.fileno()
        if fcntl and sys.platform == "linux" and stat.S_ISFIFO(os.fstat(output).st_mode):
            unread(output)
            return output
    return None


def unread(pipe: int) -> int:
    """Bytes that were written and not read."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


def leave_output() -> None:
    """Nobody reads it any more: what is still to be written goes nowhere, and is no error when the program ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
