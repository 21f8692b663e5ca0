# SPDX-License-Identifier: Apache-2.0
"""Parsing of input files and standard input: gzip decompression, lines and CSV rows.

The iterators yield ``None`` if no input arrives for a while. Line numbers and offsets refer to decompressed content.
"""

import csv
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import UnsupportedOperation
from itertools import chain
from select import select
from typing import BinaryIO, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from zq.cli.output import note
from zq.errors import InvalidBody
from zq.wire.numbers import check_numbers

# Number of bytes to read or decompress at a time.
PIECE_SIZE: Final = 65_536
# Maximum line size in bytes, which bounds memory. It exceeds the post size that any server accepts.
MAX_LINE: Final = 1 << 26
# The first bytes of gzip data.
MAGIC: Final = b"\x1f\x8b"
# Argument that makes zlib expect a gzip header and checksum.
GZIP: Final = 16 + zlib.MAX_WBITS
# Byte order mark of UTF-8, which some programs write at the start of a file.
BOM: Final = b"\xef\xbb\xbf"
# Seconds without input after which the lines read so far are sent. A signal takes effect within this time.
POLL_INTERVAL: Final = 0.2
# Number of polls without input after which zq prints a note, unless the user has selected standard input explicitly.
SILENT_POLLS: Final = 10


class ReadingStopped(Exception):
    """An exception that ends reading after a signal. The incomplete last line is discarded."""


class InvalidInput(InvalidBody):
    """An error for invalid or truncated input. The invalid line and all later lines are not sent."""


class InputFormat(Struct, frozen=True):
    """The input format: CSV if ``delimiter`` is set, else lines of text or JSON."""

    text: bool = False
    delimiter: str = ""


class Item(NamedTuple):
    """A line or CSV row of the input. ``body`` is ``None`` for a blank line or a header.

    ``line`` and ``offset`` are the numbers of lines and bytes from the start of the input to the end of this item.
    """

    body: Raw | None
    line: int
    offset: int


def read_content(file: BinaryIO, offset: int = 0) -> Iterator[bytes]:
    """Return the decompressed content from ``offset``. Raises ``InvalidInput`` for damaged gzip."""
    head = file.read(len(MAGIC))
    file.seek(0 if head == MAGIC else offset)
    pieces = iter(lambda: file.read(PIECE_SIZE), b"")
    return skip_bytes(decompress(pieces), offset) if head == MAGIC else pieces


def skip_bytes(pieces: Iterable[bytes | None], offset: int) -> Iterator[bytes]:
    for piece in filter(None, pieces):
        if len(piece) > offset:
            yield piece[offset:]
        offset = max(0, offset - len(piece))


def decompress_if_gzip(pieces: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Decompress the input if it is gzip. Raises ``InvalidInput`` for damaged gzip."""
    head = b""
    for piece in pieces:
        head += piece or b""
        if len(head) >= len(MAGIC) or not MAGIC.startswith(head):
            break
        yield None
    rest = chain([head], pieces)
    yield from decompress(rest) if head.startswith(MAGIC) else rest


def decompress(pieces: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Decompress concatenated gzip streams. Raises ``InvalidInput`` for damaged or truncated data."""
    member = zlib.decompressobj(GZIP)
    for piece in pieces:
        if piece is None:
            yield None
        while piece:
            if member.eof:
                piece = piece.lstrip(b"\0")  # padding
                member = zlib.decompressobj(GZIP) if piece else member
                continue
            try:
                data = member.decompress(piece, PIECE_SIZE)
            except zlib.error as error:
                raise InvalidInput("The gzip data is damaged.") from error
            if data:
                yield data
            piece = member.unused_data or member.unconsumed_tail
    if not member.eof:
        raise InvalidInput("The gzip data is truncated: the end of the file is missing.")


def split_lines(pieces: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Split the input into lines, including their line ends. Raises ``InvalidInput`` for a line that is too long."""
    begun = bytearray()
    for piece in pieces:
        if piece is None:
            yield None
            continue
        begun += piece
        if b"\n" in piece:
            *whole, rest = bytes(begun).split(b"\n")
            for line in whole:
                yield line + b"\n"
            begun = bytearray(rest)
        elif len(begun) > MAX_LINE:
            raise InvalidInput(f"A line has more than {MAX_LINE:,} bytes.")
    if begun:
        yield bytes(begun)


def read_items(
    pieces: Iterable[bytes | None], form: InputFormat, line: int = 0, offset: int = 0, header: list[str] | None = None
) -> Iterator[Item | None]:
    """Parse input into items. Raises ``InvalidInput`` for a line or row that is not valid.

    Args:
        pieces: Chunks of the input, which may begin in the middle of a file; ``None`` = no input for a while.
        line: Number of lines before the first chunk.
        offset: Number of bytes before the first chunk.
        header: Column names, if the header of a CSV file is not in the input.
    """
    if form.delimiter:
        yield from CsvRows(split_lines(pieces), form.delimiter, line, offset, header)
        return
    for found in split_lines(pieces):
        if found is None:
            yield None
            continue
        line, offset = line + 1, offset + len(found)
        yield Item(parse_line(strip_bom(found, line), line, form.text), line, offset)


def strip_bom(found: bytes, line: int) -> bytes:
    """Remove the byte order mark from the first line of a file."""
    return found.removeprefix(BOM) if line == 1 else found


def parse_line(line: bytes, number: int, text: bool) -> Raw | None:
    """Parse a line into a message body. Return ``None`` for a blank line.

    Raises ``InvalidInput`` if the line is not valid UTF-8 or not valid JSON.
    """
    line = line.strip() if not text else line.rstrip(b"\r\n")
    if not line:
        return None
    try:
        decoded = line.decode()
        if text:
            return Raw(msgspec.json.encode(decoded))
        body = msgspec.json.decode(line, type=Raw)
        check_numbers(line, "the body")
        return body
    except UnicodeDecodeError as error:
        raise InvalidInput(f"Line {number} is not UTF-8: {error}.") from error
    except InvalidBody as error:
        raise InvalidInput(f"Line {number}: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "Each line must be one JSON value (NDJSON); use --text to post lines as text."
        raise InvalidInput(f"Line {number} is not valid JSON: {error}. {hint}") from error


def read_csv_header(file: BinaryIO, delimiter: str) -> list[str] | None:
    """Return the first row of a CSV file, or ``None`` if the file is empty."""
    rows = CsvRows(split_lines(read_content(file)), delimiter)
    for _ in rows:
        if rows.header is not None:
            break
    return rows.header


class CsvRows:
    """A CSV parser that yields each row as a JSON object. Raises ``InvalidInput`` for a bad row."""

    def __init__(
        self,
        found: Iterator[bytes | None],
        delimiter: str,
        line: int = 0,
        offset: int = 0,
        header: list[str] | None = None,
    ) -> None:
        self._found = found
        self._line = line
        self._offset = offset
        self.header = header
        self._first: str | None = None
        self._reader = csv.reader(self._texts(), delimiter=delimiter, strict=True)
        csv.field_size_limit(MAX_LINE)

    def __iter__(self) -> Iterator[Item | None]:
        for found in self._found:
            if found is None:
                yield None
                continue
            begun = self._line + 1
            try:
                self._first = self._text(found)
                body = self._body(next(self._reader), begun)
            except csv.Error as error:
                raise InvalidInput(f"The row that begins in line {begun} is not valid CSV: {error}.") from error
            yield Item(body, self._line, self._offset)

    def _body(self, row: list[str], begun: int) -> Raw | None:
        if not row:
            return None
        if self.header is None:
            if twice := [name for name, count in Counter(row).items() if count > 1]:
                raise InvalidInput(f"Line {begun}: the header names {twice[0]!r} twice.")
            self.header = row
            return None
        if len(row) != len(self.header):
            raise InvalidInput(f"Line {begun} has {len(row)} fields, but the header has {len(self.header)}.")
        return Raw(msgspec.json.encode(dict(zip(self.header, row, strict=True))))

    def _texts(self) -> Iterator[str]:
        while True:
            text, self._first = self._first, None
            if text is None:
                found = next(filter(None, self._found), None)
                if found is None:
                    return
                text = self._text(found)
            yield text

    def _text(self, found: bytes) -> str:
        self._line, self._offset = self._line + 1, self._offset + len(found)
        try:
            return strip_bom(found, self._line).decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"Line {self._line} is not UTF-8: {error}.") from error


def read_stdin_bodies(
    form: InputFormat, stopped: Callable[[], bool], is_requested: bool = True
) -> Iterator[Raw | None]:
    """Yield a message body for each line or CSV row of standard input.

    If no input arrives for a while, yield ``None``. Raises ``InvalidInput`` for an invalid line or row.
    """
    with suppress(ReadingStopped):
        for item in read_items(decompress_if_gzip(read_stdin(stopped, is_requested)), form):
            if item is None:
                yield None
            elif item.body is not None:
                yield item.body


def read_stdin(stopped: Callable[[], bool], is_requested: bool) -> Iterator[bytes | None]:
    """Yield chunks of standard input, and ``None`` if no input arrives for a while.

    If the user has not requested standard input explicitly, print a note after some time without input. Raises
    ``ReadingStopped`` if ``stopped`` returns ``True``.
    """
    source, empty = sys.stdin.buffer, 0
    while not stopped():
        if not is_stdin_ready():
            empty += 1
            if empty == SILENT_POLLS and not is_requested:
                note("Waiting for lines on standard input, because neither BODY nor --file was given.")
            yield None
            continue
        data = source.read1(PIECE_SIZE)  # type: ignore[union-attr]  # in-memory files also have this method
        if not data:
            return
        is_requested = True
        yield data
    raise ReadingStopped


def is_stdin_ready() -> bool:
    """Wait up to one poll interval. Return ``True`` as soon as standard input has data or has ended."""
    try:
        return bool(select([sys.stdin.buffer], [], [], POLL_INTERVAL)[0])
    except UnsupportedOperation:  # an in-memory file is always ready
        return True
