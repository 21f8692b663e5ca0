# SPDX-License-Identifier: Apache-2.0
"""``zq post``: one message, the lines of standard input, or a file that can be resumed."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from msgspec import Raw

from zq.cli.failures import Failure, exit_code
from zq.cli.messages import as_json, delay_option, queue_argument
from zq.cli.output import note, progress
from zq.cli.session import Command, Session, pass_session
from zq.cli.uploads import Batch, Sender, Terms, line_body, note_beside, resume
from zq.client.batches import largest_batch
from zq.client.handles import Posting
from zq.errors import ZqError


@click.command("post", cls=Command)
@queue_argument
@click.argument("body", required=False)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Post each line of a file; run it again to go on after an interruption.",
)
@click.option("--ttl", type=click.IntRange(1), metavar="SECONDS", help="How long messages live.")
@delay_option
@click.option("--text", is_flag=True, help="Bodies are texts, even if they look like JSON.")
@click.option("--key", metavar="TEXT", help="For one BODY: a repeat under the same key stores nothing.")
@click.option("--concurrency", type=click.IntRange(1, 32), default=1, help="Batches at once; 1 keeps the order.")
@click.option("--restart", is_flag=True, help="Forget that the file's post was interrupted.")
@pass_session
def post(
    session: Session,
    queue: str,
    body: str | None,
    path: Path | None,
    ttl: int | None,
    delay: int | None,
    text: bool,
    key: str | None,
    concurrency: int,
    restart: bool,
) -> None:
    """Post a message, each line of standard input, or each line of a file.

    BODY is JSON, or else a text; "-" is standard input, whose lines are posted as they come.
    """
    if (body is None) == (path is None):
        raise click.UsageError("Give either BODY or --file.")
    if path is not None:
        if not path.is_file():
            raise click.UsageError('--file takes a regular file; for others there is "-".')
        place = session.connection
        if restart:
            note_beside(path).unlink(missing_ok=True)
        post_file(session, path, Terms(place.url, place.project, queue, ttl, delay, text), concurrency)
    elif body == "-":
        post_input(session, queue, text, ttl=ttl, delay=delay, concurrency=concurrency)
    elif body is not None:
        posted = session.queue(queue).post(as_json(body, never=text), ttl=ttl, delay=delay, key=key)
        session.out.thing({"id": posted})


def post_file(session: Session, path: Path, terms: Terms, concurrency: int) -> None:
    """Post the lines of a file that are not stored yet."""
    session.patient = True
    queue = session.queue(terms.queue)
    upload = resume(path, terms, largest_batch(queue.metadata()))
    if upload.line:
        note(f"Going on behind line {upload.line:,}.")

    def send_batch(batch: Batch) -> None:
        key = f"{upload.run}.{batch.first}-{batch.last}"
        queue.post_batch(batch.bodies, ttl=terms.ttl, delay=terms.delay, key=key)

    sender = Sender(path, upload, send_batch, concurrency)
    with progress(path.name, upload.size) as bar, Stopwatch(session) as told:
        try:
            sender.send(lambda now: bar(now.offset, now.messages - upload.messages))
        except ZqError as error:
            sentence = f"Stopped behind line {sender.upload.line:,}: {error} The same command goes on from there."
            raise Failure(sentence, exit_code(error)) from error
        except KeyboardInterrupt:
            note(f"Stopped behind line {sender.upload.line:,}; the same command goes on from there.")
            raise
        told(sender.upload.messages - upload.messages)


def post_input(
    session: Session, queue: str, text: bool, *, ttl: int | None, delay: int | None, concurrency: int
) -> None:
    """Post the lines of standard input as they come."""
    session.patient = True
    with progress("standard input", None) as bar, Stopwatch(session) as told:
        options = Posting(concurrency=concurrency, progress=lambda count: bar(0, count))
        if ttl is not None:
            options["ttl"] = ttl
        if delay is not None:
            options["delay"] = delay
        told(session.queue(queue).post_many(input_lines(text), **options))


def input_lines(text: bool) -> Iterator[Raw]:
    """A body for each line that is not blank. Raises ``InvalidBody``."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        body = line_body(line, number, text)
        if body is not None:
            yield body


class Stopwatch:
    """Tells in the end how many messages were stored, and how quickly."""

    def __init__(self, session: Session) -> None:
        self._out = session.out
        self._count = 0

    def __enter__(self) -> Callable[[int], None]:
        self._begun = time.monotonic()
        return self._set

    def __exit__(self, kind: object, *_: object) -> None:
        took = max(time.monotonic() - self._begun, 0.001)
        if kind is None:
            self._out.thing({"stored": self._count, "seconds": round(took, 3), "rate": round(self._count / took)})

    def _set(self, count: int) -> None:
        self._count = count
