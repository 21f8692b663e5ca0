# SPDX-License-Identifier: Apache-2.0
"""``api-ref/cli.md``: its exit codes are those of the program, its samples are run, and everything has help."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Zq
from tests.reader import INSTALLED, SHELL, environment
from zq.cli.reference import exit_codes, with_commands
from zq.cli.root import cli

PAGE = (Path(__file__).parent.parent.parent / "api-ref" / "cli.md").read_text()
SAMPLES = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_the_exit_codes_are_those_of_the_program() -> None:
    """In a table of their own."""
    assert f"\n## Exit codes\n\n{exit_codes()}" in PAGE


def test_the_site_has_the_help_of_each_command() -> None:
    """In place of one line of the page."""
    page = with_commands(PAGE)
    paths = re.findall(r"^### (zq.*)$", page, re.MULTILINE)
    assert len(paths) == len(list(commands(cli))) + 1
    assert page.count("\nUsage: zq ") == len(paths)


def test_every_command_and_option_has_help() -> None:
    """A sentence each."""
    found = list(commands(cli))
    assert len(found) > 30
    assert [command.name for command in found if not command.help] == []
    options = [
        f"{command.name} {option.name}"
        for command in found
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert options == []


@pytest.mark.ability("grep")
def test_the_samples_of_the_command_line_work(zq: Zq, tmp_path: Path) -> None:
    """From top to bottom, in one shell that stops at the first failure; ``zq`` is forked by the launcher."""
    lines = "\n".join(SAMPLES).replace("http://localhost:8888", zq.env["ZQ_URL"])
    lines = lines.replace("ZQ_PROJECT=acme", f"ZQ_PROJECT={zq.project}").replace("copy", f"{zq.project}-copy")
    env = environment(tmp_path, f"{zq.installed()}{os.pathsep}{INSTALLED}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        [*SHELL, lines], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert '"total":1,' in done.stdout.splitlines()[-1]
