# SPDX-License-Identifier: Apache-2.0
"""The command ``zq``: its global options, its commands, and the edge where errors become sentences and exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from zq import __version__
from zq.cli import bench, consume, messages, past, pipeline, post, topics, transfer, watch
from zq.cli.completion import completion
from zq.cli.failures import Failure, exit_code, failure, run_to_exit
from zq.cli.named import queue_group, topic_group
from zq.cli.session import Group, Session, listen
from zq.cli.values import Seconds
from zq.errors import Invalid, ZqError


class Root(Group):
    """Ends with a sentence and a code, whatever goes wrong on purpose."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        """Run, and exit."""
        given = [*(sys.argv[1:] if args is None else args)]
        run = super().main

        def checked() -> Any:
            check_text({f"{text!a}": text for text in given})
            check_text({name: value for name, value in os.environ.items() if name.startswith("ZQ_")})
            return run(given, **{**options, "prog_name": "zq", "standalone_mode": False})

        run_to_exit(checked)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # who reads has seen enough: click ends the program
        except RecursionError as error:
            raise Failure("The JSON is nested too deep.", exit_code(Invalid())) from error
        except (ZqError, OSError) as error:
            raise failure(error) from error


def check_text(given: Mapping[str, str]) -> None:
    """Raises ``UsageError`` with its name for bytes that are no text: they cannot be sent, noted or shown."""
    for name, text in given.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise click.UsageError(f"{name} is not UTF-8.") from error


@click.group("zq", cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--url", envvar="ZQ_URL", metavar="URL", help="The server; http://localhost:8888.")
@click.option("--project", envvar="ZQ_PROJECT", metavar="NAME", help="The project that holds queues and topics.")
@click.option("--token", envvar="ZQ_TOKEN", metavar="TEXT", help="Sent as X-Auth-Token.")
@click.option("--client-id", envvar="ZQ_CLIENT_ID", metavar="UUID", help="Who posts; a fresh one for each run.")
@click.option(
    "--profile", envvar="ZQ_PROFILE", metavar="NAME", help="Which profile of the file gives what is left open."
)
@click.option(
    "--config",
    envvar="ZQ_CONFIG",
    type=click.Path(path_type=Path),
    help="The file of profiles; ~/.config/zq/config.toml.",
)
@click.option("--retry", type=Seconds(0), metavar="SECONDS", help="For how long trouble that passes is sat out.")
@click.option("--json/--table", "as_json", default=None, help="JSON lines or tables; tables on a terminal.")
@click.option("-v", "--verbose", is_flag=True, help="Show each request on standard error.")
@click.version_option(__version__, "-V", "--version", message="zq %(version)s")
@click.pass_context
def cli(context: click.Context, /, as_json: bool | None, verbose: bool, **options: Any) -> None:
    """Queues and topics of a zq server.

    --json, --table and -v may stand behind the command's name too.
    """
    listen()
    session = Session({**options, "tables": None if as_json is None else not as_json})
    if verbose:
        session.show_requests()
    context.obj = session
    context.call_on_close(session.close)


COMMANDS = (
    *(queue_group, topic_group, post.post, consume.consume, topics.tail),
    *(messages.list_messages, messages.get, messages.pop),
    *(messages.claim, messages.settle, messages.move, messages.release),
    *(past.dlq_group, past.history, past.replay, watch.health, watch.top),
    *(pipeline.pipeline_group, bench.bench, transfer.export, transfer.import_file, completion),
)
for command in COMMANDS:
    cli.add_command(command)
