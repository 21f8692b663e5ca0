# SPDX-License-Identifier: Apache-2.0
"""The parameter ``wait``: requests that may wait for messages (extensions 2)."""

from collections.abc import Callable
from typing import TypeVar

import falcon

from zq.broker.waiting import Polled, Waiters
from zq.http import callers, query, suspension

T = TypeVar("T")


def poll(
    req: falcon.Request,
    resp: falcon.Response,
    waiters: Waiters,
    ask: Callable[[], T],
    found: Callable[[T], object],
    *,
    takes: bool,
) -> T:
    """What ``ask`` answers, at the latest when the request's time is up; see ``Waiters.poll``.

    Raises ``HungUp`` before it asks, where an engine with an event loop has told of the caller's leaving.
    """
    wait = query.integer(req, "wait")
    req.context.waits = bool(wait)
    gone = callers.gone(req)
    if takes and suspension.offered(req) and gone():
        raise suspension.HungUp  # nothing is taken for nobody
    if wait and suspension.offered(req):
        polled = _look(req, waiters, wait, ask, found, takes, gone)
    else:
        polled = waiters.poll(req.context.queue, wait, ask, found, takes=takes, gone=gone)
    if polled.turned_away:
        resp.set_header("Retry-After", "1")
    return polled.answer


def _look(
    req: falcon.Request,
    waiters: Waiters,
    wait: int,
    ask: Callable[[], T],
    found: Callable[[T], object],
    takes: bool,
    gone: Callable[[], bool],
) -> Polled[T]:
    """The same without a thread: raises ``Suspended`` where there is nothing yet."""
    visit = req.env.pop(suspension.RESUMED, None) or waiters.enter(req.context.queue, wait, takes=takes)
    polled = None
    try:
        polled = visit.look(ask, found, gone)
    except BaseException:
        visit.close()
        raise
    if polled is None:
        raise suspension.Suspended(visit)
    visit.close()
    return polled
