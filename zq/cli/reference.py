# SPDX-License-Identifier: Apache-2.0
"""The generated part of ``api-ref/cli.md``: exit codes, and each command's own help.

``python -m zq.cli.reference api-ref/cli.md`` brings a page up to date; without a page it is printed.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from zq.cli.failures import EXIT_CODES, INTERRUPTED
from zq.cli.root import cli

# The line above the generated part of a page.
MARK: Final = "<!-- What follows is written by python -m zq.cli.reference. -->\n"
# Characters of a line of help.
WIDTH: Final = 100


def generated() -> str:
    """The text behind the mark."""
    codes = {0: "done", 1: "anything else failed"}
    codes |= {code: meaning for code, meaning in EXIT_CODES.values() if meaning}
    codes[INTERRUPTED] = "interrupted by Ctrl-C"
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in codes.items())
    table = f"| Code | Meaning |\n|---|---|\n{rows}"
    return f"\n## Exit codes\n\n{table}\n## Commands\n\n" + "\n".join(sections(cli, None))


def sections(command: click.Command, above: click.Context | None) -> Iterator[str]:
    """A section for a command, and those of the commands below it."""
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, parent=above, info_name=command.name, **settings)
    with context:
        yield f"### {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from sections(below, context)


def renewed(page: str) -> str:
    """The page with a fresh text behind the mark."""
    return page.partition(MARK)[0] + MARK + generated()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        file = Path(sys.argv[1])
        file.write_text(renewed(file.read_text()))
    else:
        click.echo(generated())
