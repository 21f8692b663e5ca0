# SPDX-License-Identifier: Apache-2.0
"""Bodies in chunks, decoded as they come: each byte is looked at once, and a step is bounded."""

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from zq.engines.gthread.parsing import END, MAX_HEAD, Refused

TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
QUOTED: Final = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*+"'
EXTENSION: Final = rb"[ \t]*+;[ \t]*+" + TOKEN + rb"(?:[ \t]*+=[ \t]*+(?:" + TOKEN + rb"|" + QUOTED + rb"))?+"
CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16}+)(?:" + EXTENSION + rb")*+\r\n")
"""RFC 9112, 7.1 and 7.1.1. Nothing in it is tried twice."""
MAX_SIZE_LINE: Final = 1024
"""Bytes of a chunk's size and extensions, without the end of the line."""
MAX_FRAMING: Final = 65536
"""Bytes that sizes, extensions and ends of lines may take besides as many as the content has: sooner or later chunks
must have more than five bytes, as each of one byte costs as much time as one of 64 kB."""
STEP: Final = 256
"""Chunks that are decoded in one go."""
NEWLINE: Final = b"\r\n"
MALFORMED: Final = "The chunks of the body are malformed."


class Chunks:
    """The decoder of one body. ``bound``: bytes that it may have; ``trailers`` judges the headers behind the last chunk
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
