# SPDX-License-Identifier: Apache-2.0
"""Commands of the user that work on messages: their words, how they run, and how a second signal ends them."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import click

from zq.cli.output import note
from zq.client.stopping import SIGNALS

# The flag that makes a process group on Windows.
OWN_GROUP: Final[int] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


# The parts of a line that a shell takes as they stand.
LITERAL: Final = re.compile(r"\\.|'[^']*'", re.DOTALL)
# Words in double quotes.
QUOTED: Final = re.compile(r'"([^"]*)"')
# Names of shells, which read syntax on purpose.
SHELL: Final = re.compile(r"(.*/)?(ba|da|fi|k|z)?sh")
# Whatever means something to a shell.
SYNTAX: Final = re.compile(r"&&|\|\||[|&;<>$`*]|(?<!\S)~")
# Letters that mean nothing between double quotes.
IN_QUOTES: Final = re.compile(r"[^$`]")


class RunningCommands:
    """The commands that run, each in a process group of its own: Ctrl-C reaches zq alone, which lets them end."""

    def __init__(self) -> None:
        self.killed = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(
        self, words: Sequence[str], stdin: bytes, often: float | None = None, then: Callable[[], None] = lambda: None
    ) -> int:
        """Run a command; its exit code. ``then`` is called every ``often`` seconds. Raises ``OSError``."""
        rest: bytes | None = stdin
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
        """Kill all that run. Raises ``KeyboardInterrupt`` if none does."""
        if not self._running:
            raise KeyboardInterrupt
        self.killed = True
        for process in list(self._running):
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with all that it has started, where the system can do that; on Windows the process alone."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


@contextmanager
def on_second_signal(act: Callable[[], object]) -> Generator[None, None, None]:
    """Calls ``act`` at the second SIGTERM or Ctrl-C. The first stops the loop inside; the third ends the program."""

    def on_signal(_number: int, _frame: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        act()

    wanted = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def command_words(line: str, shell: bool) -> list[str]:
    """The command with its arguments; ``{}`` in one stands for the name of what it works on.

    Raises ``UsageError`` if there is no such command.
    """
    if shell and line.strip():
        # The name is an argument of the shell, and no part of what it reads.
        return ["/bin/sh", "-c", line.replace("{}", '"$1"'), "zq", "{}"]
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise click.UsageError(f"--exec cannot be read: {error}.") from error
    syntax = shell_syntax(line) if words and not SHELL.fullmatch(words[0]) else ""
    if not words or shutil.which(words[0]) is None:
        remedy = " With --shell a shell reads CMD." if syntax else ""
        raise click.UsageError(f"There is no command {words[0] if words else line!r}.{remedy}")
    if syntax:
        note(f"CMD gets {syntax} as it stands, since no shell reads it; with --shell one does.")
    return words


def shell_syntax(line: str) -> str:
    """The first thing in a line that would mean something to a shell; "" if nothing does."""
    read = QUOTED.sub(lambda found: IN_QUOTES.sub("", found[1]), LITERAL.sub("", line))
    found = SYNTAX.search(read)
    return found[0] if found else ""
