# SPDX-License-Identifier: Apache-2.0
"""HTTP resources for live streams as server-sent events (extensions contract, section 8).

Under Granian, ``EventStream.step`` returns the events without blocking. Under gunicorn, each stream occupies a thread.
"""

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import falcon

from zq.core.publishing import parse_marker
from zq.core.rates import Account, Rates
from zq.core.streams import Gap, Stream, Streams
from zq.errors import NotAuthorized, ZqError
from zq.http import query, waiting
from zq.http.authentication import check_again
from zq.http.context import Request
from zq.http.pending import HANDOVER_KEY, Handover
from zq.model import limits
from zq.model.allowance import Allowance
from zq.model.scopes import Kind, Verb
from zq.model.topics import EVERYTHING, Pattern
from zq.wire import publishing

LOG = logging.getLogger(__name__)
# Media type of streams.
MEDIA: Final = "text/event-stream"
# Seconds between heartbeats of an idle stream.
HEARTBEAT: Final = 15.0
# Seconds after which an idle stream checks whether its reader is connected.
CHECK_INTERVAL: Final = 1.0
# Maximum bytes of a part. A reader that does not receive a part within ``streams.STALL_TIMEOUT`` is disconnected.
PIECE_SIZE: Final = 64 << 10
# Separator of events.
EVENT_END: Final = b"\n\n"


class _StreamResource:
    media = MEDIA

    def __init__(self, streams: Streams, rates: Rates) -> None:
        self._streams = streams
        self._rates = rates

    def _open(
        self,
        req: Request,
        resp: falcon.Response,
        pattern: Pattern,
        visible: Callable[[str], bool] | None = None,
    ) -> None:
        after = parse_marker(req.get_header("Last-Event-ID") or query.text(req, "marker"))
        connection = req.env.get(waiting.SOCKET)
        disconnect = None if connection is None else partial(_disconnect, connection)
        stream = self._streams.open(req.context.project, pattern, after, visible, disconnect)
        resp.content_type = MEDIA
        resp.set_header("Cache-Control", "no-store")
        resp.set_header("X-Accel-Buffering", "no")
        account = req.context.account
        resp.stream = events = EventStream(stream, connection, check_again(req), account, self._rates.now)
        handover: Handover | None = req.env.get(HANDOVER_KEY)
        if handover is not None:
            handover.send(events)


class TopicStream(_StreamResource):
    """``/v2/topics/{topic}/stream``: the stream of one topic."""

    policy = {"GET": "topics:stream"}

    def on_get(self, req: Request, resp: falcon.Response, topic: str) -> None:
        self._open(req, resp, Pattern(topic))


class ProjectStream(_StreamResource):
    """``/v2/stream``: one stream of all topics that match a pattern."""

    policy = {"GET": "topics:stream"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        pattern = limits.pattern(query.text(req, "match") or EVERYTHING)
        allowance: Allowance = req.context.allowance
        visible = allowance.authorize_glob("topics:stream", Verb.OBSERVE, Kind.TOPIC, pattern.text)
        self._open(req, resp, pattern, visible)


class EventStream:
    """The response body of a stream: an iterator of server-sent events, encoded as bytes."""

    # A generator would not do: closing a generator that has not started would not close the stream.

    def __init__(
        self,
        stream: Stream,
        connection: socket.socket | None,
        check: Callable[[], object] | None = None,
        account: Account | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialize the body.

        Args:
            check: Raises ``NotAuthorized`` if the client may no longer read. Called every ``HEARTBEAT`` seconds.
            account: Rate limiter to charge for the events. While the project exceeds its rate limit, the stream sends
                only heartbeats.
            now: The clock of the rate limiter.
        """
        self._stream = stream
        self._connection = connection
        self._portion, self._at = publishing.opening(stream.position), 0
        self._sent_at = self._polled_at = self._checked_at = time.monotonic()
        self._check = check
        self._account = account
        self._now = now
        self._is_held = False

    def __iter__(self) -> "EventStream":
        return self

    def __next__(self) -> bytes:
        self._stream.end_send()
        try:
            return self._next()
        finally:
            self._stream.begin_send()

    def close(self) -> None:
        self._stream.close()

    def _next(self) -> bytes:
        while self._at == len(self._portion):
            if self._must_end():
                raise StopIteration
            if not self._fetch(CHECK_INTERVAL) and time.monotonic() - self._polled_at >= CHECK_INTERVAL:
                self._polled_at = time.monotonic()
                if self._polled_at - self._sent_at < HEARTBEAT and not waiting.is_closed_by_peer(self._connection):
                    return b""  # lets the edge detect a disconnected reader
                self._portion, self._at = publishing.heartbeat(self._stream.position), 0
        self._sent_at = time.monotonic()
        return self._piece()

    def step(self) -> bytes | None:
        if self._at == len(self._portion):
            if self._must_end():
                return None
            if not self._fetch(0):
                if self.seconds_left():
                    return b""
                self._portion, self._at = publishing.heartbeat(self._stream.position), 0
        self._sent_at = time.monotonic()
        return self._piece()

    def seconds_left(self) -> float:
        rest = self._seconds_in_debt() if self._is_held else self._stream.seconds_until_poll()
        return max(0.0, min(self._sent_at + HEARTBEAT - time.monotonic(), rest))

    def begin(self, notify: Callable[[], object]) -> None:
        """Call ``notify`` when events may be available. While the project exceeds its rate limit, do nothing."""
        if not self._is_held:
            self._stream.notify_when(notify)

    def send_timeout(self) -> float:
        return self._stream.patience

    def note_disconnect(self) -> None:
        self._stream.note_disconnect()

    def _must_end(self) -> bool:
        if self._check is not None and time.monotonic() - self._checked_at >= HEARTBEAT:
            self._checked_at = time.monotonic()
            try:
                self._check()
            except NotAuthorized:
                return True
            except ZqError as error:
                LOG.debug("A stream's credential cannot be looked up now: %s", error)
        return self._stream.over

    def _seconds_in_debt(self) -> float:
        return 0.0 if self._account is None else self._account.owes(self._now())

    def _fetch(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for events, fetch them and charge for them. Return whether events were fetched.

        While the project exceeds its rate limit, no events are fetched.
        """
        owed = self._seconds_in_debt()
        self._is_held = owed > 0
        if self._is_held:
            time.sleep(min(owed, seconds))
            return False
        portion = self._stream.next(seconds)
        if isinstance(portion, Gap):
            self._portion, self._at = publishing.gap_event(portion.after, portion.resumes), 0
            return True
        if portion.count:
            self._portion, self._at = portion.data, 0
            if self._account is not None:
                self._account.spend(self._now(), portion.count, len(portion.data))
        return bool(portion.count)

    def _piece(self) -> bytes:
        begin, end = self._at, self._at + PIECE_SIZE
        if end < len(self._portion):
            last = self._portion.rfind(EVENT_END, begin, end)
            end = end if last < 0 else last + len(EVENT_END)
        piece = self._portion[begin:end]
        self._at += len(piece)
        return piece


def _disconnect(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed
        connection.shutdown(socket.SHUT_RDWR)
