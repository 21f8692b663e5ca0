# SPDX-License-Identifier: Apache-2.0
"""Lines of standard input on their way into a queue or a topic: sent as they come, if quickly then many at once."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from io import UnsupportedOperation
from select import select
from typing import Final

import click
from msgspec import Raw

from zq.cli.commands import at_second_signal
from zq.cli.failures import INTERRUPTED
from zq.cli.output import Stopwatch, progress
from zq.cli.session import Session
from zq.cli.uploads import line_body
from zq.client import Queue, Topic
from zq.client.batches import MOST_CALL, Batch, Packer, Tally, batch_call, largest_batch
from zq.client.posting import post_all
from zq.client.stopping import told_to_stop
from zq.errors import InvalidBody

LOOK: Final = 0.2
"""Seconds without a line after which those before are sent; so soon a stop is noticed."""
PIECE: Final = 65_536


def send_input(
    session: Session, thing: Queue | Topic, text: bool, ttl: int | None, delay: int | None = None, concurrency: int = 1
) -> None:
    """Send the lines of standard input until it ends. A signal ends it after what was read; a second one at once."""
    stopped = threading.Event()
    most = thing.transport.run(MOST_CALL)
    metadata = thing.metadata()
    if delay:
        thing.transport.cautions.delay(thing.name, metadata)
    packer = Packer(largest_batch(metadata), ttl, delay, most=most)
    source = timely(packer, bodies(text, stopped.is_set))
    send = partial(batch_call, thing.kind, thing.name, key=None)
    with (
        progress("standard input", None) as bar,
        Stopwatch(session.out) as told,
        at_second_signal(partial(os._exit, INTERRUPTED)),
        told_to_stop(stopped.set),
    ):
        told(post_all(thing.transport, send, source, Tally(lambda count: bar(0, count)), concurrency))
    if stopped.is_set():
        raise click.Abort


def timely(packer: Packer, found: Iterator[Raw | None]) -> Iterator[Batch]:
    """What was found, in batches; what is there goes when nothing comes, and before a line that is refused."""
    try:
        for body in found:
            if batch := packer.rest() if body is None else packer.add(body):
                yield batch
    except InvalidBody:
        if batch := packer.rest():
            yield batch
        raise
    if batch := packer.rest():
        yield batch


def bodies(text: bool, stopped: Callable[[], bool]) -> Iterator[Raw | None]:
    """A body for each line that is not blank, and None whenever nothing comes for a while. Raises ``InvalidBody``."""
    number = 0
    for line in lines(stopped):
        if line is None:
            yield None
            continue
        number += 1
        if (body := line_body(line, number, text)) is not None:
            yield body


def lines(stopped: Callable[[], bool]) -> Iterator[bytes | None]:
    """Lines of standard input, and None whenever nothing comes for a while. A line without an end is one at the end."""
    source, begun = sys.stdin.buffer, bytearray()
    while not stopped():
        if not ready():
            yield None
            continue
        data = source.read1(PIECE)  # type: ignore[union-attr]  # files in memory have it, too
        begun += data
        if not data:
            if begun:
                yield bytes(begun)
            return
        if b"\n" in data:
            *whole, rest = bytes(begun).split(b"\n")
            yield from whole
            begun = bytearray(rest)


def ready() -> bool:
    """Whether standard input has something, or its end, before long."""
    try:
        return bool(select([sys.stdin.buffer], [], [], LOOK)[0])
    except UnsupportedOperation:  # a file in memory, which has
        return True
