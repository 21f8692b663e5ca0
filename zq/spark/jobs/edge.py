# SPDX-License-Identifier: Apache-2.0
"""What the jobs have in common with the command line ``zq``: where the server is, and how results and errors look."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from zq.cli.failures import failure, run_to_exit
from zq.cli.session import Session, listen
from zq.errors import ZqError
from zq.spark.failures import SPARKS, reason

CONNECTING: Final = (
    click.Option(["--url"], envvar="ZQ_URL", metavar="URL", help="The server; http://localhost:8888."),
    click.Option(["--project"], envvar="ZQ_PROJECT", metavar="NAME", help="The project that holds the queues."),
    click.Option(["--token"], envvar="ZQ_TOKEN", metavar="TEXT", help="Sent as X-Auth-Token."),
    click.Option(["--client-id"], envvar="ZQ_CLIENT_ID", metavar="UUID", help="Who posts; a fresh one for each run."),
    click.Option(["--profile"], envvar="ZQ_PROFILE", metavar="NAME", help="Of the file of profiles."),
    click.Option(["--config"], envvar="ZQ_CONFIG", type=click.Path(path_type=Path), help="The file of profiles."),
    click.Option(
        ["--retry"], type=click.IntRange(0), metavar="SECONDS", default=60, help="For trouble that passes; 60."
    ),
    click.Option(["--json/--table", "as_json"], default=None, help="JSON lines or tables; tables on a terminal."),
)


class Job(click.Command):
    """A program of its own, which takes the options above."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += CONNECTING

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        """Run, and exit with a sentence and a code, whatever goes wrong on purpose."""
        run = super().main
        name = f"python -m zq.spark.jobs.{self.name}"
        run_to_exit(lambda: run(args, **{**options, "prog_name": name, "standalone_mode": False}))

    def invoke(self, ctx: click.Context) -> Any:
        """Run with a session of the options above in the context."""
        listen()
        given = {name: ctx.params.pop(name) for option in CONNECTING if (name := option.name)}
        as_json = given.pop("as_json")
        ctx.obj = Session({**given, "tables": None if as_json is None else not as_json})
        ctx.call_on_close(ctx.obj.close)
        try:
            return super().invoke(ctx)
        except (ZqError, OSError) as error:
            raise failure(error) from error
        except SPARKS as error:
            raise failure(reason(error)) from error


def source(session: Session) -> dict[str, str]:
    """What ``format("zq")`` needs to be told to speak to the session's server."""
    place = session.connection
    given = {"url": place.url, "project": place.project, "token": place.token, "clientId": place.client_id}
    return {name: value for name, value in given.items() if value} | {"retryFor": str(int(session.retry_for))}
