# SPDX-License-Identifier: Apache-2.0
"""The command ``zq post``, which posts one message, the lines of standard input, or a file."""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Raw, Struct

from zq.cli.command import on_second_signal
from zq.cli.content import InputFormat, read_stdin_bodies
from zq.cli.failures import INTERRUPTED, Failure, exit_code
from zq.cli.messages import delay_option, parse_body, queue_argument
from zq.cli.output import note
from zq.cli.param_types import MESSAGE_TTL, Count
from zq.cli.progress import Stopwatch, progress_bar
from zq.cli.session import Command, Session, pass_session
from zq.cli.uploads import Batch, ResumeFile, Sender, Upload, UploadTerms, resume, with_attributes
from zq.client import Draft, Queue, Topic, posting
from zq.client.handles import visible_metadata
from zq.client.stopping import stop_on_signals
from zq.errors import InvalidBody, ZqError
from zq.wire.attributes import STRING, TypedValue

NO_ATTRIBUTES: Final[Mapping[str, TypedValue]] = {}


class Delimiter(click.ParamType[str]):
    """A single character, or "\\t" for a tab."""

    name = "character"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = "\t" if value == "\\t" else str(value)
        if len(found) != 1 or found in '"\r\n':
            self.fail(f"{value!r} must be a single character other than a quotation mark or line end.", param, ctx)
        return found


class AttributeOption(click.ParamType[tuple[str, TypedValue]]):
    """A message attribute, written as ``NAME=VALUE`` or ``NAME:TYPE=VALUE``."""

    name = "attribute"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, TypedValue]:
        name, equals, text = str(value).partition("=")
        name, _, kind = name.partition(":")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE or NAME:TYPE=VALUE.", param, ctx)
        return name, TypedValue(kind or STRING, text)


attribute_option: Final = click.option(
    "--attribute",
    "attributes",
    multiple=True,
    type=AttributeOption(),
    metavar="NAME[:TYPE]=VALUE",
    help="Attribute of each message. TYPE is String (default), Number or Binary (base64). Repeatable.",
)


@click.command("post", cls=Command)
@queue_argument
@click.argument("body", required=False)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Post each line of a file, or each row of a *.csv file. After an interruption, run the command again.",
)
@click.option("--ttl", type=MESSAGE_TTL, metavar="SECONDS", help="Message TTL.")
@delay_option
@click.option("--text", is_flag=True, help="Post bodies as text, even if they look like JSON.")
@click.option(
    "--csv", "rows", is_flag=True, help="Read CSV. The first row has the keys; each other row becomes a JSON object."
)
@click.option(
    "--delimiter", type=Delimiter(), metavar="CHAR", help='CSV field delimiter (default ","); "\\t" is a tab.'
)
@click.option("--key", metavar="TEXT", help="Idempotency key for a single BODY.")
@click.option("--group", metavar="NAME", help="Message group for a single BODY, in a queue with _grouped.")
@attribute_option
@click.option(
    "--concurrency", type=Count(1, 32), default=1, help="Concurrent requests (default 1, which keeps the order)."
)
@click.option(
    "--force",
    is_flag=True,
    help="Post with --delay even if the queue ignores delays. The messages are then available immediately.",
)
@click.option("--restart", is_flag=True, help="Post the file from the start instead of resuming an interrupted post.")
@pass_session
def post(session: Session, /, queue: str, body: str | None, path: Path | None, **chosen: Any) -> None:
    """Post a message, or the lines or rows of a file or of standard input.

    BODY is JSON, or text if it is not JSON. If BODY is "-", or if neither BODY nor --file is given, zq reads standard
    input and posts the lines as they arrive. Gzip data is decompressed.
    """
    options = PostOptions(**chosen)
    session.configure(check_delays=not options.force)
    if body is not None and path is not None:
        raise click.UsageError("Give either BODY or --file.")
    if options.key is not None and body in (None, "-"):
        raise click.UsageError("--key requires a single BODY.")
    if options.group is not None and body in (None, "-"):
        raise click.UsageError("--group requires a single BODY.")
    form = input_format(path, options.text, options.rows, options.delimiter)
    if body is not None and body != "-":
        post_body(session, queue, body, form, options)
        return
    session.configure(patient=True)
    if path is not None:
        post_file(session, queue, path, form, options)
        return
    if body is None and sys.stdin.isatty():
        raise click.UsageError('There is nothing to post: give BODY, --file, or "-" to read lines from the terminal.')
    handle, stdin_requested = session.queue(queue), body is not None
    send_input(
        session,
        handle,
        form,
        options.ttl,
        options.delay,
        options.concurrency,
        attributes=dict(options.attributes),
        stdin_requested=stdin_requested,
    )


class PostOptions(Struct, frozen=True):
    """The options of ``zq post`` other than BODY and ``--file``. ``rows``: the input is CSV."""

    ttl: int | None
    delay: int | None
    text: bool
    rows: bool
    delimiter: str | None
    key: str | None
    group: str | None
    attributes: tuple[tuple[str, TypedValue], ...]
    concurrency: int
    restart: bool
    force: bool


def input_format(path: Path | None, text: bool, rows: bool, delimiter: str | None) -> InputFormat:
    """Return the input format that the options select. Raises ``UsageError`` if the options conflict."""
    if text and rows:
        raise click.UsageError("Give either --text or --csv.")
    named = path is not None and path.name.lower().removesuffix(".gz").endswith(".csv")
    if rows or (named and not text):
        return InputFormat(delimiter=delimiter or ",")
    if delimiter:
        raise click.UsageError("--delimiter requires --csv.")
    return InputFormat(text)


def post_body(session: Session, queue: str, body: str, form: InputFormat, options: PostOptions) -> None:
    """Post one message."""
    if form.delimiter:
        raise click.UsageError("--csv requires --file or standard input.")
    content = parse_body(body, as_text=options.text)
    ttl, delay, group, attributes = options.ttl, options.delay, options.group, dict(options.attributes)
    handle = session.queue(queue)
    posted = handle.post(content, ttl=ttl, delay=delay, key=options.key, group=group, attributes=attributes or None)
    session.out.result({"id": posted})


def post_file(session: Session, queue: str, path: Path, form: InputFormat, options: PostOptions) -> None:
    """Post a file, or resume an interrupted post of the file."""
    if not path.is_file():
        raise click.UsageError(
            '--file must be a regular file. To post from a pipe, give "-" as BODY and redirect standard input.'
        )
    queue_metadata = visible_metadata(session.queue(queue))
    if options.delay:
        session.client.transport.warnings.check_delay(queue, queue_metadata)
    url, project = session.connection.shown_url, session.connection.project
    lives, attributes = (options.ttl, options.delay), dict(options.attributes)
    terms = UploadTerms(url, project, queue, *lives, form.text, form.delimiter, attributes)
    limits = session.client.transport.run(posting.BATCH_LIMITS_CALL)
    max_bytes = limits.bytes(queue_metadata)
    with ResumeFile(path) as file:
        upload = resume(file, terms, max_bytes, limits.count(), restart=options.restart)
        send_file(session, file, upload, options.concurrency)


def send_file(session: Session, file: ResumeFile, upload: Upload, concurrency: int) -> None:
    """Post the lines that earlier runs have not stored, with a progress bar."""
    queue, terms = session.queue(upload.terms.queue), upload.terms
    if upload.line:
        note(f"Resuming after line {upload.line:,}.")

    def send_batch(batch: Batch) -> None:
        key = f"{upload.run}.{batch.first}-{batch.last}"
        messages = [with_attributes(body, terms.attribute) for body in batch.bodies]
        queue.post_batch(messages, ttl=terms.ttl, delay=terms.delay, key=key)

    sender = Sender(file, upload, send_batch, concurrency)
    with progress_bar(file.source.name, upload.size) as bar, Stopwatch(session.out) as measure:
        try:
            sender.send(lambda now, read: bar(read, now.messages - upload.messages))
        except ZqError as error:
            raise Failure(f"{error} {describe_progress(file, sender.upload)}", exit_code(error)) from error
        except KeyboardInterrupt:
            note(describe_progress(file, sender.upload))
            raise
        measure(sender.upload.messages - upload.messages)


def describe_progress(file: ResumeFile, upload: Upload) -> str:
    """Return a sentence about the progress of an interrupted post."""
    if upload.line:
        posted = f"Messages posted so far: {upload.messages:,} (up to line {upload.line:,})."
        return f"{posted} Run the same command to resume."
    if file.path.exists():
        return "Some lines may have been posted. Run the same command to resume; each line is posted once."
    return "Nothing was posted."


def send_input(
    session: Session,
    resource: Queue | Topic,
    form: InputFormat,
    ttl: int | None,
    delay: int | None = None,
    concurrency: int = 1,
    *,
    attributes: Mapping[str, TypedValue] = NO_ATTRIBUTES,
    stdin_requested: bool = True,
) -> None:
    """Post each line or CSV row of standard input.

    If standard input is empty and ``stdin_requested`` is false, raise ``UsageError``.
    """
    stopped = threading.Event()
    limits = resource.transport.run(posting.BATCH_LIMITS_CALL)
    metadata = visible_metadata(resource)
    if delay:
        resource.transport.warnings.check_delay(resource.name, metadata)
    packer = posting.Packer(limits.bytes(metadata), ttl, delay, max_messages=limits.count())
    bodies = read_stdin_bodies(form, stopped.is_set, stdin_requested)
    source = pack_promptly(packer, (None if body is None else with_attributes(body, attributes) for body in bodies))
    send = partial(posting.batch_call, resource.kind, resource.name, key=None)
    with (
        progress_bar("standard input", None) as bar,
        Stopwatch(session.out) as measure,
        on_second_signal(partial(os._exit, INTERRUPTED)),
        stop_on_signals(stopped.set),
    ):
        result = posting.PostResult(lambda count: bar(0, count))
        count = posting.post_all(resource.transport, send, source, result, concurrency)
        if not (stdin_requested or count or stopped.is_set()):
            raise click.UsageError(
                "There is nothing to post: neither BODY nor --file was given, and standard input was empty."
            )
        measure(count)
    if stopped.is_set():
        raise click.Abort


def pack_promptly(packer: posting.Packer, found: Iterator[Raw | Draft | None]) -> Iterator[posting.Batch]:
    """Pack bodies into batches. Yield an incomplete batch if the input pauses, and before an invalid line."""
    try:
        for body in found:
            if batch := packer.flush() if body is None else packer.add(body):
                yield batch
    except InvalidBody:
        if batch := packer.flush():
            yield batch
        raise
    if batch := packer.flush():
        yield batch
