# SPDX-License-Identifier: Apache-2.0
"""``/v2/topics/{topic}/stream`` and ``/v2/stream``: Server-Sent Events (extensions 8).

The engine asks for one portion after the other and sends it before it asks for the next, so that a slow reader holds up
its own thread and nothing else. What tells that a reader has gone away depends on the engine: gunicorn's socket can be
looked at, and Granian notices when it is given something, be it nothing.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import falcon

from zq import limits
from zq.broker import Broker
from zq.broker.publishing import as_marker
from zq.broker.streams import PATIENCE, Gap, Stream
from zq.http import callers, query, unread
from zq.topics import EVERYTHING, Pattern
from zq.wire import publishing

MEDIA: Final = "text/event-stream"
HEARTBEAT: Final = 15.0
"""Seconds."""
LOOK: Final = 1.0
"""Seconds after which a stream that has nothing to send looks whether its reader is there."""
PIECE: Final = 64 << 10
"""Bytes that are sent at a time: a reader that takes so much in ``PATIENCE`` is a slow one, and no dead one."""
EVENT_END: Final = b"\n\n"


class _Streaming:
    """What both resources have in common."""

    media = MEDIA

    def __init__(self, broker: Broker) -> None:
        self._streams = broker.streams

    def _open(self, req: falcon.Request, resp: falcon.Response, pattern: Pattern) -> None:
        after = as_marker(req.get_header("Last-Event-ID") or query.text(req, "marker"))
        connection = callers.connection(req)
        if connection is None and req.env["SERVER_PORT"].isdecimal():
            unread.bound(int(req.env["SERVER_PORT"]), PATIENCE)
        stream = self._streams.open(req.context.project, pattern, after)
        resp.content_type = MEDIA
        resp.set_header("Cache-Control", "no-store")
        resp.set_header("X-Accel-Buffering", "no")
        resp.stream = Events(stream, connection, self._streams.now)


class TopicStream(_Streaming):
    """``/v2/topics/{topic}/stream``"""

    policy = {"GET": "topics:stream"}

    def on_get(self, req: falcon.Request, resp: falcon.Response, topic: str) -> None:
        self._open(req, resp, Pattern(topic))


class ProjectStream(_Streaming):
    """``/v2/stream``"""

    policy = {"GET": "topics:stream"}

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._open(req, resp, limits.pattern(query.text(req, "match") or EVERYTHING))


class Events:
    """The body of the response, a portion at a time.

    No generator: one that is closed before it was begun would not give its place back.
    """

    def __init__(self, stream: Stream, connection: socket.socket | None, now: Callable[[], float]) -> None:
        """``connection``: the reader's socket, if the engine gives it."""
        self._stream = stream
        self._connection = connection
        self._now = now
        self._portion, self._at = publishing.opening(stream.position), 0
        self._sent = self._looked = time.monotonic()
        if connection is not None:
            stream.hang_up = self._hang_up

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> bytes:
        self._stream.handed = None
        try:
            return self._next()
        finally:
            self._stream.handed = time.monotonic()

    def close(self) -> None:
        """The engine is done with it."""
        self._stream.close()

    def _next(self) -> bytes:
        while self._at == len(self._portion):
            if self._stream.over:
                raise StopIteration
            portion = self._stream.next(LOOK)
            if isinstance(portion, Gap):
                self._portion, self._at = publishing.gap_event(portion.after, portion.resumes), 0
            elif portion:
                self._portion, self._at = publishing.events(portion, self._now()), 0
            elif time.monotonic() - self._looked >= LOOK:
                self._looked = time.monotonic()
                if self._looked - self._sent < HEARTBEAT and not callers.hung_up(self._connection):
                    return b""  # to one that has hung up sending fails, unless it still reads
                self._portion, self._at = publishing.heartbeat(self._stream.position), 0
        self._sent = time.monotonic()
        return self._piece()

    def _piece(self) -> bytes:
        """The next whole events of the portion, or a piece of a large one."""
        begin, end = self._at, self._at + PIECE
        if end < len(self._portion):
            last = self._portion.rfind(EVENT_END, begin, end)
            end = end if last < 0 else last + len(EVENT_END)
        piece = self._portion[begin:end]
        self._at += len(piece)
        return piece

    def _hang_up(self) -> None:
        with suppress(OSError):  # it has been closed meanwhile
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)
