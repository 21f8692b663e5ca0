# SPDX-License-Identifier: Apache-2.0
"""Answers that come later: what a responder leaves to the server's edge instead of an answer.

An edge with an event loop puts a ``Handover`` into the environment. A request that has to wait for messages leaves a
``PendingAnswer`` there, and the edge drives it without a thread: it waits until it is notified, lets the application
look again, and sends the answer once there is one (``App.go_on``). A stream leaves a ``Feed``. Under a server without
a handover, the thread of the request drives the same objects.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import falcon

from zq.storage.inline import LongWalk

# The key of the environment under which an edge with an event loop puts its ``Handover``.
HANDOVER: Final = "zq.handover"


class Wait(Protocol):
    """A place in a wait queue."""

    def left(self) -> float:
        """Return the seconds after which to look again without a notification."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Begin to wait. ``notify`` is called, from any thread, when it is time to look again; maybe at once."""
        ...

    def end(self) -> None:
        """End the wait that ``begin`` began."""
        ...

    def close(self) -> None:
        """Give the place back. May be called twice."""
        ...


class Feed(Protocol):
    """A response body without an end, as its parts come."""

    def step(self) -> bytes | None:
        """Return what to send now: ``b""`` if there is nothing yet, None if nothing will follow."""
        ...

    def left(self) -> float:
        """Return the seconds after which to take another step without a notification."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Call ``notify`` once, from any thread, when there may be something to send; maybe at once."""
        ...

    def patience(self) -> float:
        """Return the seconds that the reader may take for one part."""
        ...

    def drop(self) -> None:
        """Record that the reader took nothing and was disconnected."""
        ...

    def close(self) -> None:
        """End the feed. May be called twice."""
        ...


class PendingAnswer:
    """A request that waits until ``look`` finds something or its time is up.

    ``look`` returns None as long as there is nothing to answer; ``show`` writes what it found into the response.
    """

    def __init__(
        self,
        req: falcon.Request,
        resp: falcon.Response,
        wait: Wait,
        look: Callable[[], Any],
        show: Callable[[Any], object],
    ) -> None:
        self.req = req
        self.resp = resp
        self._wait = wait
        self._look = look
        self._show = show
        self.left, self.begin, self.end, self.close = wait.left, wait.begin, wait.end, wait.close

    def attempt(self) -> bool:
        """Look for something to answer. Return False if there is nothing yet; what ``look`` raises ends the wait."""
        found = None
        try:
            found = self._look()
        except LongWalk:
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
        """Wait on this thread until the request is answered."""
        answered = False
        while not answered:
            notified = threading.Event()
            self.begin(notified.set)
            try:
                notified.wait(self.left())
            finally:
                self.end()
            answered = self.attempt()


class Handover:
    """The work that the application leaves to the edge for one request, and whether the caller is still connected."""

    __slots__ = ("feed", "gone", "in_thread", "pending")

    def __init__(self) -> None:
        self.pending: PendingAnswer | None = None
        self.feed: Feed | None = None
        self.in_thread = False
        """Whether the edge attempts the pending answer at once, on a worker thread."""
        self.gone = False
        """Whether the edge has found that the caller has disconnected."""

    def answer_later(self, pending: PendingAnswer, *, in_thread: bool = False) -> None:
        """Leave an answer that comes later."""
        self.pending, self.in_thread = pending, in_thread

    def send(self, feed: Feed) -> None:
        """Leave a body without an end."""
        self.feed = feed

    def call_for_thread(self) -> None:
        """Have the pending answer attempted at once, on a thread: its way was too long for the event loop's."""
        self.in_thread = True

    def begin_attempt(self) -> None:
        """An attempt begins, on whatever thread it was to."""
        self.in_thread = False

    def end(self) -> None:
        """The pending answer has come."""
        self.pending = None

    def note_disconnect(self) -> None:
        """The caller has disconnected."""
        self.gone = True


def is_pending(req: falcon.Request) -> bool:
    """Return whether the request has no answer yet."""
    handover: Handover | None = req.env.get(HANDOVER)
    return handover is not None and handover.pending is not None


def answer_later(
    req: falcon.Request,
    resp: falcon.Response,
    wait: Wait,
    look: Callable[[], Any],
    show: Callable[[Any], object],
    *,
    attempted: bool = False,
) -> None:
    """Answer with ``show(look())`` as soon as that finds something, at once or later: see ``PendingAnswer``.

    ``attempted``: the caller has looked already and found nothing.
    """
    pending, in_thread = PendingAnswer(req, resp, wait, look, show), False
    handover: Handover | None = req.env.get(HANDOVER)
    try:
        if not attempted and pending.attempt():
            return
    except LongWalk:
        in_thread = True
    if handover is None:
        pending.drive()
    else:
        handover.answer_later(pending, in_thread=in_thread)


def answer_in_thread(
    req: falcon.Request, resp: falcon.Response, wait: Wait, look: Callable[[], Any], show: Callable[[Any], object]
) -> None:
    """Answer with ``show(look())`` on another thread than the event loop's, where this request has begun."""
    handover: Handover = req.env[HANDOVER]
    handover.answer_later(PendingAnswer(req, resp, wait, look, show), in_thread=True)
