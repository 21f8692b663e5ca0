# SPDX-License-Identifier: Apache-2.0
"""What every command has: the client, made when it is first needed, and where to tell results."""

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import click

from zq.cli.options import WithGlobals
from zq.cli.output import Output, note
from zq.cli.profiles import Connection, config_file, connection, without_user
from zq.client import Client, Queue, Retries

QUICK: Final = 5.0
PATIENT: Final = 60.0
"""Seconds for which trouble is sat out, by commands that people wait for, and by those that run for long."""


class Session:
    """One run of the program."""

    def __init__(self, chosen: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
        """``chosen``: global options, to which those behind the command's name are added later.

        ``origins``: by which flag or variable each was chosen.
        """
        self.chosen = chosen
        self.origins = origins or {}
        self.patient = False

    @cached_property
    def out(self) -> Output:
        """Where results go."""
        return Output(self.chosen.get("output"), self.chosen.get("query"), bool(self.chosen.get("full")))

    @property
    def retry(self) -> float | None:
        """Seconds for which trouble is sat out, if the caller said so."""
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
        """Where to connect if these members are given by somebody who has the say. Raises ``UsageError``."""
        chosen = {name: value for name, value in over.items() if value}
        found = connection({**self.chosen, **chosen}, self.chosen.get("profile"), self.chosen.get("config"))
        if not found.project:
            raise click.UsageError("No project is named: use --project, ZQ_PROJECT or a profile (zq context set).")
        return found

    @cached_property
    def client(self) -> Client:
        """Connects lazily. Set ``patient`` before."""
        place = self.connection
        seconds = self.retry_for
        if self.verbose:
            logging.getLogger("httpx").setLevel(logging.INFO)
        retries = Retries(deadline=seconds, attempts=10 if seconds else 1)
        return Client(place.url, place.project, place.client_id or None, auth=self._signed, retries=retries)

    @property
    def retry_for(self) -> float:
        """Seconds for which trouble that passes is sat out."""
        return self.retry if self.retry is not None else PATIENT if self.patient else QUICK

    def queue(self, name: str) -> Queue:
        """A queue of the project."""
        return self.client.queue(name)

    def close(self) -> None:
        """Close the connections, if there are any."""
        if "client" in self.__dict__:
            self.client.close()

    def _signed(self, request: Any) -> Any:
        """What each request goes through: it gets the token, and is shown before it is sent."""
        if self.connection.token:
            request.headers["X-Auth-Token"] = self.connection.token
        if self.verbose:
            note(f"> {request.method} {without_user(str(request.url))}")
        return request


class Told(logging.Handler):
    """Shows what the client's libraries log, one line each and never a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show it."""
        if record.name.startswith("httpx"):
            _, _, answer = record.getMessage().partition(' "')
            note("< " + answer.rstrip('"'))
            return
        cause = record.exc_info[1] if record.exc_info else None
        note(record.getMessage() + (f" {cause}" if cause else ""))


def listen() -> None:
    """Have what the client logs shown, in this process."""
    for name, level in (("zq.client", logging.WARNING), ("httpx", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [Told()]


WHOLE: Final = 200
"""Characters of a command's sentence: none is as long."""


class Command(WithGlobals):
    """A command that takes the global options behind its name too."""


class Group(WithGlobals, click.Group):
    """A group of such commands."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its whole first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl(lines_of(self.commands[name] for name in self.list_commands(ctx)))


def lines_of(commands: Iterable[click.Command], width: int = 0) -> list[tuple[str, str]]:
    """What a help says of commands; names take at least this width."""
    return [(f"{command.name:{width}}", command.get_short_help_str(WHOLE)) for command in commands]


pass_session = click.make_pass_decorator(Session)
