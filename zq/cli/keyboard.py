# SPDX-License-Identifier: Apache-2.0
"""Single keys from the terminal, without Enter."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from select import select

Pressed = Callable[[float], str]
"""Waits so many seconds at most for a key; "" if none was pressed."""


@contextmanager
def keyboard() -> Generator[Pressed, None, None]:
    """Keys as they are pressed, not shown. Without a terminal of Unix none ever is.

    In the end the terminal is as it was. SIGTERM counts as Ctrl-C, for it would not be so after it.
    """
    if not sys.stdin.isatty() or find_spec("termios") is None:
        yield waited
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        if not select([terminal], [], [], seconds)[0]:
            return ""
        key = os.read(terminal, 1)
        return key.decode(errors="replace") if key else waited(seconds)  # else it was hung up

    heard = signal.signal(signal.SIGTERM, signal.default_int_handler)
    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, heard)


def waited(seconds: float) -> str:
    """No key, after that time."""
    time.sleep(seconds)
    return ""
