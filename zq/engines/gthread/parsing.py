# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a head to gunicorn's request, and what is refused on the way, without quoting any of it."""

import io
from http import HTTPStatus
from typing import Any, Final

from gunicorn.http import errors
from gunicorn.http.body import LengthReader
from gunicorn.http.message import Request
from gunicorn.http.unreader import Unreader

from zq.http import heads

MAX_LINE: Final = 8190
"""Bytes of a request line, and of a header."""
MAX_HEADERS: Final = 100
MAX_HEAD: Final = 65536
"""Bytes of a whole head."""
END: Final = b"\r\n\r\n"
CHUNKED: Final = -1
"""Stands for the length of a body that tells its end itself."""

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
"""What gunicorn's parser raises, the first row that fits."""


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
    """A request whose names are judged before those that WSGI would merge are dropped (``zq.http.heads``)."""

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

    def judge_trailers(self, section: bytes) -> None:
        """Nobody asks for the headers behind a body in chunks, but they must be some. Raises ``Refused``."""
        try:
            self.parse_headers(section, from_trailer=True)
        except Exception as error:  # of several classes, and one that nobody foresaw is no reason to answer 500
            raise Refused(HTTPStatus.BAD_REQUEST, "The headers behind the body are malformed.") from error

    def _peer_trusted_for_forwarded(self) -> tuple[dict[str, str], list[str]]:
        """Nobody is believed."""
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
    except Exception as error:  # of many classes, and one that nobody foresaw is no reason to answer 500
        raise _refused(error) from error
    if found.version > (1, 0) and not any(name == "HOST" for name, _ in found.headers):
        raise Refused(HTTPStatus.BAD_REQUEST, "The header Host is missing.")
    return found


def _refused(error: Exception) -> Refused:
    status, sentence = next(row[1:] for row in SENTENCES if isinstance(error, row[0]))
    return Refused(status, sentence)
