# SPDX-License-Identifier: Apache-2.0
"""``zq consume``: messages to commands, or to standard output, each deleted when its work has succeeded."""

import sys
from functools import partial

import click

from zq.cli.claims import Manner, filled, tell_lost, work_on_claims
from zq.cli.commands import Commands, at_second_signal
from zq.cli.failures import INTERRUPTED, Failure
from zq.cli.messages import queue_argument
from zq.cli.missing import check_there, missing
from zq.cli.output import note
from zq.cli.reader import reader_of_output
from zq.cli.session import Command, Session, pass_session
from zq.cli.shell import command_words
from zq.cli.tally import Tally, live_line
from zq.cli.values import CLAIM_TTL, DELAY, Count
from zq.client import Delivery, Queue
from zq.client.handles import Consuming


@click.command("consume", cls=Command)
@queue_argument
@click.option("--exec", "line", metavar="CMD", help="Run for each message, body on standard input, {} is its id.")
@click.option("--shell", is_flag=True, help='CMD is a line that /bin/sh reads; {} stands for its "$1".')
@click.option("--batch", "whole", is_flag=True, help="CMD gets whole claims as JSON lines; {} is the claim.")
@click.option("--count", type=Count(1), help="End after so many messages, and claim no more of them.")
@click.option("--concurrency", type=Count(1, 256), default=4, help="Commands at once; 4.")
@click.option("--limit", type=Count(1), help="Messages in a claim; 10, with --batch and without CMD 1,000.")
@click.option("--ttl", type=CLAIM_TTL, default=300, metavar="SECONDS", help="Of a claim; it is renewed; 300.")
@click.option("--wait", type=Count(0), metavar="SECONDS", help="How long a claim waits; 20, --until-empty 1.")
@click.option("--backoff", type=DELAY, default=5, metavar="SECONDS", help="After a failure, doubling; 5.")
@click.option("--max-failures", type=Count(0), default=20, help="End when CMD fails so often in a row; 20, 0 = never.")
@click.option("--until-empty", is_flag=True, help="End when nothing is left.")
@pass_session
def consume(
    session: Session,
    queue: str,
    line: str | None,
    shell: bool,
    whole: bool,
    count: int | None,
    concurrency: int,
    limit: int | None,
    ttl: int,
    wait: int | None,
    backoff: int,
    max_failures: int,
    until_empty: bool,
) -> None:
    """Run a command for each message.

    If CMD exits with 0 the message is deleted, else it is given back for a while.

    CMD is no line of a shell, unless --shell says so. Without --exec messages go to standard output as JSON lines.
    SIGTERM ends it after the work in hand. With --until-empty or --count the exit code is 1 if a message was not done
    in the end.
    """
    if line is None and (whole or shell):
        raise click.UsageError("--batch and --shell need --exec.")
    session.patient = True
    words, handle = command_words(line, shell) if line is not None else [], session.queue(queue)
    wait = wait if wait is not None else 1 if until_empty else 20
    batch = limit or (10 if words and not whole else 1000)
    how = Consuming(
        batch=batch, ttl=ttl, wait=wait, backoff=backoff, until_empty=until_empty, count=count, on_lost=tell_lost
    )
    tally, commands = Tally(until_empty or count is not None, max_failures), Commands()
    if not until_empty and not handle.exists():
        note(f"{missing(session, queue)} Waiting for it.")
    if whole:
        bounds = session.client.limits()
        batch = min(batch, bounds["max_messages_per_claim_or_pop"])
        manner = Manner(words, batch, wait, ttl, backoff, bounds["max_message_delay"], until_empty, count)
        work = partial(work_on_claims, handle, manner, concurrency)
    else:
        work = partial(work_on_messages, handle, words, concurrency, how)
    if words:
        with at_second_signal(commands.kill), live_line(tally, wanted=True):
            work(commands, tally)
    else:
        print_messages(session, handle, how, tally)
    if until_empty and tally.empty:
        check_there(session, queue)
    if words:
        conclude(tally, commands)


def conclude(tally: Tally, commands: Commands) -> None:
    """Say how much was done, and end with the exit code for that."""
    if tally.undone and commands.killed:
        raise Failure(str(tally), INTERRUPTED)
    if tally.hopeless and not commands.killed:
        raise Failure(f"CMD failed {tally.failures:,} times in a row, so this ends (--max-failures): {tally}")
    if tally.undone:
        raise Failure(str(tally))
    note(str(tally))
    if commands.killed:
        raise click.Abort


def work_on_messages(
    queue: Queue, words: list[str], concurrency: int, how: Consuming, commands: Commands, tally: Tally
) -> None:
    """A command for each message."""
    consumer = queue.consume(**how)

    def handler(message: Delivery) -> None:
        code = None
        try:
            code = commands.run(filled(words, message.id), message.content)
        finally:
            tally.add([message], done=code == 0)
            if tally.hopeless:
                consumer.stop()
        if code:
            raise Failure(f"The command ended with {code}.")

    tally.give_back(consumer.work(handler, concurrency).unstarted)


def print_messages(session: Session, queue: Queue, how: Consuming, tally: Tally) -> None:
    """Each is done when it has been written out and, as far as that can be seen, read."""
    consumer = queue.consume(**how)
    live = live_line(tally, wanted=not sys.stdout.isatty())
    with reader_of_output(consumer.stop) as reader, live, consumer as messages:
        for message in messages:
            message.release()  # the last word holds
            session.out.line(message)
            if not reader.has_all(lambda: consumer.stopped):
                break
            message.done()
            tally.add([message], done=True)
