# SPDX-License-Identifier: Apache-2.0
"""The global options, and the client and output that they configure."""

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import click
from click.core import ParameterSource

from zq.cli.output import Output, note
from zq.cli.param_types import Expression, Seconds
from zq.cli.profiles import Connection, config_file, connection, strip_user
from zq.client import Client, Queue, Retries
from zq.client.warnings import did_you_mean
from zq.errors import ClaimNotFound, MessageNotFound, NotFound, SubscriptionNotFound, ZqError

Kind = Literal["queues", "topics"]
# Errors that a missing queue or topic may have caused.
PART_ERRORS: Final = (MessageNotFound, ClaimNotFound, SubscriptionNotFound)
# Maximum number of names to compare with a misspelled name.
MAX_COMPARED: Final = 500
# Key of the option values in ``Context.meta``.
VALUES: Final = "zq.cli.session.values"
# Key of the origins of the option values in ``Context.meta``.
ORIGINS: Final = "zq.cli.session.option_origins"
# Seconds for which short commands retry.
SHORT_RETRY: Final = 5.0
# Seconds for which long-running commands retry.
LONG_RETRY: Final = 60.0
# Maximum number of attempts of a request.
MAX_ATTEMPTS: Final = 10
# Maximum length of a command's first sentence in a help text.
MAX_SUMMARY_LENGTH: Final = 200


def option_values(context: click.Context) -> dict[str, Any]:
    """Return the values of the global options by name. The root command and all subcommands share this dict."""
    found: dict[str, Any] = context.meta.setdefault(VALUES, {})
    return found


def option_origins(context: click.Context) -> dict[str, str]:
    """Return the source of each global option by name: an option such as "--url" or a variable such as "ZQ_URL"."""
    found: dict[str, str] = context.meta.setdefault(ORIGINS, {})
    return found


class GlobalOption(click.Option):
    """A global option. Only the root command describes it and reads its environment variable."""

    def __init__(self, *words: str, **options: Any) -> None:
        super().__init__(words, expose_value=False, show_envvar=True, callback=store_value, **options)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the help row for the root command, or ``None`` for a subcommand."""
        return super().get_help_record(ctx) if ctx.parent is None else None


def store_value(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Store a value that was set by an option or environment variable."""
    assert option.name is not None
    source = context.get_parameter_source(option.name)
    by_flag = source is ParameterSource.COMMANDLINE
    if by_flag or (source is ParameterSource.ENVIRONMENT and context.parent is None):
        option_values(context)[option.name] = value
        option_origins(context)[option.name] = option.opts[-1] if by_flag else str(option.envvar)


# The global options.
GLOBAL_OPTIONS: Final = (
    GlobalOption("--url", envvar="ZQ_URL", metavar="URL", help="Server URL (default http://localhost:8888)."),
    GlobalOption("--project", envvar="ZQ_PROJECT", metavar="NAME", help="Project of the queues and topics."),
    GlobalOption("--token", envvar="ZQ_TOKEN", metavar="TEXT", help="Access token; see zq login."),
    GlobalOption(
        "--client-id", envvar="ZQ_CLIENT_ID", metavar="UUID", help="Client id (default: a new one for each run)."
    ),
    GlobalOption(
        "--profile",
        envvar="ZQ_PROFILE",
        metavar="NAME",
        help="Profile to use from the configuration file.",
    ),
    GlobalOption(
        "--config",
        envvar="ZQ_CONFIG",
        type=click.Path(path_type=Path),
        help="Configuration file (default ~/.config/zq/config.toml).",
    ),
    GlobalOption(
        "--retry",
        type=Seconds(0),
        metavar="SECONDS",
        help="Maximum time for retries after temporary failures, in seconds.",
    ),
    GlobalOption(
        "--output",
        type=click.Choice(["json", "table", "yaml"]),
        help="Output format (default: table on a terminal, otherwise JSON lines).",
    ),
    GlobalOption("--json", "output", flag_value="json", help="Short for --output json."),
    GlobalOption("--table", "output", flag_value="table", help="Short for --output table."),
    GlobalOption("--query", type=Expression(), metavar="EXPR", help="JMESPath expression to apply to the result."),
    GlobalOption("--full", is_flag=True, help="Show whole ids and bodies in tables, even on a narrow screen."),
    GlobalOption("-v", "--verbose", is_flag=True, help="Show each request on standard error."),
)


class GlobalOptionsCommand(click.Command):
    """A command that accepts the global options."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params = [*GLOBAL_OPTIONS, *self.params]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a reference to the root command's help, which describes the global options."""
        super().format_epilog(ctx, formatter)
        if ctx.parent is not None:
            formatter.write_paragraph()
            name = ctx.find_root().info_name
            formatter.write_text(f"Global options (--project, --url, --json ...) may also be used here: {name} --help.")


class Session:
    """The settings, client and output of one run of ``zq``."""

    def __init__(self, chosen: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
        """Create the session. The parser later adds the options that follow the command's name to ``chosen``."""
        self.chosen = chosen
        self.origins = origins or {}
        self._patient = False
        self._check_delays = True
        self._attempts = MAX_ATTEMPTS

    def configure(
        self, *, patient: bool | None = None, check_delays: bool | None = None, attempts: int | None = None
    ) -> None:
        """Change settings before the first use of ``client``. ``None`` leaves a setting unchanged.

        Args:
            patient: Whether the default of ``--retry`` is a minute instead of five seconds.
            check_delays: Whether a delay on a queue that ignores delays is an error.
            attempts: Maximum number of attempts per call.
        """
        self._patient = self._patient if patient is None else patient
        self._check_delays = self._check_delays if check_delays is None else check_delays
        self._attempts = self._attempts if attempts is None else attempts

    @cached_property
    def out(self) -> Output:
        return Output(self.chosen.get("output"), self.chosen.get("query"), bool(self.chosen.get("full")))

    @property
    def retry(self) -> float | None:
        """The value of ``--retry`` in seconds, or ``None`` if it is not set."""
        seconds: float | None = self.chosen.get("retry")
        return seconds

    @cached_property
    def verbose(self) -> bool:
        """Whether to show requests and response statuses on standard error."""
        return bool(self.chosen.get("verbose"))

    @property
    def profiles(self) -> Path:
        """Path of the configuration file, which may not exist."""
        return self.chosen.get("config") or config_file()

    @cached_property
    def connection(self) -> Connection:
        """The server, project and credentials to use. Raises ``UsageError`` if a setting is not valid."""
        return self.connection_with({})

    def connection_with(self, over: Mapping[str, str | None]) -> Connection:
        """Return the connection settings. Settings in ``over`` that are not empty override the global options.

        Raises ``UsageError`` if a setting is not valid or no project is set.
        """
        chosen = {name: value for name, value in over.items() if value}
        found = connection({**self.chosen, **chosen}, self.chosen.get("profile"), self.chosen.get("config"))
        if not found.project and not found.token:
            raise click.UsageError("No project is set: use --project, ZQ_PROJECT or a profile (zq context set).")
        return found

    @cached_property
    def client(self) -> Client:
        """The client, created on first use."""
        place = self.connection
        seconds = self.retry_for
        if self.verbose:
            logging.getLogger("httpx").setLevel(logging.INFO)
        retries = Retries(deadline=seconds, attempts=self._attempts if seconds else 1)
        return Client(
            place.url,
            place.project,
            place.client_id or None,
            auth=self._note_request,
            retries=retries,
            token=place.token,
            check_delays=self._check_delays,
        )

    @property
    def retry_for(self) -> float:
        """Seconds for which the client retries temporary failures."""
        return self.retry if self.retry is not None else LONG_RETRY if self._patient else SHORT_RETRY

    def queue(self, name: str) -> Queue:
        return self.client.queue(name)

    def missing_error(self, name: str, kind: Kind = "queues") -> NotFound:
        """Return the error for a missing queue or topic, with a similar name as a suggestion."""
        page = self.client.limits()["max_queues_per_page"]
        listed = self.client.queues(page=page) if kind == "queues" else self.client.topics(page=page)
        ending = did_you_mean(name, [entry.name for entry in islice(listed, MAX_COMPARED)])
        return NotFound(f"There is no {kind[:-1]} {name} in the project{ending}")

    def check_exists(self, name: str, kind: Kind = "queues") -> None:
        """Raise ``NotFound`` if the queue or topic does not exist."""
        handle = self.queue(name) if kind == "queues" else self.client.topic(name)
        if not handle.exists():
            raise self.missing_error(name, kind)

    def close(self) -> None:
        """Close the client if it was created."""
        if "client" in self.__dict__:
            self.client.close()

    def _note_request(self, request: Any) -> Any:
        """If ``--verbose`` is set, print a note for the request. The client calls this as its authentication hook."""
        if self.verbose:
            note(f"> {request.method} {strip_user(str(request.url))}")
        return request


class NoteHandler(logging.Handler):
    """A log handler that prints log records as notes. It prints only the first record about a rate limit."""

    def __init__(self) -> None:
        super().__init__()
        self._has_noted = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as a single line."""
        if record.name == "zq.client" and record.levelno == logging.INFO:
            if self._has_noted:
                return
            self._has_noted = True
        if record.name.startswith("httpx"):
            _, _, answer = record.getMessage().partition(' "')
            note("< " + answer.rstrip('"'))
            return
        cause = record.exc_info[1] if record.exc_info else None
        note(record.getMessage() + (f" {cause}" if cause else ""))


def print_client_logs() -> None:
    """Configure logging to print the client's log records on standard error, as notes."""
    for name, level in (("zq.client", logging.INFO), ("httpx", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [NoteHandler()]


class Command(GlobalOptionsCommand):
    """A command of ``zq``, which accepts the global options after its name."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If a message is missing because its queue or topic is missing, report the queue or topic."""
        try:
            return super().invoke(ctx)
        except PART_ERRORS:
            session, name = ctx.find_object(Session), ctx.params.get("queue") or ctx.params.get("source")
            if session is not None and isinstance(name, str):
                try:
                    session.check_exists(name, "topics" if ctx.params.get("topic") else "queues")
                except NotFound as absent:
                    raise absent from None
                except ZqError:
                    pass
            raise


class Group(GlobalOptionsCommand, click.Group):
    """A group of commands that accept the global options."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help, which click would truncate."""
        with formatter.section("Commands"):
            formatter.write_dl(help_rows(self.commands[name] for name in self.list_commands(ctx)))


def help_rows(commands: Iterable[click.Command], width: int = 0) -> list[tuple[str, str]]:
    """Return a help row for each command, with its name padded to ``width``."""
    return [(f"{command.name:{width}}", command.get_short_help_str(MAX_SUMMARY_LENGTH)) for command in commands]


pass_session = click.make_pass_decorator(Session)
