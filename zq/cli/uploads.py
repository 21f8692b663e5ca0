# SPDX-License-Identifier: Apache-2.0
"""Resumable posts of files.

The resume file ``events.ndjson.zq`` stores the progress of posting ``events.ndjson``, and the settings that determine
the batches. A resumed post sends identical batches with identical idempotency keys, so no message is stored twice. A
lock on the resume file ensures that only one process posts the file. Lines and offsets refer to decompressed content.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Self
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from zq.cli.content import InputFormat, InvalidInput, read_content, read_csv_header, read_items
from zq.client.calls import may_be_applied
from zq.client.posting import pack
from zq.client.values import Draft
from zq.errors import Conflict
from zq.wire.attributes import TypedValue

try:
    import fcntl
except ImportError:  # Windows has no flock and cannot replace open files, so the resume file is not kept open
    fcntl = None  # type: ignore[assignment]


# Maximum number of messages per batch.
MAX_BATCH: Final = 1000
# Maximum number of bytes that a post adds to each body.
BODY_OVERHEAD: Final = 64
# Number of bytes in a digest that detects changes of the file.
FINGERPRINT: Final = 4096
# Minimum interval in seconds between two writes of the resume file.
SAVE_INTERVAL: Final = 0.1


def resume_path(path: Path) -> Path:
    return path.with_name(path.name + ".zq")


class ResumeFile:
    """The resume file of a source file.

    The constructor locks the resume file, and creates it if it is missing. Raises ``Conflict`` if another process holds
    the lock.
    """

    def __init__(self, source: Path) -> None:
        self.source = source
        self.path = resume_path(source)
        self._file = self._open_locked()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> bytes:
        return self.path.read_bytes()

    def write(self, text: bytes, durably: bool = False) -> None:
        """Replace the content atomically. If ``durably`` is true, sync the new content to disk first."""
        fresh = self.path.with_name(self.path.name + ".new")
        file = fresh.open("w+b")
        _lock(file)  # before the rename, so that no other process can lock it first
        file.write(text)
        file.flush()
        if durably:
            os.fsync(file.fileno())
        kept = _kept_open(file)
        fresh.replace(self.path)
        self._file.close()
        self._file = kept

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _open_locked(self) -> BinaryIO:
        while True:
            file = self.path.open("a+b")
            try:
                _lock(file)
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return _kept_open(file)
            except BlockingIOError as error:
                file.close()
                raise Conflict("Another run is posting this file.") from error
            except FileNotFoundError:
                pass
            file.close()  # another process has replaced or removed the file between opening and locking


def _lock(file: BinaryIO) -> None:
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _kept_open(file: BinaryIO) -> BinaryIO:
    """Return the file, and leave it open to hold the lock. On Windows, where there is no lock, close the file."""
    if not fcntl:
        file.close()
    return file


class UploadTerms(Struct, frozen=True):
    """The settings that must not change when a post is resumed."""

    url: str
    project: str
    queue: str
    ttl: int | None
    delay: int | None
    text: bool
    delimiter: str = ""
    attribute: dict[str, TypedValue] = {}
    """Attributes of each message."""

    @property
    def form(self) -> InputFormat:
        return InputFormat(self.text, self.delimiter)

    @property
    def overhead(self) -> int:
        """Maximum number of bytes that a message adds to a request besides its body."""
        return BODY_OVERHEAD + (len(msgspec.json.encode(self.attribute)) if self.attribute else 0)


def with_attributes(body: Raw, attributes: Mapping[str, TypedValue]) -> Raw | Draft:
    """Return the message to post: ``body`` with ``attributes``, if there are any."""
    return Draft(body, attributes=attributes) if attributes else body


class Upload(Struct, frozen=True):
    """The progress of posting a file.

    Attributes:
        run: Prefix of the idempotency keys.
        head: Digest of the start of the file.
        line: Line number up to which all messages are stored.
        offset: Byte offset of the end of this line.
    """

    terms: UploadTerms
    run: str
    batch_bytes: int
    size: int
    head: str
    line: int = 0
    offset: int = 0
    messages: int = 0
    batch_messages: int = MAX_BATCH
    before: str = ""
    """Digest of the content before the offset. If set, later content was never sent, so the user may edit it."""
    resumed: bool = False
    """Whether an earlier run may have sent batches after the offset."""


class Batch(Struct, frozen=True):
    """The lines of one request. ``offset`` is the offset of the end of the last line."""

    first: int
    last: int
    offset: int
    bodies: list[Raw]


def resume(
    resume_file: ResumeFile,
    terms: UploadTerms,
    batch_bytes: int,
    batch_messages: int = MAX_BATCH,
    *,
    restart: bool = False,
) -> Upload:
    """Load the progress of an interrupted post, or begin a new post. Return the progress.

    Raises ``Conflict`` if the stored progress cannot be read, or if the terms or the file have changed. If an invalid
    line interrupted the post, the user may correct the file from that line on. If ``restart`` is true, the stored
    progress is ignored.
    """
    path, kept = resume_file.source, b"" if restart else resume_file.read()
    size, head = path.stat().st_size, head_digest(path)
    if not kept:
        return save_progress(
            resume_file, Upload(terms, uuid4().hex, batch_bytes, size, head, batch_messages=batch_messages)
        )
    remedy = (
        f"Finish the post with the same options, or start again with --restart. The resume file is {resume_file.path}."
    )
    try:
        upload = msgspec.json.decode(kept, type=Upload)
    except msgspec.MsgspecError as error:
        raise Conflict(f"The resume file of an earlier post cannot be read. {remedy}") from error
    before, now = asdict(upload.terms), asdict(terms)
    if changed := [name for name in before if before[name] != now[name]]:
        raise Conflict(f"The interrupted post of this file used a different {changed[0]}. {remedy}")
    repaired = upload.before and upload.before == digest_before(path, upload.offset)
    if (upload.size, upload.head) != (size, head) and not repaired:
        raise Conflict(f"The file has changed since its post was interrupted. {remedy}")
    upload = replace(upload, resumed=True)
    if not repaired:
        return upload
    return save_progress(resume_file, replace(upload, size=size, head=head, before="", batch_bytes=batch_bytes))


def save_progress(resume_file: ResumeFile, upload: Upload) -> Upload:
    """Write the progress durably to the resume file, and return the progress."""
    resume_file.write(msgspec.json.encode(upload), durably=True)
    return upload


def head_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(FINGERPRINT)).hexdigest()


def digest_before(path: Path, offset: int) -> str:
    """Return the digest of the content just before an offset, or "" if the content is shorter."""
    start, known = max(0, offset - FINGERPRINT), b""
    with path.open("rb") as file, suppress(InvalidInput):
        for piece in read_content(file, start):
            known += piece
            if len(known) >= offset - start:
                break
    return hashlib.sha256(known[: offset - start]).hexdigest() if len(known) >= offset - start else ""


class Sender:
    """A sender that posts the rest of a file with up to ``max_threads`` threads, and saves the progress."""

    def __init__(
        self, resume_file: ResumeFile, upload: Upload, post: Callable[[Batch], object], max_threads: int
    ) -> None:
        self.upload = upload
        self._resume_file = resume_file
        self._post = post
        self._max_threads = max_threads
        self._running: deque[tuple[Batch, int, Future[object]]] = deque()
        self._saved_at = time.monotonic()

    def send(self, progress: Callable[[Upload, int], None]) -> None:
        """Send all batches, then remove the resume file.

        If a request fails, the resume file remains, so that the user can resume the post, unless it is certain that no
        message was stored. ``progress`` is called after each batch with the state of the upload and the number of
        bytes that were read from the source file.
        """
        with self._resume_file.source.open("rb") as file, ThreadPoolExecutor(self._max_threads, "zq-post") as pool:
            try:
                for batch in split_batches(file, self.upload):
                    self._running.append((batch, file.tell(), pool.submit(self._post, batch)))
                    self._finish(self._max_threads, progress)
                self._finish(0, progress)
            except InvalidInput:
                self._finish(0, progress)
                self.upload = replace(self.upload, before=digest_before(self._resume_file.source, self.upload.offset))
                raise
            finally:
                pool.shutdown(cancel_futures=True)
                if self._has_stored_nothing():
                    self._resume_file.remove()
                else:
                    self._save()
        self._resume_file.remove()

    def _finish(self, max_running: int, progress: Callable[[Upload, int], None]) -> None:
        while len(self._running) > max_running:
            batch, read, sent = self._running[0]
            sent.result()
            self._running.popleft()
            count = self.upload.messages + len(batch.bodies)
            self.upload = replace(self.upload, line=batch.last, offset=batch.offset, messages=count)
            if time.monotonic() - self._saved_at > SAVE_INTERVAL:
                self._save()
                self._saved_at = time.monotonic()
            progress(self.upload, read)

    def _has_stored_nothing(self) -> bool:
        """Return ``True`` if it is certain that no message was stored. Call this after all requests have ended."""
        known = self.upload.line or self.upload.resumed
        return not known and all(is_certainly_not_stored(sent) for *_, sent in self._running)

    def _save(self) -> None:
        self._resume_file.write(msgspec.json.encode(self.upload))


def is_certainly_not_stored(sent: Future[object]) -> bool:
    """Return ``True`` if a finished request has certainly stored no message."""
    error = None if sent.cancelled() else sent.exception()
    return sent.cancelled() or (error is not None and not may_be_applied(error))


def split_batches(file: BinaryIO, upload: Upload) -> Iterator[Batch]:
    """Split the remaining lines into batches. The same file and terms always give the same batches.

    At an invalid line, yield the lines before the invalid line, then raise ``InvalidInput``.
    """
    form, header, overhead = upload.terms.form, None, upload.terms.overhead
    if form.delimiter and upload.line:
        header = read_csv_header(file, form.delimiter)
        file.seek(0)
    first, number, offset = upload.line + 1, upload.line, upload.offset
    bodies: list[Raw] = []
    filled = BODY_OVERHEAD
    try:
        for item in read_items(read_content(file, offset), form, number, offset, header):
            assert item is not None  # only standard input yields ``None``
            body, size = item.body, 0
            if body is not None:
                size = len(bytes(body)) + overhead
                if size > upload.batch_bytes:
                    check_size(body, number + 1, upload)
            if bodies and (filled + size > upload.batch_bytes or len(bodies) == upload.batch_messages):
                yield Batch(first, number, offset, bodies)
                first, bodies, filled = number + 1, [], BODY_OVERHEAD
            number, offset, filled = item.line, item.offset, filled + size
            if body is not None:
                bodies.append(body)
    except InvalidInput:
        if bodies:
            yield Batch(first, number, offset, bodies)
        raise
    if bodies:
        yield Batch(first, number, offset, bodies)


def check_size(body: Raw, number: int, upload: Upload) -> None:
    """Raise ``InvalidInput`` if a message exceeds the maximum post size."""
    message = with_attributes(body, upload.terms.attribute)
    size = len(pack([message], upload.terms.ttl, upload.terms.delay))
    if size > upload.batch_bytes:
        raise InvalidInput(
            f"Line {number} is too long: the request has {size:,} bytes, but the limit is {upload.batch_bytes:,}."
        )
