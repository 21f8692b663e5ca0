# SPDX-License-Identifier: Apache-2.0
"""Commands that work on messages: how they run, and what two signals in a row do to them."""

import os
import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from zq.client.stopping import SIGNALS

OWN_GROUP: Final[int] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
"""What makes a process group on Windows."""


class Commands:
    """Those that run, each in a process group of its own: Ctrl-C is for zq alone, which lets them end."""

    def __init__(self) -> None:
        self.killed = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(
        self, words: Sequence[str], given: bytes, often: float | None = None, then: Callable[[], None] = lambda: None
    ) -> int:
        """A command's exit code. ``then`` is called whenever ``often`` seconds have passed. Raises ``OSError``."""
        rest: bytes | None = given
        # The command is the user's own, as a list of words: no shell reads it.
        with subprocess.Popen(  # noqa: S603
            words, stdin=subprocess.PIPE, process_group=0, creationflags=OWN_GROUP
        ) as process:
            self._running.add(process)
            if self.killed:
                kill(process)
            try:
                while True:
                    try:
                        process.communicate(rest, timeout=often)
                        return process.returncode
                    except subprocess.TimeoutExpired:
                        rest = None
                        then()
            finally:
                self._running.discard(process)

    def kill(self) -> None:
        """End all that run at once. Raises ``KeyboardInterrupt`` if none does."""
        if not self._running:
            raise KeyboardInterrupt
        self.killed = True
        for process in list(self._running):
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """With all that it has started, where a system can do that; Windows ends the process alone."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


@contextmanager
def at_second_signal(act: Callable[[], object]) -> Generator[None, None, None]:
    """Calls ``act`` at the second SIGTERM or Ctrl-C. The first is for the loop inside; the third ends the program."""

    def heard(_number: int, _frame: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        act()

    wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, heard) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
