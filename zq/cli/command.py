# SPDX-License-Identifier: Apache-2.0
"""User commands that process messages: parsing, execution, and termination on a second signal."""

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

# Creation flag of process groups on Windows.
OWN_GROUP: Final[int] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


# Parts of a line that a shell takes literally.
LITERAL: Final = re.compile(r"\\.|'[^']*'", re.DOTALL)
# Words in double quotes.
QUOTED: Final = re.compile(r'"([^"]*)"')
# Names of shells, which interpret shell syntax themselves.
SHELL: Final = re.compile(r"(.*/)?(ba|da|fi|k|z)?sh")
# Anything that a shell would interpret.
SYNTAX: Final = re.compile(r"&&|\|\||[|&;<>$`*]|(?<!\S)~")
# Characters that a shell does not interpret between double quotes.
IN_QUOTES: Final = re.compile(r"[^$`]")


class RunningCommands:
    """The running commands, each in its own process group, so that Ctrl-C reaches only zq."""

    def __init__(self) -> None:
        self.killed = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(
        self, words: Sequence[str], stdin: bytes, often: float | None = None, then: Callable[[], None] = lambda: None
    ) -> int:
        """Run a command and return its exit code. ``then`` is called every ``often`` seconds. Raises ``OSError``."""
        rest: bytes | None = stdin
        # The command is the user's own, passed as a list of words without a shell.
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
        """Kill all running commands. Raises ``KeyboardInterrupt`` if there are none."""
        if not self._running:
            raise KeyboardInterrupt
        self.killed = True
        for process in list(self._running):
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process with all its children; on Windows, only the process."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


@contextmanager
def on_second_signal(act: Callable[[], object]) -> Generator[None, None, None]:
    """Call ``act`` on the second SIGTERM or Ctrl-C. The first one stops the loop; the third one ends the program."""

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
    """Parse a command with its arguments, in which ``{}`` is a placeholder for an id.

    Raises ``UsageError`` if the command does not exist.
    """
    if shell and line.strip():
        # The id is an argument of the shell, so the shell does not interpret it.
        return ["/bin/sh", "-c", line.replace("{}", '"$1"'), "zq", "{}"]
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise click.UsageError(f"--exec cannot be parsed: {error}.") from error
    syntax = shell_syntax(line) if words and not SHELL.fullmatch(words[0]) else ""
    if not words or shutil.which(words[0]) is None:
        remedy = " Use --shell to run CMD through a shell." if syntax else ""
        raise click.UsageError(f"There is no command {words[0] if words else line!r}.{remedy}")
    if syntax:
        note(f"CMD gets {syntax} unchanged because it is not run through a shell; use --shell for that.")
    return words


def shell_syntax(line: str) -> str:
    """Return the first part of a line that a shell would interpret; "" if there is none."""
    read = QUOTED.sub(lambda found: IN_QUOTES.sub("", found[1]), LITERAL.sub("", line))
    found = SYNTAX.search(read)
    return found[0] if found else ""
