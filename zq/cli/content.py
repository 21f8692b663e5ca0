# SPDX-License-Identifier: Apache-2.0
"""The content of a file or of standard input: inflated if it is gzip, and cut into bodies by lines or rows of CSV.

A piece, a line or an item may be None: nothing came for a while. Positions are those of the inflated content.
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

# Bytes that are read, or inflated, at once.
PIECE: Final = 65_536
# Bytes of a line at most: far more than any server takes in a post, and few enough for the memory.
MAX_LINE: Final = 1 << 26
# The first bytes of gzip.
MAGIC: Final = b"\x1f\x8b"
# The argument that makes zlib expect the header and the checksum of gzip.
GZIP: Final = 16 + zlib.MAX_WBITS
# The mark of UTF-8 that some programs put in front of a file.
BOM: Final = b"\xef\xbb\xbf"
# Seconds without a line after which those before it are sent; a stop is noticed no later.
POLL: Final = 0.2
# Polls without a line after which a note says what is awaited, if the user did not ask for standard input.
SILENT_POLLS: Final = 10


class Stopped(Exception):
    """A signal has come: an unfinished line does not count."""


class TornLine(InvalidBody):
    """A line that cannot be a message, or content that ends in the middle; nothing from there on is sent."""


class Form(Struct, frozen=True):
    """How content becomes bodies: rows of CSV if there is a delimiter, else lines, which are texts or JSON."""

    text: bool = False
    delimiter: str = ""


class Item(NamedTuple):
    """A line or a row: the number of its last line, and the offset behind it; no body if it is blank or a header."""

    body: Raw | None
    line: int
    offset: int


def content(file: BinaryIO, offset: int = 0) -> Iterator[bytes]:
    """The content of a file that can be sought, from an offset on. Raises ``TornLine`` if it is damaged gzip."""
    head = file.read(len(MAGIC))
    file.seek(0 if head == MAGIC else offset)
    pieces = iter(lambda: file.read(PIECE), b"")
    return skip(inflated(pieces), offset) if head == MAGIC else pieces


def skip(pieces: Iterable[bytes | None], offset: int) -> Iterator[bytes]:
    """The pieces without their first bytes, so many."""
    for piece in filter(None, pieces):
        if len(piece) > offset:
            yield piece[offset:]
        offset = max(0, offset - len(piece))


def inflated_if_gzip(pieces: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """As the pieces, or inflated if they begin as gzip does. Raises ``TornLine`` if it is damaged."""
    head = b""
    for piece in pieces:
        head += piece or b""
        if len(head) >= len(MAGIC) or not MAGIC.startswith(head):
            break
        yield None
    rest = chain([head], pieces)
    yield from inflated(rest) if head.startswith(MAGIC) else rest


def inflated(pieces: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """The content of one gzip stream or several. Raises ``TornLine`` if it is damaged or ends too early."""
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
                data = member.decompress(piece, PIECE)
            except zlib.error as error:
                raise TornLine("The gzip data is damaged.") from error
            if data:
                yield data
            piece = member.unused_data or member.unconsumed_tail
    if not member.eof:
        raise TornLine("The gzip data ends too early: the end of the file is missing.")


def lines(pieces: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """Lines with their ends. Raises ``TornLine`` for one that is too long."""
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
            raise TornLine(f"A line has more than {MAX_LINE:,} bytes.")
    if begun:
        yield bytes(begun)


def items(
    pieces: Iterable[bytes | None], form: Form, line: int = 0, offset: int = 0, header: list[str] | None = None
) -> Iterator[Item | None]:
    """The items behind a line and an offset; of CSV without ``header`` the first row is it. Raises ``TornLine``."""
    if form.delimiter:
        yield from Rows(lines(pieces), form.delimiter, line, offset, header)
        return
    for found in lines(pieces):
        if found is None:
            yield None
            continue
        line, offset = line + 1, offset + len(found)
        yield Item(line_body(without_bom(found, line), line, form.text), line, offset)


def without_bom(found: bytes, line: int) -> bytes:
    """A line, the first one of a file without the mark of UTF-8."""
    return found.removeprefix(BOM) if line == 1 else found


def line_body(line: bytes, number: int, text: bool) -> Raw | None:
    """The message of a line; None if it is blank. Raises ``TornLine``."""
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
        raise TornLine(f"Line {number} is not UTF-8: {error}.") from error
    except InvalidBody as error:
        raise TornLine(f"Line {number}: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "There is one JSON value to a line (NDJSON); with --text each line is a text."
        raise TornLine(f"Line {number} is not JSON: {error}. {hint}") from error


def csv_header(file: BinaryIO, delimiter: str) -> list[str] | None:
    """The first row of a file of CSV; None if it has none."""
    rows = Rows(lines(content(file)), delimiter)
    for _ in rows:
        if rows.header is not None:
            break
    return rows.header


class Rows:
    """The rows of CSV, each as one JSON object of texts, whose keys are those of the header. Raises ``TornLine``."""

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
                raise TornLine(f"The row that begins in line {begun} is not CSV: {error}.") from error
            yield Item(body, self._line, self._offset)

    def _body(self, row: list[str], begun: int) -> Raw | None:
        if not row:
            return None
        if self.header is None:
            if twice := [name for name, count in Counter(row).items() if count > 1]:
                raise TornLine(f"Line {begun}: the header names {twice[0]!r} twice.")
            self.header = row
            return None
        if len(row) != len(self.header):
            raise TornLine(
                f"The fields of line {begun} do not fit the header: {len(row)} instead of {len(self.header)}."
            )
        return Raw(msgspec.json.encode(dict(zip(self.header, row, strict=True))))

    def _texts(self) -> Iterator[str]:
        """The lines for the CSV reader: the current one, then those behind it that belong to the same row."""
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
            return without_bom(found, self._line).decode()
        except UnicodeDecodeError as error:
            raise TornLine(f"Line {self._line} is not UTF-8: {error}.") from error


def stdin_bodies(form: Form, stopped: Callable[[], bool], asked: bool = True) -> Iterator[Raw | None]:
    """The bodies in standard input, and None whenever nothing comes for a while. Raises ``InvalidBody``."""
    with suppress(Stopped):
        for item in items(inflated_if_gzip(stdin_pieces(stopped, asked)), form):
            if item is None:
                yield None
            elif item.body is not None:
                yield item.body


def stdin_pieces(stopped: Callable[[], bool], asked: bool) -> Iterator[bytes | None]:
    """Pieces of standard input, and None whenever nothing comes for a while. Raises ``Stopped``."""
    source, empty = sys.stdin.buffer, 0
    while not stopped():
        if not stdin_ready():
            empty += 1
            if empty == SILENT_POLLS and not asked:
                note("Waiting for lines of standard input, since neither BODY nor --file is given.")
            yield None
            continue
        data = source.read1(PIECE)  # type: ignore[union-attr]  # files in memory have it, too
        if not data:
            return
        asked = True
        yield data
    raise Stopped


def stdin_ready() -> bool:
    """Whether standard input has something, or ends, within a poll."""
    try:
        return bool(select([sys.stdin.buffer], [], [], POLL)[0])
    except UnsupportedOperation:  # a file in memory, which has
        return True
