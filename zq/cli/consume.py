# SPDX-License-Identifier: Apache-2.0
"""The command ``zq consume``, which passes messages to external commands or writes them to standard output.

A message is deleted after it was written. If standard output is a pipe on Linux, the message is deleted only after the
process at the other end of the pipe has read it, because unread data is lost if that process exits.
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

from zq.cli.command import RunningCommands, on_second_signal, split_command
from zq.cli.consume_batch import BatchOptions, BatchWorker, fill_placeholder, note_lost
from zq.cli.failures import INTERRUPTED, Failure
from zq.cli.messages import queue_argument
from zq.cli.output import note
from zq.cli.param_types import CLAIM_TTL, DELAY, Count
from zq.cli.progress import WorkCounts, show_counts
from zq.cli.session import Command, Session, pass_session
from zq.client import Delivery, Queue
from zq.client.handles import ConsumeArguments

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Minimum capacity of a pipe in bytes.
MIN_PIPE_SIZE: Final = 4096
# Interval in milliseconds at which a waiting thread checks whether to stop.
POLL_MS: Final = 500
# Poll interval in seconds for a pipe whose capacity could not be reduced to one page.
PIPE_POLL_PAUSE: Final = 0.001


@click.command("consume", cls=Command)
@queue_argument
@click.option(
    "--exec",
    "line",
    metavar="CMD",
    help="Command to run for each message. It receives the body on standard input; {} is replaced by the id.",
)
@click.option("--shell", is_flag=True, help='Run CMD through /bin/sh; {} is replaced by "$1", which holds the id.')
@click.option(
    "--batch", "whole", is_flag=True, help="Pass whole claims to CMD as JSON lines; {} is replaced by the claim's id."
)
@click.option("--count", type=Count(1), help="Stop after this number of messages.")
@click.option("--concurrency", type=Count(1, 256), default=4, help="Concurrent commands (default 4).")
@click.option("--limit", type=Count(1), help="Messages per claim (default 10; 1,000 with --batch or without --exec).")
@click.option(
    "--ttl",
    type=CLAIM_TTL,
    default=300,
    metavar="SECONDS",
    help="Claim TTL (default 300). While CMD runs, the claim is renewed.",
)
@click.option(
    "--wait",
    type=Count(0),
    metavar="SECONDS",
    help="Seconds to wait for messages in each claim (default 20; 1 with --until-empty).",
)
@click.option(
    "--backoff",
    type=DELAY,
    default=5,
    metavar="SECONDS",
    help="Delay after the first failure (default 5). Each further failure doubles the delay.",
)
@click.option(
    "--max-failures",
    type=Count(0),
    default=20,
    help="Stop after this number of consecutive failures of CMD (default 20; 0 = no limit).",
)
@click.option("--until-empty", is_flag=True, help="Stop when the queue is empty.")
@pass_session
def consume(session: Session, /, queue: str, **chosen: Any) -> None:
    """Run a command for each message.

    If CMD exits with 0, the message is deleted. If CMD fails, the message is redelivered after a delay. CMD is not run
    through a shell unless you pass --shell. Without --exec, messages are written to standard output as JSON lines.

    SIGTERM ends the command after the current messages. With --until-empty or --count, the exit code is 1 if a message
    was not processed successfully.
    """
    options = ConsumeOptions(**chosen)
    if options.line is None and (options.whole or options.shell):
        raise click.UsageError("--batch and --shell require --exec.")
    session.configure(patient=True)
    words = split_command(options.line, options.shell) if options.line is not None else []
    if not options.until_empty and not session.queue(queue).exists():
        note(f"{session.missing_error(queue)} Waiting for it.")
    counts = WorkCounts(options.until_empty or options.count is not None, options.max_failures)
    if words:
        run_commands(session, queue, words, options, counts)
    else:
        print_messages(session, session.queue(queue), options.consumer_options(words), counts)
        if options.until_empty and counts.is_empty:
            session.check_exists(queue)


class ConsumeOptions(Struct, frozen=True):
    """The options of ``zq consume``.

    ``limit`` is the maximum number of messages per claim. ``count`` is the maximum number of messages in total.
    """

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
    def claim_wait(self) -> int:
        """Seconds for which a claim waits for messages."""
        return self.wait if self.wait is not None else 1 if self.until_empty else 20

    def claim_size(self, words: list[str]) -> int:
        return self.limit or (10 if words and not self.whole else 1000)

    def consumer_options(self, words: list[str]) -> ConsumeArguments:
        return ConsumeArguments(
            batch=self.claim_size(words),
            ttl=self.ttl,
            wait=self.claim_wait,
            backoff=self.backoff,
            until_empty=self.until_empty,
            count=self.count,
            on_lost=note_lost,
        )

    def batch_options(self, words: list[str], limits: Mapping[str, int]) -> BatchOptions:
        """Return the options of a ``BatchWorker``, with claim sizes and delays capped at the server's ``limits``."""
        return BatchOptions(
            words,
            min(self.claim_size(words), limits["max_messages_per_claim_or_pop"]),
            self.claim_wait,
            self.ttl,
            self.backoff,
            limits["max_message_delay"],
            self.until_empty,
            self.count,
        )


def run_commands(session: Session, queue: str, words: list[str], options: ConsumeOptions, counts: WorkCounts) -> None:
    """Run the external command for each message or claim until the consumer stops, then print the counts."""
    handle, commands = session.queue(queue), RunningCommands()
    if options.whole:
        worker = BatchWorker(handle, options.batch_options(words, session.client.limits()), commands, counts)
        work = partial(worker.run, options.concurrency)
    else:
        work = partial(work_on_messages, handle, words, options, commands, counts)
    with on_second_signal(commands.kill), show_counts(counts, is_enabled=True):
        work()
    if options.until_empty and counts.is_empty:
        session.check_exists(queue)
    finish(counts, commands)


def finish(counts: WorkCounts, commands: RunningCommands) -> None:
    """Print the counts of the messages. If messages have failed, raise ``Failure`` with the counts instead.

    If commands were killed but no messages have failed, print the counts and raise ``Abort``.
    """
    if counts.unhandled_ids and commands.killed:
        raise Failure(str(counts), INTERRUPTED)
    if counts.has_failed_too_often and not commands.killed:
        raise Failure(f"CMD failed {counts.failures:,} times in a row, which is the limit (--max-failures): {counts}")
    if counts.unhandled_ids:
        raise Failure(str(counts))
    note(str(counts))
    if commands.killed:
        raise click.Abort


def work_on_messages(
    queue: Queue, words: list[str], options: ConsumeOptions, commands: RunningCommands, counts: WorkCounts
) -> None:
    consumer = queue.consume(**options.consumer_options(words))

    def handler(message: Delivery) -> None:
        code = None
        try:
            code = commands.run(fill_placeholder(words, message.id), message.content)
        finally:
            counts.add([message], done=code == 0)
            if counts.has_failed_too_often:
                consumer.stop()
        if code:
            raise Failure(f"The command exited with {code}.")

    counts.add_unstarted(consumer.work(handler, options.concurrency).unstarted)


def print_messages(session: Session, queue: Queue, options: ConsumeArguments, counts: WorkCounts) -> None:
    """Print messages. Delete each message after the reader of standard output has read it."""
    consumer = queue.consume(**options)
    live = show_counts(counts, is_enabled=not sys.stdout.isatty())
    with open_output_reader(consumer.stop) as reader, live, consumer as messages:
        for message in messages:
            message.release()  # ``done`` below overrides this decision
            session.out.line(message)
            if not reader.has_all(lambda: consumer.stopped):
                break
            message.done()
            counts.add([message], done=True)


class OutputReader:
    """The process that reads this process's standard output through a pipe.

    Without a pipe, written data counts as read.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def has_all(self, stopped: Callable[[], bool]) -> bool:
        """Wait until all data was read. Return ``False`` if the reader exits or ``stopped`` returns ``True`` first."""
        while self._pipe is not None and unread_bytes(self._pipe):
            room = select.poll()
            room.register(self._pipe, select.POLLOUT)
            # A pipe of one page becomes writable when its page was read.
            events = dict(room.poll(POLL_MS)).get(self._pipe, 0)
            if events & select.POLLERR or stopped():
                return not unread_bytes(self._pipe)
            if events:
                time.sleep(PIPE_POLL_PAUSE)
        return True


@contextmanager
def open_output_reader(on_close: Callable[[], object]) -> Generator[OutputReader, None, None]:
    """Yield the reader of standard output, and call ``on_close`` when the reader closes the pipe.

    The pipe's capacity is one page, so that the pipe becomes writable only after all data was read.
    """
    pipe, ended = find_output_pipe(), threading.Event()
    if pipe is None:
        yield OutputReader(None)
        return
    watching = threading.Thread(target=watch_reader, args=(pipe, on_close, ended), name="zq-reader", daemon=True)
    watching.start()
    before = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, MIN_PIPE_SIZE)
    try:
        yield OutputReader(pipe)
    finally:
        ended.set()
        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, before)


def watch_reader(pipe: int, on_close: Callable[[], object], ended: threading.Event) -> None:
    """Wait for the reader to close the pipe. Then call ``on_close`` repeatedly until ``ended`` is set."""
    errors = select.poll()
    errors.register(pipe, 0)
    while not ended.is_set():
        if errors.poll(POLL_MS):
            on_close()
            ended.wait(POLL_MS / 1000)  # then repeat the call: it has no effect on a loop that has not begun yet


def find_output_pipe() -> int | None:
    """Return the file descriptor of standard output if it is a pipe on Linux, else ``None``."""
    with suppress(OSError, UnsupportedOperation):
        output = sys.stdout.fileno()
        if fcntl and sys.platform == "linux" and stat.S_ISFIFO(os.fstat(output).st_mode):
            unread_bytes(output)
            return output
    return None


def unread_bytes(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)
