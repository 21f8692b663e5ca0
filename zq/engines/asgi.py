# SPDX-License-Identifier: Apache-2.0
"""The application under Granian: an event loop waits for clients, threads ask the store.

Granian reads heads; here bodies are read, within a bound and a deadline, and answers are sent in pieces, of which
Granian takes no more than it can hand on. So no client holds a thread, however slow it is, and neither does a request
that waits for messages, or a stream (``zq.http.suspension``).
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct

from zq import stopping, strain
from zq.engines.environ import UNANNOUNCED, announced, environment, with_body
from zq.engines.loops import Deadlines, Ring
from zq.engines.pool import Pool
from zq.engines.sockets import Peer
from zq.errors import Crowded
from zq.http import suspension
from zq.strain import Reason

LOG = logging.getLogger(__name__)
PIECE: Final = 64 << 10
"""Bytes of an answer that are handed over at a time."""
BODY_RATE: Final = 10_000
"""Bytes a second at which a body extends its deadline."""
MAX_BODIES: Final = 256 << 20
"""Bytes of bodies that may be in memory together; beyond, requests are turned away."""
MAX_UNSENT: Final = 64 << 20
"""Bytes of answers that may wait for their readers before all are given less time."""
HURRY: Final = 2.0
"""Seconds that they get then."""
LOOK: Final = 0.5
"""Seconds between two looks at an answer that is not taken."""
INLINE: Final = frozenset({"/healthz"})
"""What is answered in the loop: nothing is asked for it."""
TOO_SLOW: Final = "The request's body did not come in time."
BROKEN: Final = "The request's body is not framed as HTTP has it, or ended too early."
BUSY: Final = "The server has more to do than it can do in time. Try again later."

Receive = Callable[[], Any]
Send = Callable[[dict[str, Any]], Any]


class Limits(Struct, frozen=True):
    """Seconds that clients get, and what they may send. ``body``: without what comes; ``queue``: for a thread."""

    body: float
    send: float
    queue: float
    max_body: int


class Answer(Struct):
    """What the application answered."""

    status: int
    headers: list[tuple[bytes, bytes]]
    parts: Iterable[bytes]


class Gone(Exception):
    """The client has hung up, or is hung up on."""


class Adapter:
    """An application of ASGI around one of WSGI. ``threads``: requests that ask the store at once."""

    def __init__(self, app: Callable[..., Iterable[bytes]], threads: int, limits: Limits) -> None:
        self.hang_up: Callable[[Peer], object] = lambda _: None
        """Ends the connection of a client that takes nothing. Granian alone would wait until it does."""
        self._app = app
        self._threads = threads
        self._limits = limits
        self._bodies = 0
        self._unsent = 0
        self._counting = threading.Lock()
        self.exchanges: dict[Exchange, Peer] = {}
        """Those under way, and whose they are."""
        self.pool: Pool
        self.deadlines: Deadlines

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.serve(Exchange(self, scope["client"], environment(scope), receive, send))

    async def serve(self, exchange: "Exchange", answer: Answer | None = None) -> None:
        """Serve a request to its end; ``answer``: from there on where it was begun on a thread."""
        try:
            await (exchange.run() if answer is None else exchange.go_on(answer))
        except Gone:
            pass
        finally:
            exchange.close()

    def busy(self) -> set[Peer]:
        """The clients whose requests are under way. From any thread."""
        return set(self.exchanges.values())

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to serve, in the process that does and in its loop."""
        self.pool = Pool(self._threads, self._limits.queue, loop)
        self.deadlines = Deadlines(loop)

    @property
    def limits(self) -> Limits:
        return self._limits

    def overloaded(self) -> bool:
        """Whether a request that comes now would not be served in time."""
        return self.pool.waits() > self._limits.queue or self._bodies > MAX_BODIES

    def took(self, size: int) -> None:
        """So many bytes of bodies came into memory, or left it."""
        with self._counting:
            self._bodies += size

    def holds(self, size: int) -> None:
        """So many bytes of answers wait for their readers, or no longer."""
        self._unsent += size

    def patience(self) -> float:
        """Seconds that a reader may take nothing of its answer."""
        return self._limits.send if self._unsent <= MAX_UNSENT else min(HURRY, self._limits.send)

    def call(self, environ: dict[str, Any]) -> Answer:
        """What the application answers, or leaves in the environment; blocks."""
        begun: list[Any] = []
        parts = self._app(environ, lambda status, headers, _=None: begun.extend((status, headers)))
        status, headers = begun
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return Answer(int(status[:3]), encoded, parts)


class Exchange:
    """One request and its answer."""

    def __init__(self, owner: Adapter, client: Peer, environ: dict[str, Any], receive: Receive, send: Send) -> None:
        self._owner = owner
        self._client = client
        self._environ = environ
        self._receive = receive
        self._send = send
        self._body = b""
        self._close = False
        self._watch: asyncio.Task[None] | None = None
        self._wait: suspension.Wait | None = None
        owner.exchanges[self] = client

    async def run(self) -> None:
        """Read, have it answered, and send the answer. Raises ``Gone``."""
        if self._environ["PATH_INFO"] in INLINE:
            with_body(self._environ, b"")
            self._close = _announces(self._environ)
            await self._answer(self._owner.call(self._environ))
            return
        if self._owner.overloaded():
            self._close = _announces(self._environ)
            await self.turn_away()
        elif await self._read():
            try:
                await self._serve()
            except Crowded:
                await self.turn_away()

    async def turn_away(self) -> None:
        """There is more to do than can be done in time."""
        strain.note(Reason.QUEUE)
        await self._refuse(503, "Service unavailable", BUSY, [(b"retry-after", b"1")])

    def close(self) -> None:
        """Free what it holds."""
        self._owner.exchanges.pop(self, None)
        self._owner.took(-len(self._body))
        if self._wait is not None:
            self._wait.close()
        if self._watch is not None:
            self._watch.cancel()

    async def _read(self) -> bool:
        """Read the body, if it is not larger than any that is allowed; False if it did not come in time."""
        size = announced(self._environ)
        if size == 0 or not ("CONTENT_LENGTH" in self._environ or self._environ.pop(UNANNOUNCED, False)):
            return True
        if size is not None and size > self._owner.limits.max_body:
            self._close = True  # the application refuses it by its announced size
            return True
        try:
            await self._read_on(size)
            return True
        except TimeoutError:
            await self.refuse_late()
        except Gone:
            await self.refuse_broken()
        return False

    async def refuse_by(self, refuse: Callable[[], Any]) -> None:
        """Refuse it so, and be done with it."""
        try:
            await refuse()
        finally:
            self.close()

    async def refuse_late(self) -> None:
        """Its body did not come in time."""
        strain.note(Reason.BODY)
        self._close = True
        await self._refuse(408, "Request timeout", TOO_SLOW, [])

    async def refuse_broken(self) -> None:
        """Its body cannot be read."""
        strain.note(Reason.MALFORMED)
        self._close = True
        await self._refuse(400, "Invalid request body", BROKEN, [])

    async def _read_on(self, length: int | None) -> None:
        """Read as much as was announced, for Granian tells its end only when it is asked once more."""
        pieces, size, limits, begun = [], 0, self._owner.limits, time.monotonic()
        more = True
        try:
            while more and size <= limits.max_body:
                event = await self._owner.deadlines.bound(self._receive(), begun + limits.body + size / BODY_RATE)
                if event["type"] != "http.request":
                    raise Gone
                pieces.append(event.get("body", b""))
                size += len(pieces[-1])
                self._owner.took(len(pieces[-1]))
                more = event.get("more_body", False) and size != length
        except BaseException:
            self._owner.took(-size)
            raise
        self._body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._close = more

    async def _serve(self) -> None:
        await self.go_on(await self._owner.pool.do(self.begin))

    def begin(self, body: bytes | None = None) -> Answer | None:
        """On a thread: have it answered, as far as it is answered at once; see ``_call``."""
        if body is not None:
            self._body = body
            self._owner.took(len(body))
        self._environ[suspension.OFFERED] = True
        self._environ[suspension.GONE] = self._gone
        with_body(self._environ, self._body)
        return self._call()

    async def go_on(self, answer: Answer | None) -> None:
        """Wait, if it has to, without a thread; send what is not sent."""
        environ, pool = self._environ, self._owner.pool
        while (wait := environ.pop(suspension.SUSPENDED, None)) is not None:
            self._wait = wait
            await self._sleep(wait)
            environ[suspension.RESUMED] = wait
            with_body(environ, self._body)
            answer = await pool.do(self._call, patient=True)
        if answer is not None:
            feed = environ.get(suspension.LIVE)
            await (self._answer(answer) if feed is None else self._feed(answer, feed))

    def _call(self) -> Answer | None:
        """On a thread: have the application answer; None if the answer is short, and sent."""
        answer = self._owner.call(self._environ)
        if suspension.SUSPENDED in self._environ or suspension.LIVE in self._environ:
            return answer
        body = b"".join(answer.parts)
        if len(body) > PIECE:
            return Answer(answer.status, answer.headers, [body])
        self._start(answer)
        self._send({"type": "http.response.body", "body": body})
        return None

    def _gone(self) -> bool:
        """Whether the client has hung up, as far as it was looked for."""
        return self._watch is not None and self._watch.done()

    def _look_out(self) -> "asyncio.Task[None]":
        """Ends when the client has hung up. Nothing more of its body is read then."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._until_gone())
        return self._watch

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] == "http.request":
            pass

    async def _sleep(self, wait: suspension.Wait) -> None:
        """Return when the wait is rung, or its time is up. Raises ``Gone``."""
        rung, watch = Ring(), self._look_out()
        wait.begin(rung)
        try:
            await asyncio.wait({rung.future, watch}, timeout=wait.left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wait.end()
            rung.future.cancel()
        if watch.done():
            raise Gone

    async def _refuse(self, status: int, title: str, description: str, headers: list[tuple[bytes, bytes]]) -> None:
        body = json.dumps({"title": title, "description": description}).encode()
        headers = [
            *((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())),
            *((b"x-content-type-options", b"nosniff"), (b"vary", b"Accept")),
            *headers,
        ]
        await self._answer(Answer(status, headers, [body]))

    async def _answer(self, answer: Answer) -> None:
        """Send an answer whose parts are all there."""
        body = b"".join(answer.parts)
        self._start(answer)
        if len(body) <= PIECE:
            await self._send({"type": "http.response.body", "body": body})
            return
        self._owner.holds(len(body))
        try:
            watch, left = self._look_out(), len(body)
            for begin in range(0, len(body), PIECE):
                last = begin + PIECE >= len(body)
                await self._piece(body[begin : begin + PIECE], not last, self._owner.patience)
                self._owner.holds(-min(PIECE, left))
                left -= min(PIECE, left)
                if watch.done() and not last:
                    raise Gone
        finally:
            self._owner.holds(-left)

    async def _feed(self, answer: Answer, feed: suspension.Feed) -> None:
        """Send what comes, as it comes."""
        self._start(answer)
        watch, pool = self._look_out(), self._owner.pool
        try:
            while not watch.done():
                part = await pool.do(feed.step, patient=True)
                if part is None:
                    await self._send({"type": "http.response.body", "body": b""})
                    return
                for begin in range(0, len(part), PIECE):
                    await self._piece(part[begin : begin + PIECE], True, feed.patience, feed.drop)
                if not part:
                    await self._sleep_between(feed, watch)
        finally:
            feed.close()

    async def _sleep_between(self, feed: suspension.Feed, watch: "asyncio.Task[None]") -> None:
        rung = Ring()
        feed.begin(rung)
        await asyncio.wait({rung.future, watch}, timeout=feed.left(), return_when=asyncio.FIRST_COMPLETED)
        rung.future.cancel()

    def _start(self, answer: Answer) -> None:
        headers = answer.headers
        if (self._close or stopping.is_stopping()) and self._environ["SERVER_PROTOCOL"] < "HTTP/2":
            headers = [(name, value) for name, value in headers if name != b"connection"] + [(b"connection", b"close")]
        self._send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def _piece(
        self, piece: bytes, more: bool, patience: Callable[[], float], drop: Callable[[], object] | None = None
    ) -> None:
        """Return when the piece is handed on. Raises ``Gone`` if the reader takes nothing for too long."""
        handed = self._send({"type": "http.response.body", "body": piece, "more_body": more})
        if not asyncio.isfuture(handed):
            await handed
            return
        taken, since = asyncio.ensure_future(_awaited(handed)), time.monotonic()
        while not (await asyncio.wait({taken}, timeout=LOOK))[0]:
            if time.monotonic() - since > patience():
                taken.cancel()
                if drop is not None:
                    drop()
                self._owner.hang_up(self._client)
                raise Gone


async def _awaited(handed: Any) -> None:
    await handed


def _announces(environ: dict[str, Any]) -> bool:
    """Whether a body comes, or is to come, that nobody reads."""
    return environ.get("CONTENT_LENGTH", "0") != "0" or UNANNOUNCED in environ
