# SPDX-License-Identifier: Apache-2.0
"""The command ``zq``: its global options, its commands, and the edge where errors become sentences and exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zq import __version__
from zq.cli import (
    account,
    bench,
    consume,
    context,
    export_import,
    history,
    jobs,
    messages,
    pipeline,
    post,
    subscriptions,
    top,
    topics,
)
from zq.cli.failures import Failure, exit_code, failure, run_to_exit
from zq.cli.names import completion
from zq.cli.resources import queue_group, topic_group
from zq.cli.session import Group, Session, given, lines_of, listen, origins
from zq.errors import Invalid, ZqError

# Examples below the program's help.
EXAMPLES = (
    "zq --project acme post jobs '{\"order\": 1}'",
    "zq --project acme consume jobs --exec ./handle-order",
    "zq context set work url=http://localhost:8888 project=acme",
    "zq queue list",
)


class Root(Group):
    """The program: every deliberate failure ends with a sentence and a code."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        """Run, and exit."""
        given = [*(sys.argv[1:] if args is None else args)]
        run = super().main

        def checked() -> Any:
            check_text({f"{text!a}": text for text in given})
            check_text({name: value for name, value in os.environ.items() if name.startswith("ZQ_")})
            return run(given, **{**options, "prog_name": "zq", "standalone_mode": False})

        run_to_exit(checked)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In sections, each command with its sentence; the examples come last."""
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(lines_of(commands, width))
        with formatter.section("Examples"):
            formatter.write_dl([(line, "") for line in EXAMPLES])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            leave_output()  # its reader has seen enough
            return 0
        except RecursionError as error:
            raise Failure("The JSON is nested too deep.", exit_code(Invalid())) from error
        except (ZqError, OSError) as error:
            raise failure(error) from error


def leave_output() -> None:
    """Discard what is still to be written, since its reader is gone: the program then ends without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def check_text(given: Mapping[str, str]) -> None:
    """Raises ``UsageError`` with its name for bytes that are no text: they cannot be sent, noted or shown."""
    for name, text in given.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise click.UsageError(f"{name} is not UTF-8.") from error


@click.group("zq", cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="zq %(version)s")
@click.pass_context
def cli(run: click.Context) -> None:
    """Queues and topics of a zq server.

    The options below may stand behind the command's name too; the last one given wins.
    """
    listen()
    run.obj = Session(given(run), origins(run))
    run.call_on_close(run.obj.close)


# All commands, as the help shows them.
SECTIONS: dict[str, list[click.Command]] = {
    "Queues and topics": [queue_group, topic_group, topics.tail],
    "Messages": [post.post, messages.list_messages, messages.get, messages.find, messages.pop],
    "Work": [
        consume.consume,
        messages.claim,
        messages.list_claims,
        messages.settle,
        messages.move,
        messages.release,
        pipeline.pipeline_group,
    ],
    "Deliveries": [subscriptions.subscription_group, subscriptions.deliveries_group],
    "What has been": [history.dlq_group, history.history, history.replay, history.audit],
    "Watching": [account.console, top.health, top.top, jobs.jobs_group, bench.bench],
    "Files": [export_import.export, export_import.import_file],
    "Rights": [account.login, account.logout, account.whoami, account.token_group, account.share, account.quota],
    "Settings": [context.context_group, completion],
}
for section in SECTIONS.values():
    for command in section:
        cli.add_command(command)
