# SPDX-License-Identifier: Apache-2.0
"""What the requests of one process under Granian share: the application, its threads, and what they may hold.

Any number of clients may ask for a large page and read nothing of it. The loop gives each its time; ``UnsentAnswers``
bounds what such answers hold together until then.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from zq.engines.pool import Deadlines, Debts, Pool
from zq.engines.sockets import Peer
from zq.events import Refusal
from zq.http.heads import MOST_PAUSES, PAUSE, Judge

# Bytes of a process. What is made on threads in the moment when it is reached comes on top.
MAX_UNSENT: Final = 128 << 20
# Seconds for which a reader has taken nothing when it may be hung up on in favour of others.
STILL: Final = 1.0
# Bytes that Granian may hold of an answer that was handed over: four pieces, its buffer, and what goes over that.
HANDED_OVER: Final = 384 << 10
# Bytes of bodies that may be in memory together; beyond, requests are turned away.
MAX_BODIES: Final = 256 << 20


class Unsent:
    """A long answer. ``body`` is the one reference to it, so that dropping it frees the memory at once."""

    __slots__ = ("body", "moved", "peer", "size")

    def __init__(self, peer: Peer, body: bytes) -> None:
        self.peer = peer
        self.body: bytes | None = body
        self.size = len(body)
        """Bytes that it is counted with; 0 once it is taken or given up."""
        self.moved = time.monotonic()
        """When the reader took a piece last."""


class UnsentAnswers:
    """All of a process. Each method may be called from any thread. ``hang_up`` ends a connection."""

    def __init__(self, hang_up: Callable[[Peer, Refusal], object]) -> None:
        self._hang_up = hang_up
        self._lock = threading.Lock()
        self._answers: set[Unsent] = set()
        self._size = 0

    def add(self, peer: Peer, body: bytes) -> Unsent:
        """Count an answer from now on until it is discarded."""
        unsent = Unsent(peer, body)
        with self._lock:
            self._answers.add(unsent)
            self._size += unsent.size
        self.full()
        return unsent

    def handed(self, unsent: Unsent) -> None:
        """All of it is Granian's now, which does not report when the reader has it."""
        with self._lock:
            unsent.body = None
            self._size -= max(0, unsent.size - HANDED_OVER)
            unsent.size = min(unsent.size, HANDED_OVER)

    def discard(self, unsent: Unsent) -> None:
        """It is taken, or given up. May be called twice."""
        with self._lock:
            self._free(unsent)

    def full(self) -> bool:
        """Whether no other long answer is to be made now, though those who took nothing have been hung up on."""
        if self._size > MAX_UNSENT:
            for unsent in self._drop():
                self._hang_up(unsent.peer, Refusal.MEMORY)
        return self._size > MAX_UNSENT

    def _drop(self) -> list[Unsent]:
        """Free answers until there are few enough, those first whose readers have taken nothing for longest."""
        before, dropped = time.monotonic() - STILL, []
        with self._lock:
            for unsent in sorted((each for each in self._answers if each.moved < before), key=lambda each: each.moved):
                if self._size <= MAX_UNSENT:
                    break
                self._free(unsent)
                dropped.append(unsent)
        return dropped

    def _free(self, unsent: Unsent) -> None:
        self._answers.discard(unsent)
        self._size -= unsent.size
        unsent.body, unsent.size = None, 0


def may_be_long(environ: dict[str, Any]) -> bool:
    """Whether a request reads or takes what clients wrote: its answer may be of any length."""
    path: str = environ["PATH_INFO"]
    method: str = environ["REQUEST_METHOD"]
    if method == "GET":
        return path.startswith("/v2/")  # not probes and metrics
    if method == "POST" and not path.startswith("/v2/"):
        return True  # by SQS
    return "/claims" in path or (method == "DELETE" and "pop=" in environ["QUERY_STRING"])


# Requests that are served on the thread that reads them, where their store is prompt.
SHORT: Final = re.compile(
    r"(?:POST|GET|DELETE) /v2/queues/[^/]+/messages(?:/[^/]+)?|(?:GET|POST) /v2/topics/[^/]+/messages(?:/[^/]+)?"
    r"|(?:POST|GET|PATCH|DELETE) /v2/queues/[^/]+/claims(?:/[^/]+(?:/settle)?)?"
)
# Bytes of a body, and objects in it.
SHORT_BODY: Final = 16 << 10
MOST_OBJECTS: Final = 24
# Bytes of a query: ids of so many messages.
SHORT_QUERY: Final = 1024
# More than 20 messages.
MANY_ASKED: Final = re.compile(r"(?:limit|pop)=([0-9]{3,}|[3-9][0-9]|2[1-9])")


def is_short(environ: dict[str, Any], body: bytes) -> bool:
    """Whether a request asks for little, as nearly all do."""
    query: str = environ["QUERY_STRING"]
    return (
        SHORT.fullmatch(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}") is not None
        and (not query or (len(query) <= SHORT_QUERY and MANY_ASKED.search(query) is None))
        and (not body or (len(body) <= SHORT_BODY and body.count(b"{") <= MOST_OBJECTS))
    )


@lru_cache(maxsize=256)
def _header_name(name: str) -> bytes:
    """The name of an answer's header as Granian takes it."""
    return name.lower().encode("latin-1")


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
        self.hang_up: Callable[[Peer, Refusal], object] = lambda _, __: None
        """Ends the connection of a client that takes nothing. Granian alone would wait until it does."""
        self.untaken: Callable[[Peer], bool] = lambda _: False
        """Whether the kernel holds something that the client has not taken."""
        self.unsent = UnsentAnswers(lambda peer, reason: self.hang_up(peer, reason))
        self.requests: dict[Any, Peer] = {}
        """Those under way, and whose they are."""
        self.heard: set[Peer] = set()
        """Connected clients of which any request has come."""
        self.pool: Pool
        self.deadlines: Deadlines
        self.debts: Debts
        self.judge: Judge | None = getattr(app, "judge", None)
        self._prompt: bool = getattr(app, "prompt", False)
        self._app = app
        self._threads = threads
        self._bodies = 0
        self._pauses = 0
        self._counting = threading.Lock()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve, in the process that does and in its loop."""
        self.pool = Pool(self._threads, self.limits.queue, loop)
        self.deadlines = Deadlines(loop)
        self.debts = Debts()

    def busy(self) -> set[Peer]:
        """The clients whose requests are under way. From any thread."""
        return set(self.requests.values())

    def overloaded(self) -> bool:
        """Whether a request that comes now would not be served in time."""
        return max(self.pool.waits(), self.debts.waits()) > self.limits.queue or self._bodies > MAX_BODIES

    def at_once(self, environ: dict[str, Any], body: bytes) -> bool:
        """Whether a request may be answered on the thread that read it: it is short, and nobody need be asked whose it
        is."""
        return self._prompt and is_short(environ, body) and (self.judge is None or self.judge.known(environ) is True)

    async def pause(self) -> None:
        """Return a moment later, so that who was refused as too much asks on no sooner; at once if many wait so."""
        if self._pauses >= MOST_PAUSES:
            return
        self._pauses += 1
        try:
            await asyncio.sleep(PAUSE)
        finally:
            self._pauses -= 1

    def took(self, size: int) -> None:
        """So many bytes of bodies came into memory, or left it."""
        with self._counting:
            self._bodies += size

    def call(self, environ: dict[str, Any]) -> Answer:
        """What the application answers, or leaves in the environment; blocks."""
        begun: list[Any] = []
        parts = self._app(environ, lambda status, headers, _=None: begun.extend((status, headers)))
        status, headers = begun
        encoded = [(_header_name(name), value.encode("latin-1")) for name, value in headers]
        return Answer(int(status[:3]), encoded, parts)
