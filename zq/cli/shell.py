# SPDX-License-Identifier: Apache-2.0
"""``--exec``: a command as a list of words, or as a line that a shell reads."""

import re
import shlex
import shutil
from typing import Final

import click

from zq.cli.output import note

UNREAD: Final = re.compile(r"\\.|'[^']*'", re.DOTALL)
"""Of a line, what a shell takes as it stands."""
QUOTED: Final = re.compile(r'"([^"]*)"')
SHELL: Final = re.compile(r"(.*/)?(ba|da|fi|k|z)?sh")
SYNTAX: Final = re.compile(r"&&|\|\||[|&;<>$`*]|(?<!\S)~")
IN_QUOTES: Final = re.compile(r"[^$`]")


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
    read = QUOTED.sub(lambda found: IN_QUOTES.sub("", found[1]), UNREAD.sub("", line))
    found = SYNTAX.search(read)
    return found[0] if found else ""
