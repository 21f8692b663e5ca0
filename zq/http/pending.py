# SPDX-License-Identifier: Apache-2.0
"""Deferred responses: long polls and streams that occupy no thread while they wait.

An HTTP server (edge) with an event loop puts a ``Handover`` object into the environment. The application stores a
``PendingRequest`` (long poll) or a ``Feed`` (stream) in this object. The HTTP server waits for a notification and calls
``App.poll_again`` or ``Feed.step`` until the response is complete.

Without a ``Handover``, as under gunicorn, the request's own thread waits.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import falcon

from zq.http.context import Request
from zq.storage.inline import LongScan

# Environment key of the ``Handover`` of the HTTP server (edge).
HANDOVER_KEY: Final = "zq.handover"


class WaitRegistration(Protocol):
    """The registration of a long poll for notifications of new messages."""

    def seconds_left(self) -> float:
        """Return the time in seconds after which the request must poll even if it has not been notified."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Start waiting. Call ``notify``, on any thread, when messages may be available.

        ``notify`` may be called before this method returns.
        """
        ...

    def end(self) -> None:
        """Stop waiting, but stay registered, so that ``begin`` can start the next wait."""
        ...

    def close(self) -> None:
        """Remove the registration. Idempotent."""
        ...


class Feed(Protocol):
    """The response body of a stream, produced in parts."""

    def step(self) -> bytes | None:
        """Return the next part of the stream: ``b""`` if none is available yet, ``None`` at the end."""
        ...

    def seconds_left(self) -> float:
        """Return the number of seconds after which the server calls ``step`` even without a notification."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Call ``notify``, on any thread, when a part may be available."""
        ...

    def send_timeout(self) -> float:
        """Return the timeout in seconds for sending a part to the reader."""
        ...

    def note_disconnect(self) -> None:
        """Record that the reader was disconnected because it stalled."""
        ...

    def close(self) -> None:
        """Close the stream. Idempotent."""
        ...


class ImmediateRegistration:
    """A ``WaitRegistration`` that notifies immediately, so that the request polls again at once."""

    def seconds_left(self) -> float:
        return 0.0

    def begin(self, notify: Callable[[], object]) -> None:
        notify()

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


IMMEDIATE: Final = ImmediateRegistration()


class PendingRequest:
    """A long poll that has no response yet.

    ``fetch`` polls once. If ``fetch`` returns ``None``, the long poll continues. ``show`` writes the result of
    ``fetch`` to the response.
    """

    def __init__(
        self,
        req: Request,
        resp: falcon.Response,
        wait: WaitRegistration,
        fetch: Callable[[], Any],
        show: Callable[[Any], object],
    ) -> None:
        self.req = req
        self.resp = resp
        self._wait = wait
        self._fetch = fetch
        self._show = show
        self._waits_since = 0.0
        self.seconds_left, self.close = wait.seconds_left, wait.close

    def begin(self, notify: Callable[[], object]) -> None:
        """Start waiting; see ``WaitRegistration``."""
        self._waits_since = time.monotonic()
        self._wait.begin(notify)

    def end(self) -> None:
        """Stop waiting, and add the wait to the ``waited`` seconds of the request."""
        self._wait.end()
        self.req.context.waited += time.monotonic() - self._waits_since

    def poll(self) -> bool:
        """Poll once, and return whether the response is complete.

        Raises ``LongScan`` if the poll would block the event loop. The caller then polls again on a worker thread.
        """
        found = None
        try:
            found = self._fetch()
        except LongScan:
            raise
        except BaseException:
            self.close()
            raise
        if found is None:
            return False
        self.close()
        self._show(found)
        return True

    def drive(self) -> None:
        """Wait and poll until the response is complete. Blocks."""
        answered = False
        while not answered:
            notified = threading.Event()
            self.begin(notified.set)
            try:
                notified.wait(self.seconds_left())
            finally:
                self.end()
            answered = self.poll()


class Handover:
    """The state of a deferred response, which the application and the HTTP server (edge) share."""

    __slots__ = ("feed", "is_disconnected", "needs_thread", "pending")

    def __init__(self) -> None:
        self.pending: PendingRequest | None = None
        self.feed: Feed | None = None
        self.needs_thread = False
        """Whether the next poll must run on a worker thread without waiting first, because the poll may block."""
        self.is_disconnected = False
        """Whether the client has disconnected."""

    def defer(self, pending: PendingRequest, *, needs_thread: bool = False) -> None:
        """Pass a long poll to the HTTP server. With ``needs_thread``, poll at once on a worker thread."""
        self.pending, self.needs_thread = pending, needs_thread

    def send(self, feed: Feed) -> None:
        """Pass a stream to the HTTP server."""
        self.feed = feed

    def request_thread(self) -> None:
        """Request a worker thread for the next poll. Call this method if the poll would block the event loop."""
        self.needs_thread = True

    def begin_poll(self) -> None:
        """Record that a poll has begun, and withdraw the request for a worker thread."""
        self.needs_thread = False

    def end(self) -> None:
        """Record that the response is complete."""
        self.pending = None

    def note_disconnect(self) -> None:
        self.is_disconnected = True


# The state of a request whose own thread waits. It never changes.
NO_HANDOVER: Final = Handover()


def defer(
    req: Request,
    resp: falcon.Response,
    wait: WaitRegistration,
    fetch: Callable[[], Any],
    show: Callable[[Any], object],
    *,
    polled: bool = False,
) -> None:
    """Respond with ``show(fetch())`` as soon as ``fetch`` returns a result other than ``None``.

    Args:
        wait: The registration for notifications. After each notification, ``fetch`` is called again.
        polled: Whether the caller has already called ``fetch`` once, without a result.
    """
    pending, needs_thread = PendingRequest(req, resp, wait, fetch, show), False
    handover: Handover | None = req.env.get(HANDOVER_KEY)
    try:
        if not polled and pending.poll():
            return
    except LongScan:
        needs_thread = True
    if handover is None:
        pending.drive()
    else:
        handover.defer(pending, needs_thread=needs_thread)


def respond(req: Request, resp: falcon.Response, fetch: Callable[[], Any], show: Callable[[Any], object]) -> None:
    """Respond with ``show(fetch())``. If ``fetch`` would block the event loop, repeat ``fetch`` on a worker thread."""
    try:
        found = fetch()
    except LongScan:
        handover: Handover = req.env[HANDOVER_KEY]
        handover.defer(
            PendingRequest(req, resp, IMMEDIATE, lambda: (fetch(),), lambda held: show(*held)), needs_thread=True
        )
    else:
        show(found)
