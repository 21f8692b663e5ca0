# SPDX-License-Identifier: Apache-2.0
"""Whether a caller is still there, as the engine lets us look: gunicorn gives the socket, Granian an answer."""

import select
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

import falcon

from zq.http.suspension import GONE as TOLD

GONE: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
"""Systems without the first one tell only of callers that have closed both ways."""


def connection(req: falcon.Request) -> socket.socket | None:
    """The caller's connection, if the engine gives it."""
    found: socket.socket | None = req.env.get("gunicorn.socket")
    return found


def hung_up(caller: socket.socket | None) -> bool:
    """Whether the caller sends no more; False if that cannot be known."""
    if caller is None:
        return False
    poll = select.poll()
    poll.register(caller, GONE)
    return bool(poll.poll(0))


def gone(req: falcon.Request) -> Callable[[], bool]:
    """Tells whether this caller has hung up."""
    told: Callable[[], bool] | None = req.env.get(TOLD)
    return told or partial(hung_up, connection(req))
