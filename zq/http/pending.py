# SPDX-License-Identifier: Apache-2.0
"""Deferred answers: objects that a responder passes to the edge instead of an answer.

An edge with an event loop puts a ``Handover`` into the environment. A request that waits for messages stores a
``PendingAnswer`` in it; a stream stores a ``Feed``.

The edge drives the request without a thread. It waits for a notification, lets the application poll again
(``App.go_on``), and sends the answer when it is available. On an edge without a handover, the request's own thread
drives the same objects.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

import falcon

from zq.storage.inline import LongScan

# Environment key of the edge's ``Handover``.
HANDOVER: Final = "zq.handover"


class Wait(Protocol):
    """A registration in a wait queue."""

    def left(self) -> float:
        """Return the maximum seconds to wait for a notification before the next attempt."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Begin to wait. ``notify`` is called on any thread, possibly at once, when the request should poll again."""
        ...

    def end(self) -> None:
        """Stop waiting."""
        ...

    def close(self) -> None:
        """Release the registration. Idempotent."""
        ...


class Feed(Protocol):
    """An endless response body, produced in parts."""

    def step(self) -> bytes | None:
        """Return the bytes to send now: ``b""`` if none are available, ``None`` at the end."""
        ...

    def left(self) -> float:
        """Return the maximum seconds to wait for a notification before the next ``step``."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Call ``notify`` once, on any thread and possibly at once, when bytes may be available."""
        ...

    def patience(self) -> float:
        """Return the seconds in which the reader must receive a part."""
        ...

    def drop(self) -> None:
        """Record that the reader stalled and was disconnected."""
        ...

    def close(self) -> None:
        """End the feed. Idempotent."""
        ...


class NoWait:
    """A ``Wait`` of a request that continues at once."""

    def left(self) -> float:
        return 0.0

    def begin(self, notify: Callable[[], object]) -> None:
        notify()

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


# ``NoWait`` has no state, so one instance is enough.
NO_WAIT: Final = NoWait()


class PendingAnswer:
    """A request that waits until ``look`` returns a result or its deadline passes.

    Args:
        look: Returns the result, or ``None`` if none is available yet.
        show: Writes the result to the response.
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
        """Call ``look`` once. Return whether the request is answered. An error of ``look`` ends the wait."""
        found = None
        try:
            found = self._look()
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
        """Block until the request is answered."""
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
    """The state of one request that the application and the edge share."""

    __slots__ = ("feed", "gone", "in_thread", "pending")

    def __init__(self) -> None:
        self.pending: PendingAnswer | None = None
        self.feed: Feed | None = None
        self.in_thread = False
        """Whether the pending answer must be attempted at once on a worker thread, because it may block."""
        self.gone = False
        """Whether the edge has detected that the client disconnected."""

    def answer_later(self, pending: PendingAnswer, *, in_thread: bool = False) -> None:
        """Pass a pending answer to the edge."""
        self.pending, self.in_thread = pending, in_thread

    def send(self, feed: Feed) -> None:
        """Pass an endless response body to the edge."""
        self.feed = feed

    def call_for_thread(self) -> None:
        """Request an attempt on a worker thread, because the last attempt would have blocked the event loop."""
        self.in_thread = True

    def begin_attempt(self) -> None:
        """Record that the requested attempt begins."""
        self.in_thread = False

    def end(self) -> None:
        """Record that the pending answer is complete."""
        self.pending = None

    def note_disconnect(self) -> None:
        """Record that the client has disconnected."""
        self.gone = True


def is_pending(req: falcon.Request) -> bool:
    """Return whether the request has not been answered yet."""
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
    """Answer with ``show(look())`` as soon as ``look`` returns a result; see ``PendingAnswer``.

    Args:
        attempted: Whether the caller has already called ``look`` without a result.
    """
    pending, in_thread = PendingAnswer(req, resp, wait, look, show), False
    handover: Handover | None = req.env.get(HANDOVER)
    try:
        if not attempted and pending.attempt():
            return
    except LongScan:
        in_thread = True
    if handover is None:
        pending.drive()
    else:
        handover.answer_later(pending, in_thread=in_thread)


def answer(req: falcon.Request, resp: falcon.Response, look: Callable[[], Any], show: Callable[[Any], object]) -> None:
    """Answer with ``show(look())``. If ``look`` takes too long for the event loop, repeat it on a worker thread."""
    try:
        found = look()
    except LongScan:
        handover: Handover = req.env[HANDOVER]
        handover.answer_later(
            PendingAnswer(req, resp, NO_WAIT, lambda: (look(),), lambda held: show(*held)), in_thread=True
        )
    else:
        show(found)
