# SPDX-License-Identifier: Apache-2.0
"""What every command has: the global options, before its name and behind it, of which the last one given wins; the
client, made when it is first needed; and where results go.
"""

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
from zq.cli.profiles import Connection, config_file, connection, without_user
from zq.client import Client, Queue, Retries
from zq.client.warnings import did_you_mean
from zq.errors import ClaimNotFound, MessageNotFound, NotFound, SubscriptionNotFound, ZqError

Kind = Literal["queues", "topics"]
# Things of a queue or topic that may be missing because the queue or topic is.
PARTS: Final = (MessageNotFound, ClaimNotFound, SubscriptionNotFound)
# Names of a project that are compared with a wrong one at most.
MAX_COMPARED: Final = 500
# The key of the values in a context's ``meta``.
VALUES: Final = "zq.cli.session.values"
# The key of their origins.
ORIGINS: Final = "zq.cli.session.origins"
# Seconds for which commands that people wait for retry.
SHORT_RETRY: Final = 5.0
# Seconds for which commands that run for long retry.
LONG_RETRY: Final = 60.0
# Characters of a command's sentence in a help: more than any has.
WHOLE: Final = 200


def given(context: click.Context) -> dict[str, Any]:
    """What the caller chose so far, by the options' names; all contexts of a run share it."""
    found: dict[str, Any] = context.meta.setdefault(VALUES, {})
    return found


def origins(context: click.Context) -> dict[str, str]:
    """The flag or variable that chose each: "--project" or "ZQ_PROJECT"."""
    found: dict[str, str] = context.meta.setdefault(ORIGINS, {})
    return found


class GlobalOption(click.Option):
    """A global option. Only the program's own help describes it; the environment is read once, before any command."""

    def __init__(self, *words: str, **options: Any) -> None:
        super().__init__(words, expose_value=False, show_envvar=True, callback=remember, **options)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The row of the program's own help; None behind a command's name."""
        return super().get_help_record(ctx) if ctx.parent is None else None


def remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Remember what the caller chose."""
    assert option.name is not None
    source = context.get_parameter_source(option.name)
    by_flag = source is ParameterSource.COMMANDLINE
    if by_flag or (source is ParameterSource.ENVIRONMENT and context.parent is None):
        given(context)[option.name] = value
        origins(context)[option.name] = option.opts[-1] if by_flag else str(option.envvar)


# The global options.
GLOBALS: Final = (
    GlobalOption("--url", envvar="ZQ_URL", metavar="URL", help="The server; http://localhost:8888."),
    GlobalOption("--project", envvar="ZQ_PROJECT", metavar="NAME", help="The project that holds queues and topics."),
    GlobalOption("--token", envvar="ZQ_TOKEN", metavar="TEXT", help="Who asks; zq login stores one."),
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


class Session:
    """One run of the program."""

    def __init__(self, chosen: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
        """``chosen``: global options, to which those behind the command's name are added later.

        ``origins``: by which flag or variable each was chosen.
        """
        self.chosen = chosen
        self.origins = origins or {}
        self._patient = False
        self._check_delays = True

    def configure(self, *, patient: bool | None = None, check_delays: bool | None = None) -> None:
        """Set how the client of this run behaves, before it is made.

        ``patient``: repeat transient failures for long. ``check_delays``: refuse a delay that the queue ignores.
        """
        self._patient = self._patient if patient is None else patient
        self._check_delays = self._check_delays if check_delays is None else check_delays

    @cached_property
    def out(self) -> Output:
        """Where results go."""
        return Output(self.chosen.get("output"), self.chosen.get("query"), bool(self.chosen.get("full")))

    @property
    def retry(self) -> float | None:
        """Seconds for which failures that pass are retried, if the caller said so."""
        seconds: float | None = self.chosen.get("retry")
        return seconds

    @cached_property
    def verbose(self) -> bool:
        """Whether each request and the answer's status go to standard error."""
        return bool(self.chosen.get("verbose"))

    @property
    def profiles(self) -> Path:
        """The file of profiles, which need not be there."""
        return self.chosen.get("config") or config_file()

    @cached_property
    def connection(self) -> Connection:
        """Where to connect. Raises ``UsageError``."""
        return self.connecting({})

    def connecting(self, over: Mapping[str, str | None]) -> Connection:
        """Where to connect if these members win over all others. Raises ``UsageError``."""
        chosen = {name: value for name, value in over.items() if value}
        found = connection({**self.chosen, **chosen}, self.chosen.get("profile"), self.chosen.get("config"))
        if not found.project and not found.token:
            raise click.UsageError("No project is named: use --project, ZQ_PROJECT or a profile (zq context set).")
        return found

    @cached_property
    def client(self) -> Client:
        """The client of this run."""
        place = self.connection
        seconds = self.retry_for
        if self.verbose:
            logging.getLogger("httpx").setLevel(logging.INFO)
        retries = Retries(deadline=seconds, attempts=10 if seconds else 1)
        return Client(
            place.url,
            place.project,
            place.client_id or None,
            auth=self._show,
            retries=retries,
            token=place.token,
            check_delays=self._check_delays,
        )

    @property
    def retry_for(self) -> float:
        """Seconds for which failures that pass are retried."""
        return self.retry if self.retry is not None else LONG_RETRY if self._patient else SHORT_RETRY

    def queue(self, name: str) -> Queue:
        """A queue of the project."""
        return self.client.queue(name)

    def missing(self, name: str, kind: Kind = "queues") -> NotFound:
        """Return the error for a queue or a topic that does not exist, with the name that may be meant."""
        page = self.client.limits()["max_queues_per_page"]
        listed = self.client.queues(page=page) if kind == "queues" else self.client.topics(page=page)
        ending = did_you_mean(name, [entry.name for entry in islice(listed, MAX_COMPARED)])
        return NotFound(f"There is no {kind[:-1]} {name} in the project{ending}")

    def check_exists(self, name: str, kind: Kind = "queues") -> None:
        """Raise ``NotFound`` for a queue or a topic that does not exist."""
        handle = self.queue(name) if kind == "queues" else self.client.topic(name)
        if not handle.exists():
            raise self.missing(name, kind)

    def close(self) -> None:
        """Close the connections, if there are any."""
        if "client" in self.__dict__:
            self.client.close()

    def _show(self, request: Any) -> Any:
        """Show a request if the caller wants that, before it is sent."""
        if self.verbose:
            note(f"> {request.method} {without_user(str(request.url))}")
        return request


class NoteHandler(logging.Handler):
    """Shows what the client's libraries log: one line each, never a traceback; that it waits, once."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record as one line."""
        if record.name == "zq.client" and record.levelno == logging.INFO:
            if self._told:
                return
            self._told = True
        if record.name.startswith("httpx"):
            _, _, answer = record.getMessage().partition(' "')
            note("< " + answer.rstrip('"'))
            return
        cause = record.exc_info[1] if record.exc_info else None
        note(record.getMessage() + (f" {cause}" if cause else ""))


def listen() -> None:
    """Show what the client logs, in this process."""
    for name, level in (("zq.client", logging.INFO), ("httpx", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [NoteHandler()]


class Command(WithGlobals):
    """A command that takes the global options behind its name too."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If it does not find a thing of a queue or topic that does not exist, name the latter."""
        try:
            return super().invoke(ctx)
        except PARTS:
            session, name = ctx.find_object(Session), ctx.params.get("queue") or ctx.params.get("source")
            if session is not None and isinstance(name, str):
                try:
                    session.check_exists(name, "topics" if ctx.params.get("topic") else "queues")
                except NotFound as absent:
                    raise absent from None
                except ZqError:
                    pass
            raise


class Group(WithGlobals, click.Group):
    """A group of such commands."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show each command with its whole first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl(lines_of(self.commands[name] for name in self.list_commands(ctx)))


def lines_of(commands: Iterable[click.Command], width: int = 0) -> list[tuple[str, str]]:
    """The rows of a help about commands; names take at least this width."""
    return [(f"{command.name:{width}}", command.get_short_help_str(WHOLE)) for command in commands]


pass_session = click.make_pass_decorator(Session)
