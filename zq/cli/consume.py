# SPDX-License-Identifier: Apache-2.0
"""``zq consume``: messages to commands, or to standard output, each deleted when its work has succeeded.

What was written into a pipe may never be read: there a message is done when its reader has it, as far as can be seen.
"""

import os
import select
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import UnsupportedOperation
from typing import Any, Final

import click
from msgspec import Struct

from zq.cli.command import RunningCommands, command_words, on_second_signal
from zq.cli.consume_batch import BatchOptions, BatchWorker, fill_placeholder, note_lost
from zq.cli.failures import INTERRUPTED, Failure
from zq.cli.messages import queue_argument
from zq.cli.output import note
from zq.cli.param_types import CLAIM_TTL, DELAY, Count
from zq.cli.progress import WorkCounts, live_line
from zq.cli.session import Command, Session, pass_session
from zq.client import Delivery, Queue
from zq.client.handles import Consuming

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Bytes of the smallest pipe.
PAGE: Final = 4096
# Milliseconds between two checks whether a wait is still wanted.
POLL_MS: Final = 500
# Seconds between two checks of a pipe that could not be made small.
PAUSE: Final = 0.001


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
def consume(session: Session, /, queue: str, **chosen: Any) -> None:
    """Run a command for each message.

    If CMD exits with 0 the message is deleted, else it is given back for a while.

    CMD is no line of a shell, unless --shell says so. Without --exec messages go to standard output as JSON lines.
    SIGTERM ends it after the work in hand. With --until-empty or --count the exit code is 1 if a message was not done
    in the end.
    """
    options = ConsumeOptions(**chosen)
    if options.line is None and (options.whole or options.shell):
        raise click.UsageError("--batch and --shell need --exec.")
    session.configure(patient=True)
    words = command_words(options.line, options.shell) if options.line is not None else []
    if not options.until_empty and not session.queue(queue).exists():
        note(f"{session.missing(queue)} Waiting for it.")
    counts = WorkCounts(options.until_empty or options.count is not None, options.max_failures)
    if words:
        run_commands(session, queue, words, options, counts)
    else:
        print_messages(session, session.queue(queue), options.consuming(words), counts)
        if options.until_empty and counts.empty:
            session.check_exists(queue)


class ConsumeOptions(Struct, frozen=True):
    """The options of ``zq consume``; ``line``: the command, ``whole``: it gets whole claims."""

    line: str | None
    shell: bool
    whole: bool
    count: int | None
    concurrency: int
    limit: int | None
    ttl: int
    wait: int | None
    backoff: int
    max_failures: int
    until_empty: bool

    @property
    def waiting(self) -> int:
        """Seconds that a claim waits."""
        return self.wait if self.wait is not None else 1 if self.until_empty else 20

    def batch(self, words: list[str]) -> int:
        """Messages of a claim."""
        return self.limit or (10 if words and not self.whole else 1000)

    def consuming(self, words: list[str]) -> Consuming:
        """The same as options of ``Queue.consume``."""
        return Consuming(
            batch=self.batch(words),
            ttl=self.ttl,
            wait=self.waiting,
            backoff=self.backoff,
            until_empty=self.until_empty,
            count=self.count,
            on_lost=note_lost,
        )

    def whole_claims(self, words: list[str], limits: Mapping[str, int]) -> BatchOptions:
        """The same for whole claims, as far as a server with these limits allows."""
        return BatchOptions(
            words,
            min(self.batch(words), limits["max_messages_per_claim_or_pop"]),
            self.waiting,
            self.ttl,
            self.backoff,
            limits["max_message_delay"],
            self.until_empty,
            self.count,
        )


def run_commands(session: Session, queue: str, words: list[str], options: ConsumeOptions, counts: WorkCounts) -> None:
    """Run the command for each message or each claim, and end with the exit code for what was done."""
    handle, commands = session.queue(queue), RunningCommands()
    if options.whole:
        worker = BatchWorker(handle, options.whole_claims(words, session.client.limits()), commands, counts)
        work = partial(worker.run, options.concurrency)
    else:
        work = partial(work_on_messages, handle, words, options, commands, counts)
    with on_second_signal(commands.kill), live_line(counts, wanted=True):
        work()
    if options.until_empty and counts.empty:
        session.check_exists(queue)
    finish(counts, commands)


def finish(counts: WorkCounts, commands: RunningCommands) -> None:
    """Say how much was done, and end with the exit code for that."""
    if counts.undone and commands.killed:
        raise Failure(str(counts), INTERRUPTED)
    if counts.failed_too_often and not commands.killed:
        raise Failure(f"CMD failed {counts.failures:,} times in a row, so this ends (--max-failures): {counts}")
    if counts.undone:
        raise Failure(str(counts))
    note(str(counts))
    if commands.killed:
        raise click.Abort


def work_on_messages(
    queue: Queue, words: list[str], options: ConsumeOptions, commands: RunningCommands, counts: WorkCounts
) -> None:
    """Run the command for each message."""
    consumer = queue.consume(**options.consuming(words))

    def handler(message: Delivery) -> None:
        code = None
        try:
            code = commands.run(fill_placeholder(words, message.id), message.content)
        finally:
            counts.add([message], done=code == 0)
            if counts.failed_too_often:
                consumer.stop()
        if code:
            raise Failure(f"The command ended with {code}.")

    counts.give_back(consumer.work(handler, options.concurrency).unstarted)


def print_messages(session: Session, queue: Queue, options: Consuming, counts: WorkCounts) -> None:
    """Print messages; each is done when it has been written and, as far as that can be seen, read."""
    consumer = queue.consume(**options)
    live = live_line(counts, wanted=not sys.stdout.isatty())
    with reader_of_output(consumer.stop) as reader, live, consumer as messages:
        for message in messages:
            message.release()  # the last decision counts
            session.out.line(message)
            if not reader.has_all(lambda: consumer.stopped):
                break
            message.done()
            counts.add([message], done=True)


class OutputReader:
    """The reader of a pipe; without a pipe all that was written counts as read."""

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def has_all(self, stopped: Callable[[], bool]) -> bool:
        """Waits until all that was written has been read; False if the reader is gone, or ``stopped`` says so."""
        while self._pipe is not None and unread(self._pipe):
            room = select.poll()
            room.register(self._pipe, select.POLLOUT)
            # A pipe of one page has room again when the page has been read.
            events = dict(room.poll(POLL_MS)).get(self._pipe, 0)
            if events & select.POLLERR or stopped():
                return not unread(self._pipe)
            if events:
                time.sleep(PAUSE)
        return True


@contextmanager
def reader_of_output(gone: Callable[[], object]) -> Generator[OutputReader, None, None]:
    """The reader of standard output; ``gone`` is called when it goes away, even if nothing is written meanwhile.

    The pipe has a single page meanwhile, so that the reader is seen to take each line.
    """
    pipe, ended = output_pipe(), threading.Event()
    if pipe is None:
        yield OutputReader(None)
        return
    watching = threading.Thread(target=watch_reader, args=(pipe, gone, ended), name="zq-reader", daemon=True)
    watching.start()
    before = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PAGE)
    try:
        yield OutputReader(pipe)
    finally:
        ended.set()
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, before)


def watch_reader(pipe: int, gone: Callable[[], object], ended: threading.Event) -> None:
    """Waits until the reader of a pipe is gone, which the kernel signals as an error."""
    errors = select.poll()
    errors.register(pipe, 0)
    while not ended.is_set():
        if errors.poll(POLL_MS):
            gone()
            ended.wait(POLL_MS / 1000)  # a loop that had not begun yet did not notice


def output_pipe() -> int | None:
    """The file descriptor of standard output, if it is a pipe whose unread bytes can be counted: on Linux alone."""
    with suppress(OSError, UnsupportedOperation):
        output = sys.stdout.fileno()
        if fcntl and sys.platform == "linux" and stat.S_ISFIFO(os.fstat(output).st_mode):
            unread(output)
            return output
    return None


def unread(pipe: int) -> int:
    """Bytes that were written and not read."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)
