# SPDX-License-Identifier: Apache-2.0
"""The generated parts of ``api-ref/cli.md``: the table of exit codes, and the help of each command."""

from collections.abc import Iterator
from typing import Final

import click

from zq.cli.failures import DRIFT, EXIT_CODES, INTERRUPTED, LOSS, UNVERIFIED
from zq.cli.root import cli

# Placeholder line in the page, which is replaced by the help of all commands.
MARK: Final = "<!-- The site has the help of each command here. -->\n"
# Line width of help texts in characters.
WIDTH: Final = 100


def exit_codes() -> str:
    codes = {0: "success", 1: "another error"}
    codes |= {code: meaning for code, meaning in EXIT_CODES.values() if meaning}
    codes[DRIFT] = "`apply --dry-run` found changes"
    codes[LOSS] = "`canary` lost messages"
    codes[UNVERIFIED] = "`canary` did not receive messages, but could not verify a loss"
    codes[INTERRUPTED] = "interrupted by Ctrl-C"
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in codes.items())
    return f"| Code | Meaning |\n|---|---|\n{rows}"


def commands() -> str:
    """Return a section for each command with its help."""
    return "\n".join(command_sections(cli, None))


def command_sections(command: click.Command, above: click.Context | None) -> Iterator[str]:
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, parent=above, info_name=command.name, **settings)
    with context:
        yield f"### {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from command_sections(below, context)


def with_commands(page: str) -> str:
    """Insert the help of all commands into a page. Raises ``ValueError`` if the page has no placeholder for it."""
    before, found, after = page.partition(MARK)
    if not found:
        raise ValueError(f"The page has no line {MARK.strip()}")
    return before + commands() + after
