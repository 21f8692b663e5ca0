# SPDX-License-Identifier: Apache-2.0
"""From bytes to gunicorn's request: heads by gunicorn's own parser, bodies in chunks by ours; and what is refused on
the way, without quoting any of it.
"""

import io
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from gunicorn.http import errors
from gunicorn.http.body import LengthReader
from gunicorn.http.message import Request
from gunicorn.http.unreader import Unreader

from zq.http import heads

# Bytes of a request line, and of a header.
MAX_LINE: Final = 8190
# Headers of a request.
MAX_HEADERS: Final = 100
# Bytes of a whole head.
MAX_HEAD: Final = 65536
# What ends a head, and trailers.
END: Final = b"\r\n\r\n"
# The length of a body in chunks, which marks its own end.
CHUNKED: Final = -1
# What gunicorn's parser raises, the first row that fits.
SENTENCES: Final[tuple[tuple[type[Exception], HTTPStatus, str], ...]] = (
    (errors.LimitRequestLine, HTTPStatus.REQUEST_URI_TOO_LONG, f"The request line must be at most {MAX_LINE} bytes."),
    (
        errors.LimitRequestHeaders,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"A request may have {MAX_HEADERS} headers of {MAX_LINE} bytes each, {MAX_HEAD} bytes together.",
    ),
    (errors.ExpectationFailed, HTTPStatus.EXPECTATION_FAILED, "Expect must be 100-continue."),
    (errors.UnsupportedTransferCoding, HTTPStatus.BAD_REQUEST, "Transfer-Encoding must be chunked."),
    (errors.ObsoleteFolding, HTTPStatus.BAD_REQUEST, "A header must stand on one line."),
    (errors.InvalidHTTPVersion, HTTPStatus.BAD_REQUEST, "The version must be HTTP/1.0 or HTTP/1.1."),
    (errors.InvalidHeaderName, HTTPStatus.BAD_REQUEST, "A header has a malformed name."),
    (errors.InvalidHeader, HTTPStatus.BAD_REQUEST, "A header is malformed, or given twice."),
    (Exception, HTTPStatus.BAD_REQUEST, "The request line is malformed."),
)
# A token (RFC 9110, 5.6.2).
TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# A quoted string (RFC 9110, 5.6.4).
QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
# An extension of a chunk (RFC 9112, 7.1.1).
EXTENSION: Final = rb"[ \t]*;[ \t]*" + TOKEN + rb"(?:[ \t]*=[ \t]*(?:" + TOKEN + rb"|" + QUOTED + rb"))?"
# RFC 9112, 7.1: a chunk's first line. What is given back on the way never fits what follows, so no part is tried in
# more than two ways. (Possessive quantifiers would say so, but Python 3.11.2 takes what they refuse.)
CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:" + EXTENSION + rb")*\r\n")
# Bytes of a chunk's size and extensions, without the end of the line.
MAX_SIZE_LINE: Final = 1024
# Bytes that sizes, extensions and ends of lines may take besides as many as the content has: sooner or later chunks
# must have more than five bytes, as each of one byte costs as much time as one of 64 kB.
MAX_FRAMING: Final = 65536
# Chunks that are decoded in one go.
STEP: Final = 256
# What ends a line.
NEWLINE: Final = b"\r\n"
# The sentence of a 400.
MALFORMED: Final = "The chunks of the body are malformed."


class Refused(Exception):
    """A request that the application need not see."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Inbox(Unreader):  # type: ignore[misc]
    """What has come, and nothing after it: reading it never waits."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.buf.write(data)

    def chunk(self, size_hint: int | None = None) -> bytes:
        return b""


class RawRequest(Request):  # type: ignore[misc]
    """A request whose names are checked before those that WSGI would merge are dropped (``zq.http.heads``)."""

    body: Any
    headers: list[tuple[str, str]]
    _expected_100_continue: bool

    def __init__(self, cfg: Any, inbox: Inbox, peer: Any, number: int) -> None:
        super().__init__(cfg, inbox, peer, number)
        self.refusal = heads.refusal(self.headers, self.uri)
        self.expects = self._expected_100_continue
        self._expected_100_continue = False  # the loop says so, for a body that it will read
        self.incomplete = False
        """Whether some of the body was not read: nothing can follow on the connection."""
        if any("_" in name for name, _ in self.headers):
            self.headers = [(name, value) for name, value in self.headers if "_" not in name]

    @property
    def length(self) -> int:
        """Bytes of the body, or ``CHUNKED``."""
        reader = self.body.reader
        return reader.length if isinstance(reader, LengthReader) else CHUNKED

    def take_body(self, data: bytes | bytearray, incomplete: bool = False) -> None:
        """Make ``data``, which is decoded, the body; ``incomplete``: more of it was not read."""
        self.body = io.BytesIO(data)
        self.incomplete = incomplete

    def check_trailers(self, section: bytes) -> None:
        """The trailers of a body in chunks are dropped, but they must be well formed. Raises ``Refused``."""
        try:
            self.parse_headers(section, from_trailer=True)
        except Exception as error:  # of several classes, and an unforeseen one is no reason to answer 500
            raise Refused(HTTPStatus.BAD_REQUEST, "The headers behind the body are malformed.") from error

    def _peer_trusted_for_forwarded(self) -> tuple[dict[str, str], list[str]]:
        """No peer is trusted to name the scheme."""
        return {}, []


def head_ends(data: bytearray, searched: int) -> int:
    """The place behind the head's last byte, 0 if it has not come. ``searched`` bytes were looked at before.

    Raises ``Refused`` for what cannot become a head any more.
    """
    end = data.find(END, max(0, searched - 3))
    if end >= 0 and end <= MAX_HEAD:
        return end + len(END)
    if data.count(b"\n") != data.count(b"\r\n"):
        raise Refused(HTTPStatus.BAD_REQUEST, "Lines must end with a carriage return and a line feed.")
    if len(data) > MAX_LINE and b"\r\n" not in data:
        raise _refused(errors.LimitRequestLine(0, MAX_LINE))
    if len(data) > MAX_HEAD:
        raise _refused(errors.LimitRequestHeaders(""))
    return 0


def request(cfg: Any, head: bytes, peer: Any, number: int) -> RawRequest:
    """The request of a whole head. Raises ``Refused``."""
    # The C parser takes bare line feeds for ends of lines, and drops what is folded.
    if head.count(b"\n") != head.count(b"\r\n"):
        raise Refused(HTTPStatus.BAD_REQUEST, "Lines must end with a carriage return and a line feed.")
    if b"\r\n " in head or b"\r\n\t" in head:
        raise _refused(errors.ObsoleteFolding(""))
    try:
        found = RawRequest(cfg, Inbox(head), peer, number)
    except Exception as error:  # of many classes, and an unforeseen one is no reason to answer 500
        raise _refused(error) from error
    if found.version > (1, 0) and not any(name == "HOST" for name, _ in found.headers):
        raise Refused(HTTPStatus.BAD_REQUEST, "The header Host is missing.")
    return found


def _refused(error: Exception) -> Refused:
    status, sentence = next(row[1:] for row in SENTENCES if isinstance(error, row[0]))
    return Refused(status, sentence)


class Chunks:
    """The decoder of one body. ``bound``: bytes that it may have; ``trailers`` checks the headers behind the last chunk
    and raises ``Refused``.
    """

    def __init__(self, bound: int, trailers: Callable[[bytes], object]) -> None:
        self.body = bytearray()
        """What was decoded, at most ``bound`` and one byte."""
        self.more = False
        """Whether ``take`` can go on at once, without anything that has yet to come."""
        self.taken = 0
        """Bytes that were decoded and removed."""
        self._bound = bound
        self._trailers = trailers
        self._at = 0
        self._left = 0  # of the chunk that has begun, with the end of its line
        self._searched = 0  # bytes of trailers
        self._last = False
        self._whole = False

    @property
    def incomplete(self) -> bool:
        """Whether the body is larger than its bound: the rest of it is not decoded."""
        return len(self.body) > self._bound

    def take(self, data: bytearray) -> bool:
        """Decode some of ``data``, and remove that sooner or later; whether the body is whole, or too large.

        What is not removed when it is whole belongs to the next request. Raises ``Refused``.
        """
        for _ in range(STEP):
            if not self._go_on(data):
                break
        else:
            self.more = True
            return False
        self.more = False
        del data[: self._at]
        self.taken += self._at
        self._at = 0
        return self._whole or self.incomplete

    def _go_on(self, data: bytearray) -> bool:
        """Decode a chunk, or what there is of it; False if nothing can follow now."""
        if self._last:
            return self._end(data)
        if not self._left and not self._begin(data):
            return False
        if self._last:
            return True
        return self._content(data)

    def _begin(self, data: bytearray) -> bool:
        """Read a size; False if it has not come."""
        at = self._at
        found = CHUNK_SIZE.match(data, at, at + MAX_SIZE_LINE + 2)
        if found is None:
            if data.find(NEWLINE, at, at + MAX_SIZE_LINE + 2) >= 0 or len(data) - at >= MAX_SIZE_LINE + 2:
                raise Refused(HTTPStatus.BAD_REQUEST, MALFORMED)
            return False
        self._at = found.end()
        if self.taken + self._at - len(self.body) > MAX_FRAMING + len(self.body):
            raise Refused(HTTPStatus.BAD_REQUEST, "The chunks of the body are too small.")
        size = int(found[1], 16)
        self._left = size + 2 if size else 0
        self._last = size == 0
        return True

    def _content(self, data: bytearray) -> bool:
        """Take what has come of a chunk; whether it is whole."""
        at, size = self._at, min(self._left - 2, len(data) - self._at)
        if size > 0:
            self.body += data[at : at + size]
            self._at, self._left = at + size, self._left - size
            if self.incomplete:
                del self.body[self._bound + 1 :]
                return False
        if self._left > 2:
            return False
        end = data[self._at : self._at + 2]
        if not NEWLINE.startswith(end):
            raise Refused(HTTPStatus.BAD_REQUEST, MALFORMED)
        if len(end) < 2:
            return False
        self._at, self._left = self._at + 2, 0
        return True

    def _end(self, data: bytearray) -> bool:
        """Read the trailers; nothing can follow."""
        at = self._at
        if data[at : at + 2] == NEWLINE:
            self._at, self._whole = at + 2, True
            return False
        end = data.find(END, at + max(0, self._searched - 3), at + MAX_HEAD)
        if end >= 0:
            self._trailers(bytes(data[at:end]))
            self._at, self._whole = end + len(END), True
        elif len(data) - at >= MAX_HEAD:
            raise Refused(HTTPStatus.BAD_REQUEST, MALFORMED)
        self._searched = len(data) - at
        return False
