# SPDX-License-Identifier: Apache-2.0
"""Answers of the application, written without waiting for their readers, and those of the worker's own."""

import json
import select
import socket
import time
from http import HTTPStatus
from typing import Any, Final

from gunicorn import util
from gunicorn.http.wsgi import Response

# Seconds.
RETRY_AFTER: Final = 1


class Answer(Response):  # type: ignore[misc]
    """What the application answers to one request.

    An answer of known length goes to the socket as far as that takes it at once, in one piece with its head, and the
    rest is ``unsent``. One of unknown length is a stream: writing it waits, for ``patience`` seconds at most.
    """

    def __init__(self, req: Any, sock: socket.socket, cfg: Any, patience: float) -> None:
        self.headers_sent = False
        super().__init__(req, sock, cfg)
        self._pieces: list[bytes] = []
        self._patience = patience
        self.unsent: memoryview | None = None

    def send_headers(self) -> None:
        if not self.headers_sent:
            lines = [*self.default_headers(), *[f"{name}: {value}\r\n" for name, value in self.headers], "\r\n"]
            self._pieces.append("".join(lines).encode("latin-1"))
            self.headers_sent = True

    def _emit_body(self, data: bytes) -> None:
        if self.chunked:
            self._pieces.append(b"%X\r\n%s\r\n" % (len(data), data))
            self._flush_stream()
        elif self.response_length is None and data:
            self._pieces.append(data)
            self._flush_stream()
        else:
            self._pieces.append(data)

    def close(self) -> None:
        """The answer is whole."""
        self.send_headers()
        if self.chunked:
            self._pieces.append(b"0\r\n\r\n")
            self._flush_stream()
        elif self._pieces:
            rest = memoryview(b"".join(self._pieces))
            self._pieces.clear()
            sent = send(self.sock, rest)
            self.unsent = rest[sent:] if sent < len(rest) else None

    def _flush_stream(self) -> None:
        rest = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        deadline = time.monotonic() + self._patience
        while (sent := send(self.sock, rest)) < len(rest):
            rest = rest[sent:]
            poll = select.poll()
            poll.register(self.sock, select.POLLOUT)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                raise TimeoutError("the reader takes nothing")


def send(sock: socket.socket, data: memoryview) -> int:
    """How many bytes the socket took at once. Raises ``OSError`` if its reader has gone."""
    try:
        return sock.send(data)
    except BlockingIOError:
        return 0


def refusal(status: HTTPStatus, sentence: str, retry: bool = False) -> memoryview:
    """A whole answer of the worker's own, after which it closes the connection."""
    body = json.dumps({"title": status.phrase, "description": sentence}).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Date: {util.http_date()}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Vary: Accept",
        *([f"Retry-After: {RETRY_AFTER}"] if retry else []),
        "Connection: close",
    ]
    return memoryview("\r\n".join([*lines, "", ""]).encode() + body)
