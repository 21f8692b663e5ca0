# SPDX-License-Identifier: Apache-2.0
"""A reader of Server-Sent Events over HTTP that distinguishes a finished stream from a broken one."""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.servers import CLIENT, PROJECT, Answer, Lost

WINDOW = 4096
"""Bytes of the receive buffer of a slow reader."""


class Event(NamedTuple):
    """An event; ``document`` is its data."""

    id: str
    kind: str
    document: Any


class Stream:
    """An open stream, or the ``answer`` that rejected it; ``last`` is the id for a resume, "" before the first.

    A ``slow`` reader has a small buffer, so that the server soon cannot send. The constructor and reading raise
    ``Lost``.
    """

    def __init__(
        self, url: str, path: str, *, last: str = "", project: str = PROJECT, timeout: float = 30, slow: bool = False
    ) -> None:
        self.last = last
        headers = {"Client-ID": CLIENT, "X-Project-ID": project} | ({"Last-Event-ID": last} if last else {})
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=timeout)
        try:
            self._connection.sock = _socket(self._connection, timeout, slow)
            self._connection.request("GET", path, headers=headers)
            self._reply = self._connection.getresponse()
            self.headers: Mapping[str, str] = {name.lower(): value for name, value in self._reply.getheaders()}
            body = b"" if self._reply.status == 200 else self._reply.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise Lost(f"{path}: {error!r}") from error
        self.answer = Answer(self._reply.status, self.headers, body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream."""
        self._reply.close()
        self._connection.close()

    def events(self) -> Iterator[Event]:
        """Yield the events until the server ends the stream properly. Heartbeats only update ``last``."""
        fields: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.decode().rstrip("\r\n").partition(":")
            if name or value:
                fields[name] = value.removeprefix(" ")
                continue
            self.last = fields.get("id", self.last)
            if "data" in fields:
                yield Event(self.last, fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}

    def _line(self) -> bytes:
        try:
            return self._reply.readline()
        except (OSError, HTTPException) as error:
            raise Lost(repr(error)) from error


def _socket(connection: HTTPConnection, timeout: float, slow: bool) -> socket.socket:
    opened = socket.socket()
    with contextlib.ExitStack() as failed:
        failed.callback(opened.close)
        opened.settimeout(timeout)
        if slow:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
        opened.connect((connection.host, connection.port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        failed.pop_all()
    return opened
