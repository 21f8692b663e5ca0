# SPDX-License-Identifier: Apache-2.0
"""The parameter ``wait``: requests that may wait for messages (extensions 2)."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import falcon

from zq.broker.waiting import Waiters
from zq.http import callers, query

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
    """What ``ask`` answers, at the latest when the request's time is up; see ``Waiters.poll``."""
    wait = query.integer(req, "wait")
    req.context.waits = bool(wait)
    gone = partial(callers.hung_up, callers.connection(req))
    polled = waiters.poll(req.context.queue, wait, ask, found, takes=takes, gone=gone)
    if polled.turned_away:
        resp.set_header("Retry-After", "1")
    return polled.answer
