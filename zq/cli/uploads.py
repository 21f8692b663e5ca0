# SPDX-License-Identifier: Apache-2.0
"""Files on their way into a queue: cut into batches that are the same at each attempt, and how far that has come.

Beside ``events.ndjson`` lies ``events.ndjson.zq`` while it is under way: the line and the offset up to which everything
is stored, and all that decides where batches end. Batches behind it may be stored, too: their keys tell the server.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from zq.cli.notes import Note
from zq.client.batches import packed
from zq.errors import Conflict, InvalidBody

MOST: Final = 1000
"""Messages in a batch."""
AROUND: Final = 64
"""Bytes that stand around a body in a post, at most."""
KNOWN: Final = 4096
"""Bytes by which a file is known again."""
OFTEN: Final = 0.1
"""Seconds between two notes of how far it is."""


class TornLine(InvalidBody):
    """A line that cannot be a message; nothing of its batch was sent."""


class Terms(Struct, frozen=True):
    """What must be the same when a post is resumed."""

    url: str
    project: str
    queue: str
    ttl: int | None
    delay: int | None
    text: bool


class Upload(Struct, frozen=True):
    """A post under way; ``line`` and ``offset``: up to here everything is stored. ``run`` begins its keys."""

    terms: Terms
    run: str
    batch_bytes: int
    size: int
    head: str
    line: int = 0
    offset: int = 0
    messages: int = 0
    batch_messages: int = MOST
    before: str = ""
    """Of what stands before the offset, if nothing behind it was sent: then the rest of the file may change."""


class Batch(Struct, frozen=True):
    """Lines that are sent together, and where the file stands behind them."""

    first: int
    last: int
    offset: int
    bodies: list[Raw]


def resume(note: Note, terms: Terms, batch_bytes: int, batch_messages: int = MOST, *, restart: bool = False) -> Upload:
    """The post that was interrupted, or a new one. Raises ``Conflict``: it was begun otherwise."""
    path, kept = note.source, b"" if restart else note.read()
    size, head = path.stat().st_size, digest(path, 0)
    if not kept:
        return noted(note, Upload(terms, uuid4().hex, batch_bytes, size, head, batch_messages=batch_messages))
    way_out = f"Finish it that way, or begin anew with --restart: {note.path}."
    try:
        upload = msgspec.json.decode(kept, type=Upload)
    except msgspec.MsgspecError as error:
        raise Conflict(f"The note of an earlier post cannot be read. {way_out}") from error
    before, now = asdict(upload.terms), asdict(terms)
    if changed := [name for name in before if before[name] != now[name]]:
        raise Conflict(f"The interrupted post of this file had another {changed[0]}. {way_out}")
    mended = upload.before and upload.before == digest(path, max(0, upload.offset - KNOWN), upload.offset)
    if (upload.size, upload.head) != (size, head) and not mended:
        raise Conflict(f"The file has changed since its post was interrupted. {way_out}")
    if not mended:
        return upload
    return noted(note, replace(upload, size=size, head=head, before="", batch_bytes=batch_bytes))


def noted(note: Note, upload: Upload) -> Upload:
    """The same, noted so that it outlives the machine's end."""
    note.write(msgspec.json.encode(upload), durably=True)
    return upload


def digest(path: Path, start: int, end: int = KNOWN) -> str:
    """Of a part of a file."""
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(end - start)).hexdigest()


class Sender:
    """Sends what is left of a file, ``most`` batches at once, and notes how far it has come."""

    def __init__(self, note: Note, upload: Upload, post: Callable[[Batch], object], most: int) -> None:
        self.upload = upload
        self._note = note
        self._post = post
        self._most = most
        self._running: deque[tuple[Batch, Future[object]]] = deque()
        self._noted = time.monotonic()

    def send(self, told: Callable[[Upload], None]) -> None:
        """Send all, and tell of each batch. What it raises leaves a note behind from which it can be resumed."""
        with self._note.source.open("rb") as file, ThreadPoolExecutor(self._most, "zq-post") as pool:
            try:
                for batch in batches(file, self.upload):
                    self._running.append((batch, pool.submit(self._post, batch)))
                    self._finish(self._most, told)
                self._finish(0, told)
            except TornLine:
                self._finish(0, told)
                start = max(0, self.upload.offset - KNOWN)
                self.upload = replace(self.upload, before=digest(self._note.source, start, self.upload.offset))
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                self._save()
        self._note.remove()

    def _finish(self, most: int, told: Callable[[Upload], None]) -> None:
        """Wait for the oldest until so many are left: what is noted has no holes."""
        while len(self._running) > most:
            batch, sent = self._running.popleft()
            sent.result()
            count = self.upload.messages + len(batch.bodies)
            self.upload = replace(self.upload, line=batch.last, offset=batch.offset, messages=count)
            if time.monotonic() - self._noted > OFTEN:
                self._save()
                self._noted = time.monotonic()
            told(self.upload)

    def _save(self) -> None:
        self._note.write(msgspec.json.encode(self.upload))


def batches(file: BinaryIO, upload: Upload) -> Iterator[Batch]:
    """What is left of a file, cut by nothing but its content. Raises ``TornLine``."""
    file.seek(upload.offset)
    first, number, offset = upload.line + 1, upload.line, upload.offset
    bodies: list[Raw] = []
    filled = AROUND
    for line in file:
        body = line_body(line, number + 1, upload.terms.text)
        size = len(bytes(body)) + AROUND if body is not None else 0
        if body is not None and size > upload.batch_bytes:
            check_size(body, number + 1, upload)
        if bodies and (filled + size > upload.batch_bytes or len(bodies) == upload.batch_messages):
            yield Batch(first, number, offset, bodies)
            first, bodies, filled = number + 1, [], AROUND
        number, offset, filled = number + 1, offset + len(line), filled + size
        if body is not None:
            bodies.append(body)
    if bodies:
        yield Batch(first, number, offset, bodies)


def check_size(body: Raw, number: int, upload: Upload) -> None:
    """Raises ``TornLine`` for a message that fits into no post."""
    size = len(packed([body], upload.terms.ttl, upload.terms.delay))
    if size > upload.batch_bytes:
        raise TornLine(f"Line {number} makes a post of {size:,} bytes; it may have {upload.batch_bytes:,}.")


def line_body(line: bytes, number: int, text: bool) -> Raw | None:
    """The message of a line; None if it is blank. Raises ``TornLine``."""
    line = line.strip() if not text else line.rstrip(b"\r\n")
    if not line:
        return None
    try:
        decoded = line.decode()
        return Raw(msgspec.json.encode(decoded)) if text else msgspec.json.decode(line, type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise TornLine(f"Line {number} is not UTF-8: {error}.") from error
        hint = "There is one JSON value to a line (NDJSON); with --text each line is a text."
        raise TornLine(f"Line {number} is not JSON: {error}. {hint}") from error
