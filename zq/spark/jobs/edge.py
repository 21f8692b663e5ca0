# SPDX-License-Identifier: Apache-2.0
"""What the jobs have in common with the command line ``zq``: where the server is, and how results and errors look."""

from collections.abc import Sequence
from typing import Any

import click

from zq.cli.failures import failure, run_to_exit
from zq.cli.options import given
from zq.cli.session import Command, Session, listen
from zq.errors import ZqError
from zq.spark.failures import SPARKS, reason


class Job(Command):
    """A program of its own, which takes the global options of ``zq``."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        """Run, and exit with a sentence and a code, whatever goes wrong on purpose."""
        run = super().main
        name = f"python -m zq.spark.jobs.{self.name}"
        run_to_exit(lambda: run(args, **{**options, "prog_name": name, "standalone_mode": False}))

    def invoke(self, ctx: click.Context) -> Any:
        """Run with a session in the context, which sits trouble out for long."""
        listen()
        ctx.obj = Session(given(ctx))
        ctx.obj.patient = True
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
