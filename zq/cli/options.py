# SPDX-License-Identifier: Apache-2.0
"""The options that every command takes, before its name and behind it; the last one given wins."""

from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from zq.cli.values import Expression, Seconds

VALUES: Final = "zq.cli.options.values"
ORIGINS: Final = "zq.cli.options.origins"


def given(context: click.Context) -> dict[str, Any]:
    """What the caller chose so far, by the options' names; all contexts of a run share it."""
    found: dict[str, Any] = context.meta.setdefault(VALUES, {})
    return found


def origins(context: click.Context) -> dict[str, str]:
    """By what it was chosen: "--project" or "ZQ_PROJECT"."""
    found: dict[str, str] = context.meta.setdefault(ORIGINS, {})
    return found


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
    by_flag = source is ParameterSource.COMMANDLINE
    if by_flag or (source is ParameterSource.ENVIRONMENT and context.parent is None):
        given(context)[option.name] = value
        origins(context)[option.name] = option.opts[-1] if by_flag else str(option.envvar)


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
    GlobalOption("--retry", type=Seconds(0), metavar="SECONDS", help="For how long to retry what fails for a while."),
    GlobalOption(
        "--output",
        type=click.Choice(["json", "table", "yaml"]),
        help="JSON lines, tables or YAML; tables on a terminal, else JSON lines.",
    ),
    GlobalOption("--json", "output", flag_value="json", help="The same as --output json."),
    GlobalOption("--table", "output", flag_value="table", help="The same as --output table."),
    GlobalOption(
        "--query", type=Expression(), metavar="EXPR", help="Show what this JMESPath expression makes of the result."
    ),
    GlobalOption("--full", is_flag=True, help="Show ids and bodies in tables whole, however narrow the screen is."),
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
