# SPDX-License-Identifier: Apache-2.0
"""The options that every command takes, before its name and behind it; the last one given wins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from msgspec import Struct

from zq.cli.values import Seconds

KEY: Final = "zq.cli.options"


class Given(Struct, frozen=True):
    """What the caller chose, and where: "--project" or "ZQ_PROJECT"."""

    value: Any
    where: str


def given(context: click.Context) -> dict[str, Given]:
    """What the caller chose so far, by the options' names; all contexts of a run share it."""
    found: dict[str, Given] = context.meta.setdefault(KEY, {})
    return found


def value_of(chosen: Mapping[str, Given], name: str) -> Any:
    """What was chosen; None if nothing was."""
    return chosen[name].value if name in chosen else None


class GlobalOption(click.Option):
    """One of them. Only the program's own help describes it; the environment is read once, before any command."""

    def __init__(self, *words: str, **options: Any) -> None:
        super().__init__(words, expose_value=False, show_envvar=True, callback=keep, **options)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """None behind a command's name."""
        return super().get_help_record(ctx) if ctx.parent is None else None


def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Note what was chosen."""
    assert option.name is not None
    source = context.get_parameter_source(option.name)
    if source is ParameterSource.COMMANDLINE:
        given(context)[option.name] = Given(value, f"--{option.name.replace('_', '-')}")
    elif source is ParameterSource.ENVIRONMENT and context.parent is None:
        given(context)[option.name] = Given(value, str(option.envvar))


GLOBALS: Final = (
    GlobalOption("--url", envvar="ZQ_URL", metavar="URL", help="The server; http://localhost:8888."),
    GlobalOption("--project", envvar="ZQ_PROJECT", metavar="NAME", help="The project that holds queues and topics."),
    GlobalOption("--token", envvar="ZQ_TOKEN", metavar="TEXT", help="Sent as X-Auth-Token."),
    GlobalOption("--client-id", envvar="ZQ_CLIENT_ID", metavar="UUID", help="Who posts; a fresh one for each run."),
    GlobalOption(
        "--profile", envvar="ZQ_PROFILE", metavar="NAME", help="Which profile of the file gives what is left open."
    ),
    GlobalOption(
        "--config",
        envvar="ZQ_CONFIG",
        type=click.Path(path_type=Path),
        help="The file of profiles; ~/.config/zq/config.toml.",
    ),
    GlobalOption("--retry", type=Seconds(0), metavar="SECONDS", help="For how long trouble that passes is sat out."),
    GlobalOption("--json/--table", "as_json", default=None, help="JSON lines or tables; tables on a terminal."),
    GlobalOption("-v", "--verbose", is_flag=True, help="Show each request on standard error."),
)


class WithGlobals(click.Command):
    """A command that takes these options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params = [*GLOBALS, *self.params]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Below a command, where the options are described that are not its own."""
        super().format_epilog(ctx, formatter)
        if ctx.parent is not None:
            formatter.write_paragraph()
            name = ctx.find_root().info_name
            formatter.write_text(f"Global options (--project, --url, --json ...) may stand here too: {name} --help.")
