# SPDX-License-Identifier: Apache-2.0
"""External commands that process messages: parsing, execution, and termination on a second signal."""

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

# Creation flag for a new process group on Windows.
OWN_GROUP: Final[int] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
# Parts of a command line that a shell takes literally.
LITERAL_TEXT: Final = re.compile(r"\\.|'[^']*'", re.DOTALL)
# Text in double quotes.
QUOTED_TEXT: Final = re.compile(r'"([^"]*)"')
# Names of shells. A command that calls a shell may contain shell syntax.
SHELL_NAME: Final = re.compile(r"(.*/)?(ba|da|fi|k|z)?sh")
# Shell syntax.
SHELL_SYNTAX: Final = re.compile(r"&&|\|\||[|&;<>$`*]|(?<!\S)~")
# Characters that a shell does not interpret in double quotes.
LITERAL_IN_QUOTES: Final = re.compile(r"[^$`]")


class RunningCommands:
    """The running external commands. Each has its own process group, so Ctrl-C interrupts only zq."""

    def __init__(self) -> None:
        self.killed = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(
        self,
        words: Sequence[str],
        stdin: bytes,
        interval: float | None = None,
        on_interval: Callable[[], None] = lambda: None,
    ) -> int:
        """Run a command and return its exit code. Raises ``OSError`` if the command cannot be started.

        If ``interval`` is set, call ``on_interval`` every ``interval`` seconds while the command runs.
        """
        rest: bytes | None = stdin
        # The words come from the user and are not interpreted by a shell.
        with subprocess.Popen(  # noqa: S603
            words, stdin=subprocess.PIPE, process_group=0, creationflags=OWN_GROUP
        ) as process:
            self._running.add(process)
            if self.killed:
                kill(process)
            try:
                while True:
                    try:
                        process.communicate(rest, timeout=interval)
                        return process.returncode
                    except subprocess.TimeoutExpired:
                        rest = None
                        on_interval()
            finally:
                self._running.discard(process)

    def kill(self) -> None:
        """Kill all running commands. If no command is running, end the program by raising ``KeyboardInterrupt``."""
        if not self._running:
            raise KeyboardInterrupt
        self.killed = True
        for process in list(self._running):
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its children. On Windows, kill only the process."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


@contextmanager
def on_second_signal(act: Callable[[], object]) -> Generator[None, None, None]:
    """Return a context manager that calls ``act`` on the second SIGTERM or SIGINT during the block.

    Inside the block, use ``stop_on_signals`` to handle the first signal. The third signal ends the process.
    """

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


def split_command(line: str, shell: bool) -> list[str]:
    """Split a command line into words. Raises ``UsageError`` if the command does not exist."""
    if shell and line.strip():
        # The shell gets the id as an argument, so it does not interpret the id.
        return ["/bin/sh", "-c", line.replace("{}", '"$1"'), "zq", "{}"]
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise click.UsageError(f"--exec cannot be parsed: {error}.") from error
    syntax = find_shell_syntax(line) if words and not SHELL_NAME.fullmatch(words[0]) else ""
    if not words or shutil.which(words[0]) is None:
        remedy = " Use --shell to run CMD through a shell." if syntax else ""
        raise click.UsageError(f"There is no command {words[0] if words else line!r}.{remedy}")
    if syntax:
        note(f"CMD receives {syntax} unchanged, because zq does not run CMD through a shell; use --shell to do so.")
    return words


def find_shell_syntax(line: str) -> str:
    """Return the first shell metacharacter or operator in a command line, or ""."""
    read = QUOTED_TEXT.sub(lambda found: LITERAL_IN_QUOTES.sub("", found[1]), LITERAL_TEXT.sub("", line))
    found = SHELL_SYNTAX.search(read)
    return found[0] if found else ""
