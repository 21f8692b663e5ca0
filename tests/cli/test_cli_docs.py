# SPDX-License-Identifier: Apache-2.0
"""``api-ref/cli.md``: its exit codes match the program, its samples run, and every command has help."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from tests.cli.conftest import Zq
from tests.reader import INSTALLED, SHELL, environment
from zq.cli.declared.declaration import read_declaration
from zq.cli.reference import exit_codes, with_commands
from zq.cli.root import cli
from zq.model.limits import Limits

PAGE = (Path(__file__).parent.parent.parent / "api-ref" / "cli.md").read_text()
SAMPLES = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_the_exit_codes_are_those_of_the_program() -> None:
    """The page has the table of exit codes that the program generates."""
    assert f"\n## Exit codes\n\n{exit_codes()}" in PAGE


def test_the_site_has_the_help_of_each_command() -> None:
    """The help of all commands replaces a placeholder line of the page."""
    page = with_commands(PAGE)
    paths = re.findall(r"^### (zq.*)$", page, re.MULTILINE)
    assert len(paths) == len(list(commands(cli))) + 1
    assert page.count("\nUsage: zq ") == len(paths)


def test_every_command_and_option_has_help() -> None:
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
    """The samples run in order in one shell that stops at the first failure; the launcher forks ``zq``."""
    lines = "\n".join(SAMPLES).replace("http://localhost:8888", zq.env["ZQ_URL"])
    lines = lines.replace("ZQ_PROJECT=acme", f"ZQ_PROJECT={zq.project}").replace("copy", f"{zq.project}-copy")
    env = environment(tmp_path, f"{zq.installed()}{os.pathsep}{INSTALLED}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        [*SHELL, lines], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert '"total":1,' in done.stdout.splitlines()[-1]


def test_the_workflow_of_the_page_applies_its_file(zq: Zq, tmp_path: Path) -> None:
    """The test omits the sections that need an administrator or another host. A second run changes nothing."""
    text, workflow = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    read_declaration(text.encode(), Limits())
    declared = {name: entry for name, entry in yaml.safe_load(text).items() if name in ("version", "queues", "topics")}
    (tmp_path / "zq.yaml").write_text(yaml.safe_dump(declared))
    steps = yaml.safe_load(workflow)["jobs"]["zq"]["steps"]
    lines = [step["run"] for step in steps if step.get("run", "").startswith("zq ")]
    assert len(lines) == 2
    done = [zq.shell("\n".join(lines), "-e") for _ in range(2)]
    assert [run.returncode for run in done] == [0, 0], done
    assert [run.stdout.splitlines()[-1] for run in done] == ["3 created, 0 changed, 0 deleted.", "Nothing to change."]
