# SPDX-License-Identifier: Apache-2.0
"""Requests that wait without a thread: what an engine with an event loop and the application say to each other.

Such an engine puts ``OFFERED`` into the environment. A request that has to wait then raises ``Suspended``; the engine
finds its ``Wait`` under ``SUSPENDED`` and drops what else was answered. When the wait is notified, or its time is up,
the engine calls the application again with the same request and the wait under ``RESUMED``. So no rule of waiting is
written twice, for engines of either kind.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import falcon

from zq.prompt import TakesLong

# True: the engine can suspend this request.
OFFERED: Final = "zq.suspend"
# The ``Wait`` of a request that was suspended, True for one that was given up; what the application has answered means
# nothing then.
SUSPENDED: Final = "zq.suspended"
# The ``Wait`` that has ended, or is to be looked at again; True for a request that was given up.
RESUMED: Final = "zq.resumed"
# A function: whether the caller has hung up.
GONE: Final = "zq.gone"
# True: the request was given up on the engine's own thread (``zq.prompt``). It is called again with ``RESUMED``, so
# that it is not counted twice.
GIVEN_UP: Final = "zq.given_up"
# The ``Feed`` that is the body of the answer, where there is one.
LIVE: Final = "zq.live"


class Wait(Protocol):
    """A request that waits for something."""

    def left(self) -> float:
        """Seconds for which it is to wait at most."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """It waits from now on; ``notify`` is called, from any thread, when it is to look again. Maybe at once."""
        ...

    def end(self) -> None:
        """It waits no more."""
        ...

    def close(self) -> None:
        """It is over: its slot is free. May be called twice."""
        ...


class Feed(Protocol):
    """A body without an end: the parts of it, as they come."""

    def step(self) -> bytes | None:
        """What is to be sent now; b"" if there is nothing yet, None if there will be nothing more."""
        ...

    def left(self) -> float:
        """Seconds after which there is something to send, or to look for, without a notification."""
        ...

    def begin(self, notify: Callable[[], object]) -> None:
        """Call ``notify``, from any thread, when there may be something to send. Maybe at once."""
        ...

    def patience(self) -> float:
        """Seconds that a reader may take for what it is sent."""
        ...

    def drop(self) -> None:
        """The reader took nothing and is hung up on."""
        ...

    def close(self) -> None:
        """It is over. May be called twice."""
        ...


class Suspended(Exception):
    """The request goes on when ``wait`` says so."""

    def __init__(self, wait: Wait) -> None:
        super().__init__()
        self.wait = wait


class HungUp(Exception):
    """The caller has left before anything was taken for it: there is no one to answer."""


def offered(req: falcon.Request) -> bool:
    """Whether this request may be suspended."""
    return OFFERED in req.env


def leave(req: falcon.Request, _resp: falcon.Response, suspended: Suspended, _params: Any) -> None:
    """The error handler of ``Suspended``."""
    req.env[SUSPENDED] = suspended.wait


def give_up(req: falcon.Request, _resp: falcon.Response, _takes_long: TakesLong, _params: Any) -> None:
    """The error handler of ``TakesLong``."""
    req.env[SUSPENDED] = req.env[GIVEN_UP] = True


def resumed(req: falcon.Request) -> Any:
    """The ``Wait`` with which a request goes on; None for one that begins, be it anew. It is not resumed twice."""
    wait = req.env.pop(RESUMED, None)
    return None if wait is True else wait


def drop(_req: falcon.Request, resp: falcon.Response, _hung_up: HungUp, _params: Any) -> None:
    """The error handler of ``HungUp``."""
    resp.status = falcon.HTTP_204
