# SPDX-License-Identifier: Apache-2.0
"""``zq consume``: messages to commands, or to standard output, each deleted when its work has succeeded."""

import shlex
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import click
import msgspec
from msgspec import Struct

from zq.cli.commands import Commands, at_second_signal
from zq.cli.failures import INTERRUPTED, Failure
from zq.cli.messages import queue_argument
from zq.cli.output import note
from zq.cli.session import Command, Session, pass_session
from zq.cli.values import CLAIM_TTL, DELAY, Count
from zq.client import Claim, Delivery, Message, Queue
from zq.client.handles import Consuming
from zq.client.stopping import told_to_stop
from zq.errors import ClaimNotFound, ZqError

LOOK: Final = 5
"""Seconds that one request waits for messages: so soon a stop is noticed."""


class Tally:
    """How much was done, by several threads. ``undone``: what failed and was not done later, if that is ``wanted``."""

    def __init__(self, wanted: bool) -> None:
        self.done = 0
        self.failed = 0
        self.undone: set[str] = set()
        self._wanted = wanted
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.done:,} done, {self.failed:,} given back."

    def add(self, messages: Sequence[Message], done: bool) -> None:
        """The work on messages has ended."""
        ids = [message.id for message in messages]
        with self._lock:
            if done:
                self.done += len(ids)
                self.undone.difference_update(ids)
            else:
                self.failed += len(ids)
                self.undone.update(ids if self._wanted else ())


class Manner(Struct, frozen=True):
    """How whole claims are worked on; ``most_delay`` bounds the back-off. Seconds, but ``limit``."""

    words: list[str]
    limit: int
    wait: int
    ttl: int
    backoff: int
    most_delay: int
    until_empty: bool


@click.command("consume", cls=Command)
@queue_argument
@click.option("--exec", "line", metavar="CMD", help="Run for each message, body on standard input, {} is its id.")
@click.option("--batch", "whole", is_flag=True, help="CMD gets whole claims as JSON lines; {} is the claim.")
@click.option("--concurrency", type=Count(1, 256), default=4, help="Commands at once; 4.")
@click.option("--limit", type=Count(1), help="Messages in a claim; 10, with --batch and without CMD 1,000.")
@click.option("--ttl", type=CLAIM_TTL, default=300, metavar="SECONDS", help="Of a claim; it is renewed; 300.")
@click.option("--wait", type=Count(0), metavar="SECONDS", help="How long a look waits; 20, --until-empty 1.")
@click.option("--backoff", type=DELAY, default=5, metavar="SECONDS", help="After a failure, doubling; 5.")
@click.option("--until-empty", is_flag=True, help="End when nothing is left.")
@pass_session
def consume(
    session: Session,
    queue: str,
    line: str | None,
    whole: bool,
    concurrency: int,
    limit: int | None,
    ttl: int,
    wait: int | None,
    backoff: int,
    until_empty: bool,
) -> None:
    """Run a command for each message.

    If CMD exits with 0 the message is deleted, else it is given back for a while.

    CMD is no line of a shell: use "sh -c '...'" for one. Without --exec messages go to standard output as JSON lines.
    SIGTERM ends it after the work in hand. With --until-empty the exit code is 1 if a message was not done in the end.
    """
    session.patient = True
    words, handle = command_words(line), session.queue(queue)
    wait = wait if wait is not None else 1 if until_empty else 20
    batch = limit or (10 if words and not whole else 1000)
    if whole and not words:
        raise click.UsageError("--batch needs --exec.")
    if whole:
        bounds = session.client.limits()
        batch = min(batch, bounds["max_messages_per_claim_or_pop"])
        manner = Manner(words, batch, wait, ttl, backoff, bounds["max_message_delay"], until_empty)
        watched(until_empty, partial(work_on_claims, handle, manner, concurrency))
        return
    how = Consuming(batch=batch, ttl=ttl, wait=wait, backoff=backoff, until_empty=until_empty, on_lost=tell_lost)
    if words:
        watched(until_empty, partial(work_on_messages, handle, words, concurrency, how))
        return
    for message in handle.consume(**how):
        session.out.line(message)


def watched(until_empty: bool, work: Callable[[Commands, Tally], None]) -> None:
    """Do it, and say in the end how much was done."""
    commands, tally = Commands(), Tally(until_empty)
    with at_second_signal(commands.kill):
        work(commands, tally)
    if tally.undone:
        raise Failure(str(tally), INTERRUPTED if commands.killed else 1)
    note(str(tally))
    if commands.killed:
        raise click.Abort


def command_words(line: str | None) -> list[str]:
    """The command with its arguments; none without one. Raises ``UsageError`` if there is no such command."""
    try:
        words = shlex.split(line or "")
    except ValueError as error:
        raise click.UsageError(f"--exec cannot be read: {error}.") from error
    if line is not None and (not words or shutil.which(words[0]) is None):
        raise click.UsageError(f"There is no command {words[0] if words else line!r}.")
    return words


def tell_lost(lost: Sequence[Message]) -> None:
    """Say that others may work on messages, too."""
    note(f"The claim of {len(lost)} messages was over before they were settled; they may be worked on twice.")


def work_on_messages(
    queue: Queue, words: list[str], concurrency: int, how: Consuming, commands: Commands, tally: Tally
) -> None:
    """A command for each message."""

    def handler(message: Delivery) -> None:
        code = None
        try:
            code = commands.run(filled(words, message.id), message.content)
        finally:
            tally.add([message], done=code == 0)
        if code:
            raise Failure(f"The command ended with {code}.")

    queue.work(handler, concurrency, **how)


def filled(words: Sequence[str], name: str) -> list[str]:
    """The command, told what it works on."""
    return [word.replace("{}", name) for word in words]


def work_on_claims(queue: Queue, manner: Manner, concurrency: int, commands: Commands, tally: Tally) -> None:
    """So many loops at once, until told to stop or nothing is left."""
    stopped = threading.Event()
    with told_to_stop(stopped.set), ThreadPoolExecutor(concurrency, "zq-work") as pool:
        loops = [pool.submit(loop, queue, manner, commands, tally, stopped) for _ in range(concurrency)]
        try:
            for one in loops:
                one.result()
        finally:
            stopped.set()


def loop(queue: Queue, manner: Manner, commands: Commands, tally: Tally, stopped: threading.Event) -> None:
    """Claim, run, settle."""
    idle = 0
    while not stopped.is_set():
        wait = min(LOOK, manner.wait - idle if manner.until_empty else manner.wait)
        begun = time.monotonic()
        claim = queue.claim(manner.limit, ttl=manner.ttl, wait=wait)
        if claim.messages and stopped.is_set():
            queue.release(claim.id)
            return
        if claim.messages:
            idle = 0
            work_on_claim(queue, claim, manner, commands, tally)
            continue
        idle += wait
        if manner.until_empty and idle >= manner.wait:
            return
        if time.monotonic() - begun < wait / 2 or not wait:
            stopped.wait(1)  # the server has no place for those who wait


def work_on_claim(queue: Queue, claim: Claim, manner: Manner, commands: Commands, tally: Tally) -> None:
    """One run of the command, the claim being renewed meanwhile."""
    lines = b"".join(msgspec.json.encode(message) + b"\n" for message in claim.messages)
    code = None
    try:
        code = commands.run(filled(manner.words, claim.id), lines, manner.ttl / 3, partial(renew, queue, claim, manner))
    finally:
        tally.add(claim.messages, done=code == 0)
        if code is None:  # it cannot be started
            queue.release(claim.id)
    try:
        if code == 0:
            queue.settle(claim.id, delete="*")
            return
        note(f"The command ended with {code}; {len(claim.messages)} messages go back.")
        doublings = min(max(message.claim_count for message in claim.messages), 20) - 1
        queue.release(claim.id, delay=min(manner.backoff << max(doublings, 0), manner.most_delay))
    except ClaimNotFound:
        tell_lost(claim.messages)


def renew(queue: Queue, claim: Claim, manner: Manner) -> None:
    """For another ttl."""
    try:
        queue.renew(claim.id, ttl=manner.ttl)
    except ZqError as error:
        note(f"The claim {claim.id} could not be renewed: {error}")
