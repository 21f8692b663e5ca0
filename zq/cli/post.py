# SPDX-License-Identifier: Apache-2.0
"""``zq post``: one message, the lines of standard input, or a file that can be resumed."""

from pathlib import Path

import click

from zq.cli.failures import Failure, exit_code
from zq.cli.lines import send_input
from zq.cli.messages import as_json, delay_option, queue_argument
from zq.cli.notes import Note
from zq.cli.output import Stopwatch, note, progress
from zq.cli.session import Command, Session, pass_session
from zq.cli.uploads import Batch, Sender, Terms, Upload, resume
from zq.cli.values import MESSAGE_TTL, Count
from zq.client.batches import MOST_CALL, largest_batch
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
@click.option("--ttl", type=MESSAGE_TTL, metavar="SECONDS", help="How long messages live.")
@delay_option
@click.option("--text", is_flag=True, help="Bodies are texts, even if they look like JSON.")
@click.option("--key", metavar="TEXT", help="For one BODY: a repeat under the same key stores nothing.")
@click.option("--concurrency", type=Count(1, 32), default=1, help="Batches at once; 1 keeps the order.")
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
    if key is not None and body in (None, "-"):
        raise click.UsageError("--key is for one BODY.")
    if path is not None:
        if not path.is_file():
            raise click.UsageError('--file takes a regular file; for others there is "-".')
        place = session.connection
        terms = Terms(place.place, place.project, queue, ttl, delay, text)
        session.patient = True
        bounds = largest_batch(session.queue(queue).metadata()), session.client.transport.run(MOST_CALL)
        with Note(path) as beside:
            post_file(session, beside, resume(beside, terms, *bounds, restart=restart), concurrency)
    elif body == "-":
        session.patient = True
        send_input(session, session.queue(queue), text, ttl, delay, concurrency)
    elif body is not None:
        posted = session.queue(queue).post(as_json(body, never=text), ttl=ttl, delay=delay, key=key)
        session.out.thing({"id": posted})


def post_file(session: Session, beside: Note, upload: Upload, concurrency: int) -> None:
    """Post the lines of a file that are not stored yet."""
    queue, terms = session.queue(upload.terms.queue), upload.terms
    if upload.line:
        note(f"Going on behind line {upload.line:,}.")

    def send_batch(batch: Batch) -> None:
        key = f"{upload.run}.{batch.first}-{batch.last}"
        queue.post_batch(batch.bodies, ttl=terms.ttl, delay=terms.delay, key=key)

    sender = Sender(beside, upload, send_batch, concurrency)
    with progress(beside.source.name, upload.size) as bar, Stopwatch(session.out) as told:
        try:
            sender.send(lambda now: bar(now.offset, now.messages - upload.messages))
        except ZqError as error:
            sentence = f"Stopped behind line {sender.upload.line:,}: {error} The same command goes on from there."
            raise Failure(sentence, exit_code(error)) from error
        except KeyboardInterrupt:
            note(f"Stopped behind line {sender.upload.line:,}; the same command goes on from there.")
            raise
        told(sender.upload.messages - upload.messages)
