# SPDX-License-Identifier: Apache-2.0
"""The parameter ``wait``: requests that may wait for messages (extensions 2), and whether their callers still listen.

The engine lets us look: gunicorn gives the socket, Granian an answer.
"""

import select
import socket
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

import falcon

from zq.broker.waiting import Polled, Waiters
from zq.http import query, suspension
from zq.http.authentication import check_again

T = TypeVar("T")
# What poll says of a caller who has hung up. Systems without the first one know only of callers that have closed both
# ways.
HUNG_UP: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
# What says whether an answer has something.
FOUND: Final = attrgetter("found")


def polled(req: falcon.Request, resp: falcon.Response, waiters: Waiters, ask: Callable[[], T], *, takes: bool) -> T:
    """What ``ask`` answers when it has ``found`` something, or when the request's time is up; see ``Waiters.poll``.

    Raises ``HungUp`` before it asks, where an engine with an event loop has reported that the caller left.
    """
    wait = query.integer(req, "wait")
    req.context.waits = bool(wait)
    caller_gone = gone(req)
    if takes and suspension.offered(req) and caller_gone():
        raise suspension.HungUp  # nothing is taken for a caller that has left
    if wait and suspension.offered(req):
        outcome = _look(req, waiters, wait, ask, takes, caller_gone)
    else:
        check = check_again(req)
        outcome = waiters.poll(req.context.queue, wait, ask, FOUND, takes=takes, gone=caller_gone, check=check)
    if outcome.turned_away:
        resp.set_header("Retry-After", "1")
    return outcome.answer


def _look(
    req: falcon.Request,
    waiters: Waiters,
    wait: int,
    ask: Callable[[], T],
    takes: bool,
    gone: Callable[[], bool],
) -> Polled[T]:
    """The same without a thread: raises ``Suspended`` where there is nothing yet."""
    visit = suspension.resumed(req) or waiters.enter(req.context.queue, wait, takes=takes, check=check_again(req))
    polled = None
    try:
        polled = visit.look(ask, FOUND, gone)
    except BaseException:
        visit.close()
        raise
    if polled is None:
        raise suspension.Suspended(visit)
    visit.close()
    return polled


def connection(req: falcon.Request) -> socket.socket | None:
    """The caller's connection, if the engine gives it."""
    found: socket.socket | None = req.env.get("gunicorn.socket")
    return found


def hung_up(caller: socket.socket | None) -> bool:
    """Whether the caller sends no more; False if that cannot be known."""
    if caller is None:
        return False
    poll = select.poll()
    poll.register(caller, HUNG_UP)
    return bool(poll.poll(0))


def gone(req: falcon.Request) -> Callable[[], bool]:
    """Tells whether this caller has hung up."""
    asked: Callable[[], bool] | None = req.env.get(suspension.GONE)
    return asked or partial(hung_up, connection(req))
