# SPDX-License-Identifier: Apache-2.0
"""What the requests of one process under Granian share: the application, its threads, and what they may hold."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct

from zq.engines.backlog import Backlog, Unsent
from zq.engines.loops import Deadlines
from zq.engines.pool import Pool
from zq.engines.sockets import Peer
from zq.strain import Reason

MAX_BODIES: Final = 256 << 20
"""Bytes of bodies that may be in memory together; beyond, requests are turned away."""


class Limits(Struct, frozen=True):
    """Seconds that clients get, and what they may send. ``body``: without what comes; ``queue``: for a thread."""

    body: float
    send: float
    queue: float
    max_body: int


class Answer(Struct):
    """What the application answered. ``unsent`` instead of ``parts`` where that is long."""

    status: int
    headers: list[tuple[bytes, bytes]]
    parts: Iterable[bytes]
    unsent: Unsent | None = None


class Gone(Exception):
    """The client has hung up, or is hung up on."""


class Process:
    """Used by the loop, by Granian's thread and by the pool's."""

    def __init__(self, app: Callable[..., Iterable[bytes]], threads: int, limits: Limits) -> None:
        self.limits = limits
        self.hang_up: Callable[[Peer, Reason], object] = lambda _, __: None
        """Ends the connection of a client that takes nothing. Granian alone would wait until it does."""
        self.untaken: Callable[[Peer], bool] = lambda _: False
        """Whether the kernel holds something that the client has not taken."""
        self.backlog = Backlog(lambda peer, reason: self.hang_up(peer, reason))
        self.requests: dict[Any, Peer] = {}
        """Those under way, and whose they are."""
        self.pool: Pool
        self.deadlines: Deadlines
        self._app = app
        self._threads = threads
        self._bodies = 0
        self._counting = threading.Lock()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve, in the process that does and in its loop."""
        self.pool = Pool(self._threads, self.limits.queue, loop)
        self.deadlines = Deadlines(loop)

    def busy(self) -> set[Peer]:
        """The clients whose requests are under way. From any thread."""
        return set(self.requests.values())

    def overloaded(self) -> bool:
        """Whether a request that comes now would not be served in time."""
        return self.pool.waits() > self.limits.queue or self._bodies > MAX_BODIES

    def took(self, size: int) -> None:
        """So many bytes of bodies came into memory, or left it."""
        with self._counting:
            self._bodies += size

    def call(self, environ: dict[str, Any]) -> Answer:
        """What the application answers, or leaves in the environment; blocks."""
        begun: list[Any] = []
        parts = self._app(environ, lambda status, headers, _=None: begun.extend((status, headers)))
        status, headers = begun
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return Answer(int(status[:3]), encoded, parts)
