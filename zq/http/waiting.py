# SPDX-License-Identifier: Apache-2.0
"""Long polls over HTTP: the parameter ``wait``, and detection of disconnected clients (extensions, section 2)."""

import select
import socket
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

import falcon

from zq.core.waiting import PollResult, Waiters
from zq.http import query
from zq.http.authentication import check_again
from zq.http.context import Request
from zq.http.pending import HANDOVER_KEY, Handover, defer, respond
from zq.model import QueueRef

T = TypeVar("T")
# ``poll`` events of a closed connection. Without POLLRDHUP, the kernel reports only connections closed by both sides.
HANG_UP_EVENTS: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
# Environment key of the client's socket, which only gunicorn provides.
SOCKET: Final = "gunicorn.socket"
# Returns whether a result is non-empty.
FOUND: Final = attrgetter("found")


def long_poll(
    req: Request,
    resp: falcon.Response,
    waiters: Waiters,
    fetch: Callable[[], T],
    show: Callable[[T], object],
    *,
    takes: bool,
) -> None:
    """Poll until ``fetch`` returns a non-empty result, then respond with ``show(result)``.

    After the number of seconds in the query parameter ``wait``, respond with an empty result.

    Args:
        takes: Whether ``fetch`` claims or pops messages. If so, ``fetch`` is not called after the client has
            disconnected.
    """
    wait = query.integer(req, "wait")
    if not wait:
        if takes and is_disconnected(req):
            resp.status = falcon.HTTP_204
        else:
            respond(req, resp, fetch, show)
        return

    def show_outcome(outcome: PollResult[T]) -> None:
        if outcome.turned_away:
            resp.set_header("Retry-After", "1")
        show(outcome.answer)

    poll(req, resp, waiters, req.context.queue, wait, fetch, show_outcome, takes=takes)


def poll(
    req: Request,
    resp: falcon.Response,
    waiters: Waiters,
    queue: QueueRef,
    wait: int | None,
    fetch: Callable[[], T],
    show: Callable[[PollResult[T]], object],
    *,
    takes: bool,
    may_use_reserve: bool = False,
) -> None:
    """Poll until ``fetch`` returns a non-empty result or ``wait`` seconds have passed, then respond with ``show``.

    Args:
        takes: Whether ``fetch`` claims or pops messages. If so, ``fetch`` is not called after the client has
            disconnected.
        may_use_reserve: Whether the client polls again immediately after an empty response. If the maximum number of
            requests is waiting already, such a client may still wait for a short time.
    """
    req.context.waits = bool(wait)
    if takes and is_disconnected(req):
        resp.status = falcon.HTTP_204
        return
    if wait:
        queue_poll = waiters.enter(queue, wait, takes=takes, check=check_again(req), may_use_reserve=may_use_reserve)
        defer(req, resp, queue_poll, partial(queue_poll.poll, fetch, FOUND, partial(is_disconnected, req)), show)
        return
    respond(req, resp, lambda: PollResult(fetch()), show)


def is_closed_by_peer(caller: socket.socket | None) -> bool:
    """Return whether the client has closed its side of the connection. If there is no socket, return ``False``."""
    if caller is None:
        return False
    poll = select.poll()
    poll.register(caller, HANG_UP_EVENTS)
    return bool(poll.poll(0))


def is_disconnected(req: Request) -> bool:
    handover: Handover | None = req.env.get(HANDOVER_KEY)
    return is_closed_by_peer(req.env.get(SOCKET)) if handover is None else handover.is_disconnected
