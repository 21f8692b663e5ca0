# SPDX-License-Identifier: Apache-2.0
"""Standard input on its way into a queue or a topic: sent as it comes, if quickly then many at once."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import UnsupportedOperation
from select import select
from typing import Final

import click
from msgspec import Raw

from zq.cli.commands import at_second_signal
from zq.cli.content import PIECE, Form, records, unpacked
from zq.cli.failures import INTERRUPTED
from zq.cli.output import Stopwatch, note, progress
from zq.cli.session import Session
from zq.client import Queue, Topic
from zq.client.batches import MOST_CALL, Batch, Packer, Tally, batch_call, largest_batch
from zq.client.posting import post_all
from zq.client.stopping import told_to_stop
from zq.errors import InvalidBody

LOOK: Final = 0.2
"""Seconds without a line after which those before are sent; so soon a stop is noticed."""
PATIENCE: Final = 10
"""Looks without anything after which somebody who may not know is told what is waited for."""


class Stopped(Exception):
    """Told to: what has no end yet does not count."""


def send_input(
    session: Session,
    thing: Queue | Topic,
    form: Form,
    ttl: int | None,
    delay: int | None = None,
    concurrency: int = 1,
    *,
    asked: bool = True,
) -> None:
    """Send what standard input holds until it ends. A signal ends it after what was read; a second one at once.

    Raises ``UsageError`` if it was not ``asked`` for, and held nothing.
    """
    stopped = threading.Event()
    most = thing.transport.run(MOST_CALL)
    metadata = thing.metadata()
    if delay:
        thing.transport.cautions.delay(thing.name, metadata)
    packer = Packer(largest_batch(metadata), ttl, delay, most=most)
    source = timely(packer, bodies(form, stopped.is_set, asked))
    send = partial(batch_call, thing.kind, thing.name, key=None)
    with (
        progress("standard input", None) as bar,
        Stopwatch(session.out) as told,
        at_second_signal(partial(os._exit, INTERRUPTED)),
        told_to_stop(stopped.set),
    ):
        count = post_all(thing.transport, send, source, Tally(lambda count: bar(0, count)), concurrency)
        if not (asked or count or stopped.is_set()):
            raise click.UsageError("Nothing was given: neither BODY nor --file, and standard input held nothing.")
        told(count)
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


def bodies(form: Form, stopped: Callable[[], bool], asked: bool = True) -> Iterator[Raw | None]:
    """The bodies in standard input, and None whenever nothing comes for a while. Raises ``InvalidBody``."""
    with suppress(Stopped):
        for record in records(unpacked(pieces(stopped, asked)), form):
            if record is None:
                yield None
            elif record.body is not None:
                yield record.body


def pieces(stopped: Callable[[], bool], asked: bool) -> Iterator[bytes | None]:
    """Pieces of standard input, and None whenever nothing comes for a while. Raises ``Stopped``."""
    source, empty = sys.stdin.buffer, 0
    while not stopped():
        if not ready():
            empty += 1
            if empty == PATIENCE and not asked:
                note("Waiting for lines of standard input, since neither BODY nor --file is given.")
            yield None
            continue
        data = source.read1(PIECE)  # type: ignore[union-attr]  # files in memory have it, too
        if not data:
            return
        asked = True
        yield data
    raise Stopped


def ready() -> bool:
    """Whether standard input has something, or its end, before long."""
    try:
        return bool(select([sys.stdin.buffer], [], [], LOOK)[0])
    except UnsupportedOperation:  # a file in memory, which has
        return True
