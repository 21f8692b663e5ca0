# SPDX-License-Identifier: Apache-2.0
"""The root command ``zq`` with its subcommands, and the translation of errors into messages and exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from zq import __version__
from zq.cli import (
    account,
    apply,
    bench,
    canary,
    consume,
    context,
    doctor,
    export_import,
    history,
    jobs,
    messages,
    pipeline,
    pools,
    post,
    subscriptions,
    top,
)
from zq.cli.failures import Failure, exit_code, failure, run_to_exit
from zq.cli.names import completion
from zq.cli.resources import queue_group, tail, topic_group
from zq.cli.session import Group, Session, help_rows, option_origins, option_values, print_client_logs
from zq.errors import Invalid, ZqError

# Examples at the end of the root command's help.
EXAMPLES = (
    "zq --project acme post jobs '{\"order\": 1}'",
    "zq --project acme consume jobs --exec ./handle-order",
    "zq context set work url=http://localhost:8888 project=acme",
    "zq queue list",
)


class Root(Group):
    """The root command, which converts expected errors into messages and exit codes."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        given = [*(sys.argv[1:] if args is None else args)]
        run = super().main

        def checked() -> Any:
            check_text({f"{text!a}": text for text in given})
            check_text({name: value for name, value in os.environ.items() if name.startswith("ZQ_")})
            return run(given, **{**options, "prog_name": "zq", "standalone_mode": False})

        run_to_exit(checked)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, and the examples."""
        width = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(help_rows(commands, width))
        with formatter.section("Examples"):
            formatter.write_dl([(line, "") for line in EXAMPLES])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            return 0
        except RecursionError as error:
            raise Failure("The JSON is nested too deeply.", exit_code(Invalid())) from error
        except (ZqError, OSError) as error:
            raise failure(error) from error


def discard_output() -> None:
    """Discard buffered output after a broken pipe, so that Python reports no error when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def check_text(given: Mapping[str, str]) -> None:
    """Raise ``UsageError`` for a value that is not valid UTF-8."""
    for name, text in given.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise click.UsageError(f"{name} is not UTF-8.") from error


@click.group("zq", cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", message="zq %(version)s")
@click.pass_context
def cli(run: click.Context) -> None:
    """Work with the queues and topics of a zq server.

    The options below are global: they may also follow the name of a command. If an option is repeated, the last value
    applies.
    """
    print_client_logs()
    run.obj = Session(option_values(run), option_origins(run))
    run.call_on_close(run.obj.close)


# All commands, in the order of the help.
SECTIONS: dict[str, list[click.Command]] = {
    "Queues and topics": [queue_group, topic_group, tail, pools.move_queue],
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
    "History": [history.dlq_group, history.history, history.replay, history.audit],
    "Monitoring": [account.console, doctor.doctor, top.health, top.top, jobs.jobs_group, bench.bench, canary.canary],
    "Files": [export_import.export, export_import.import_file, apply.apply],
    "Access": [account.login, account.logout, account.whoami, account.token_group, account.share, account.quota],
    "Settings": [context.context_group, completion],
}
for section in SECTIONS.values():
    for command in section:
        cli.add_command(command)
