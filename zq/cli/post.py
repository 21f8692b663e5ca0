# SPDX-License-Identifier: Apache-2.0
"""``zq post``: one message, what standard input holds, or a file that can be resumed."""

import sys
from pathlib import Path
from typing import Any

import click

from zq.cli.content import Form
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


class Delimiter(click.ParamType[str]):
    """One character, or "\\t" for a tabulator."""

    name = "character"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The character."""
        found = "\t" if value == "\\t" else str(value)
        if len(found) != 1 or found in '"\r\n':
            self.fail(f"{value!r} is not one character other than a quotation mark or the end of a line.", param, ctx)
        return found


@click.command("post", cls=Command)
@queue_argument
@click.argument("body", required=False)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Post each line of a file, or each row of one named *.csv; run it again to go on after an interruption.",
)
@click.option("--ttl", type=MESSAGE_TTL, metavar="SECONDS", help="How long messages live.")
@delay_option
@click.option("--text", is_flag=True, help="Bodies are texts, even if they look like JSON.")
@click.option("--csv", "rows", is_flag=True, help="Each row is a JSON object of texts; the first one has their keys.")
@click.option("--delimiter", type=Delimiter(), metavar="CHAR", help='Between fields of CSV; a comma; "\\t" is a tab.')
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
    rows: bool,
    delimiter: str | None,
    key: str | None,
    concurrency: int,
    restart: bool,
) -> None:
    """Post a message, or each line or row of standard input or of a file.

    BODY is JSON, or else a text; "-" is standard input, whose lines are posted as they come. Without BODY and --file
    standard input is read, too, unless it is a terminal. What is gzip is inflated.
    """
    if body is not None and path is not None:
        raise click.UsageError("Give either BODY or --file.")
    if key is not None and body in (None, "-"):
        raise click.UsageError("--key is for one BODY.")
    form = form_of(path, text, rows, delimiter)
    if body not in (None, "-"):
        if form.delimiter:
            raise click.UsageError("--csv is for --file and standard input.")
        posted = session.queue(queue).post(as_json(body, never=text), ttl=ttl, delay=delay, key=key)
        session.out.thing({"id": posted})
        return
    session.patient = True
    if path is None:
        if body is None and sys.stdin.isatty():
            raise click.UsageError('Nothing was given: name BODY, or --file, or "-" for lines that you type.')
        send_input(session, session.queue(queue), form, ttl, delay, concurrency, asked=body is not None)
        return
    if not path.is_file():
        raise click.UsageError('--file takes a regular file; for others there is "-".')
    place = session.connection
    terms = Terms(place.place, place.project, queue, ttl, delay, form.text, form.delimiter)
    bounds = largest_batch(session.queue(queue).metadata()), session.client.transport.run(MOST_CALL)
    with Note(path) as beside:
        post_file(session, beside, resume(beside, terms, *bounds, restart=restart), concurrency)


def form_of(path: Path | None, text: bool, rows: bool, delimiter: str | None) -> Form:
    """How the input becomes bodies. Raises ``UsageError``."""
    if text and rows:
        raise click.UsageError("Give either --text or --csv.")
    named = path is not None and path.name.lower().removesuffix(".gz").endswith(".csv")
    if rows or (named and not text):
        return Form(delimiter=delimiter or ",")
    if delimiter:
        raise click.UsageError("--delimiter is for CSV: give --csv, too.")
    return Form(text)


def post_file(session: Session, beside: Note, upload: Upload, concurrency: int) -> None:
    """Post the lines of a file that are not stored yet."""
    queue, terms = session.queue(upload.terms.queue), upload.terms
    if upload.line:
        note(f"Going on after line {upload.line:,}.")

    def send_batch(batch: Batch) -> None:
        key = f"{upload.run}.{batch.first}-{batch.last}"
        queue.post_batch(batch.bodies, ttl=terms.ttl, delay=terms.delay, key=key)

    sender = Sender(beside, upload, send_batch, concurrency)
    with progress(beside.source.name, upload.size) as bar, Stopwatch(session.out) as told:
        try:
            sender.send(lambda now, read: bar(read, now.messages - upload.messages))
        except ZqError as error:
            raise Failure(f"{error} {so_far(beside, sender.upload)}", exit_code(error)) from error
        except KeyboardInterrupt:
            note(so_far(beside, sender.upload))
            raise
        told(sender.upload.messages - upload.messages)


def so_far(beside: Note, upload: Upload) -> str:
    """How much of a file is posted when it stops."""
    if upload.line:
        posted = f"Messages posted so far: {upload.messages:,} (up to line {upload.line:,})."
        return f"{posted} The same command goes on from there."
    if beside.path.exists():
        return "Nothing is known to be posted yet; the same command posts each line once all the same."
    return "Nothing was posted."
