# SPDX-License-Identifier: Apache-2.0
"""The parameter ``wait``: requests that may wait for messages (extensions 2), and callers that hang up meanwhile."""

import select
import socket
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

import falcon

from zq.core.waiting import Polled, Waiters
from zq.http import query
from zq.http.authentication import check_again
from zq.http.pending import HANDOVER, answer, answer_later
from zq.model import QueueRef

T = TypeVar("T")
# The events by which poll reports that the caller has closed its connection. Systems without the first one report only
# callers that have closed both directions.
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
# Tells whether an answer has something.
FOUND: Final = attrgetter("found")


def polled(
    req: falcon.Request,
    resp: falcon.Response,
    waiters: Waiters,
    ask: Callable[[], T],
    show: Callable[[T], object],
    *,
    takes: bool,
) -> None:
    """Answer with ``show`` what ``ask`` returns once that has ``found`` something, or the request's time is up."""

    def show_outcome(outcome: Polled[T]) -> None:
        if outcome.turned_away:
            resp.set_header("Retry-After", "1")
        show(outcome.answer)

    poll(req, resp, waiters, req.context.queue, query.integer(req, "wait"), ask, show_outcome, takes=takes)


def poll(
    req: falcon.Request,
    resp: falcon.Response,
    waiters: Waiters,
    queue: QueueRef,
    wait: int | None,
    ask: Callable[[], T],
    show: Callable[[Polled[T]], object],
    *,
    takes: bool,
    paused: bool = False,
) -> None:
    """Answer with ``show`` what a poll of the queue comes to; see ``Waiters.enter``.

    ``takes``: asking takes messages, so that it is not done for a caller that has disconnected.
    """
    req.context.waits = bool(wait)
    caller_gone = gone(req)
    if takes and caller_gone():
        resp.status = falcon.HTTP_204
        return
    if wait:
        visit = waiters.enter(queue, wait, takes=takes, check=check_again(req), paused=paused)
        answer_later(req, resp, visit, partial(visit.look, ask, FOUND, caller_gone), show)
        return
    answer(req, resp, lambda: Polled(ask()), show)


def connection(req: falcon.Request) -> socket.socket | None:
    """Return the caller's connection, if the server gives it to applications."""
    found: socket.socket | None = req.env.get("gunicorn.socket")
    return found


def hung_up(caller: socket.socket | None) -> bool:
    """Return whether the caller sends no more; False if that cannot be known."""
    if caller is None:
        return False
    poll = select.poll()
    poll.register(caller, HUNG_UP)
    return bool(poll.poll(0))


def gone(req: falcon.Request) -> Callable[[], bool]:
    """Return a function that tells whether this caller has disconnected."""
    handover = req.env.get(HANDOVER)
    if handover is not None:
        return lambda: bool(handover.gone)
    return partial(hung_up, connection(req))
