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

from zq.broker.waiting import Polled, Visit, Waiters
from zq.http import query, suspension
from zq.http.authentication import check_again
from zq.model import QueueRef

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
    outcome = poll(req, waiters, req.context.queue, query.integer(req, "wait"), ask, takes=takes)
    if outcome.turned_away:
        resp.set_header("Retry-After", "1")
    return outcome.answer


def poll(
    req: falcon.Request,
    waiters: Waiters,
    queue: QueueRef,
    wait: int | None,
    ask: Callable[[], T],
    *,
    takes: bool,
    paused: bool = False,
) -> Polled[T]:
    """The same for any ``wait``; ``paused``: see ``Waiters.poll``."""
    req.context.waits = bool(wait)
    caller_gone, check = gone(req), check_again(req)
    if takes and suspension.offered(req) and caller_gone():
        raise suspension.HungUp  # nothing is taken for a caller that has left
    if not (wait and suspension.offered(req)):
        return waiters.poll(queue, wait, ask, FOUND, takes=takes, gone=caller_gone, check=check, paused=paused)
    visit = suspension.resumed(req) or waiters.enter(queue, wait, takes=takes, check=check, paused=paused)
    return _look(visit, ask, caller_gone)


def _look(visit: Visit, ask: Callable[[], T], gone: Callable[[], bool]) -> Polled[T]:
    """The same without a thread: raises ``Suspended`` where there is nothing yet."""
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
