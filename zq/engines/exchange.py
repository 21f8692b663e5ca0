# SPDX-License-Identifier: Apache-2.0
"""One request under Granian, and its answer: where it goes from the loop to a thread and back, and when it ends.

An event loop waits for clients, threads ask the store. Granian reads heads; here bodies are read (``intake``), and
answers are sent in pieces (``sending``), bounded together (``process``). So no client holds a thread, however slow it
is, and neither does a request that waits for messages, or a stream (``zq.http.suspension``).
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from zq.engines import intake
from zq.engines.intake import Receive, environment, with_body
from zq.engines.pool import Wakeup
from zq.engines.process import Answer, Gone, Process, Unsent, may_be_long
from zq.engines.sending import PIECE, Send, Sender
from zq.engines.sockets import Peer
from zq.errors import Crowded
from zq.events import Refusal, refused
from zq.http import heads, suspension

# What is answered in the loop: nothing is asked for it.
INLINE: Final = frozenset({"/healthz"})
# The sentence of a 408.
TOO_SLOW: Final = "The request's body did not come in time."
# The sentence of a 400.
BROKEN: Final = "The request's body is not framed as HTTP has it, or ended too early."
# The sentence of a 503 to a request that waited too long for a thread.
BUSY: Final = "The server has more to do than it can do in time. Try again later."
# The sentence of a 503 to a request whose change could not be made safe.
LOST: Final = "The store does not answer. Try again later."
# The sentence of a 503 while too many answers wait.
UNREAD: Final = "Too many answers wait for their readers. Try again later."


class HangUp:
    """Notices when a client hangs up, on whatever thread, and wakes the loop if that waits for it."""

    def __init__(self, receive: Receive) -> None:
        self.seen = False
        self._closed = False
        self._wake: Callable[[], object] | None = None
        self._receive = receive
        self._ask()

    def _ask(self) -> None:
        self._coming = self._receive()
        self._coming.add_done_callback(self)

    def __call__(self, coming: Any) -> None:
        if self._closed or coming.cancelled():
            return
        if coming.result()["type"] == "http.request":  # the end of the body, or what is not wanted of it
            self._ask()
            return
        self.seen = True
        if self._wake is not None:
            self._wake()

    def close(self) -> None:
        """The caller has gone."""
        self._closed = True
        self._coming.cancel()

    async def wait(self) -> None:
        """Return when the client has hung up."""
        wakeup = Wakeup()
        self._wake = wakeup
        if not self.seen:
            await wakeup.future


class Exchange:
    """``environ`` has all of the request but its body."""

    def __init__(self, process: Process, client: Peer, environ: dict[str, Any], receive: Receive, send: Send) -> None:
        self._process = process
        self._client = client
        self._environ = environ
        self._receive = receive
        self._sender = Sender(process, client, environ["SERVER_PROTOCOL"], send)
        self._body = b""
        self._hang_up: HangUp | None = None
        self._watch: asyncio.Task[None] | None = None
        self._wait: suspension.Wait | None = None
        self._unsent: Unsent | None = None
        self._closed = False
        process.requests[self] = client
        process.heard.add(client)

    async def run(self) -> None:
        """Read, have it answered, and send the answer. Raises ``Gone``."""
        if self._environ["PATH_INFO"] in INLINE:
            with_body(self._environ, b"")
            self._sender.closes = intake.announces(self._environ)
            answer = self._process.call(self._environ)
            self._sender.short(answer, b"".join(answer.parts))
        elif self._process.overloaded():
            self._sender.closes = intake.announces(self._environ)
            self.turn_away()
        elif await self._read():
            await self._serve()

    def withhold(self, unknown: bool = False) -> None:
        """Leave the body unread; ``unknown``: the store could not be asked for the credential."""
        self._environ[heads.WITHHELD] = heads.UNKNOWN if unknown else True
        self._sender.closes = True

    def turn_away(self) -> None:
        """There is more to do than can be done in time."""
        refused(Refusal.QUEUE)
        self._refuse(503, "Service unavailable", BUSY, [(b"retry-after", b"1")])

    def refuse_lost(self) -> None:
        """What it changed is not safe: the store could not keep it."""
        self._refuse(503, "Service unavailable", LOST, [(b"retry-after", b"1")])

    def close(self) -> None:
        """Free what it holds."""
        self._closed = True
        self._process.requests.pop(self, None)
        if self._body:
            self._process.took(-len(self._body))
        if self._wait is not None:
            self._wait.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._hang_up is not None:
            self._hang_up.close()
        if self._unsent is not None:
            self._process.unsent.discard(self._unsent)

    async def _read(self) -> bool:
        """Read the body; False if it did not come in time, or not whole."""
        try:
            if not (wanted := await self._wanted()):
                self.withhold(unknown=wanted is None)
                return True
            self._body, self._sender.closes = await intake.read(self._process, self._environ, self._receive)
            return True
        except TimeoutError:
            self.refuse_late()
        except Gone:
            self.refuse_broken()
        except Crowded:
            self.turn_away()
        return False

    async def _wanted(self) -> bool | None:
        """Return whether the caller may send a body, None if the store does not answer. Raises ``Crowded``."""
        judge = self._process.judge
        if judge is None or not intake.announces(self._environ):
            return True
        known = judge.known(self._environ)
        return await self._process.pool.do(partial(judge.look_up, self._environ)) if known is None else known

    async def refuse_by(self, refuse: Callable[[], object]) -> None:
        """Refuse it so, and be done with it."""
        try:
            refuse()
        finally:
            self.close()

    def refuse_late(self) -> None:
        """Its body did not come in time."""
        refused(Refusal.BODY)
        self._sender.closes = True
        self._refuse(408, "Request timeout", TOO_SLOW, [])

    def refuse_broken(self) -> None:
        """Its body cannot be read."""
        refused(Refusal.MALFORMED)
        self._sender.closes = True
        self._refuse(400, "Invalid request body", BROKEN, [])

    async def _serve(self) -> None:
        if not self._sender.closes:  # looking reads on
            self._look_out()
        try:
            answer = await self._process.pool.do(self.begin)
        except Crowded:
            self.turn_away()
        else:
            await self.go_on(answer)

    def at_once(self, body: bytes) -> bool:
        """Whether it may be answered on the thread that read it. Of one that is withheld nothing is read any more."""
        return self._process.at_once(self._environ, body)

    def look_out(self) -> None:
        """Have the client's leaving noticed though the loop does not serve it. On Granian's thread.

        Only where that saves something: a post may have been carried out or not when its client leaves.
        """
        if may_be_long(self._environ):
            self._hang_up = HangUp(self._receive)

    def begin(self, body: bytes | None = None) -> Answer | None:
        """On a thread: have it answered, as far as it is answered at once; see ``send``. Raises ``Gone``."""
        return self.send(self.ask(body))

    def ask(self, body: bytes | None = None) -> Answer:
        """On a thread: what the application answers now; nothing is sent. Raises ``Gone``."""
        if body is not None:
            self._body = body
            self._process.took(len(body))
        if self._gone():
            raise Gone
        self._environ[suspension.OFFERED] = True
        self._environ[suspension.GONE] = self._gone
        return self._ask()

    def given_up(self) -> bool:
        """Whether ``ask`` has to be called again, on a thread that may be held."""
        if not self._environ.pop(suspension.GIVEN_UP, False):
            return False
        self._environ[suspension.RESUMED] = self._environ.pop(suspension.SUSPENDED)
        return True

    async def go_on(self, answer: Answer | None) -> None:
        """Wait, if it has to, without a thread; send what is not sent."""
        environ, pool = self._environ, self._process.pool
        while (wait := environ.pop(suspension.SUSPENDED, None)) is not None:
            self._wait = wait
            await self._sleep(wait)
            environ[suspension.RESUMED] = wait
            answer = await pool.do(self._go_on, patient=True)
        if answer is None:
            return
        if heads.SLOWED in environ:
            await self._process.pause()
            self._sender.short(answer, b"".join(answer.parts))
        elif (feed := environ.get(suspension.LIVE)) is not None:
            await self._feed(answer, feed)
        elif answer.unsent is not None:
            await self._sender.long(answer, answer.unsent, self._look_out().done)

    def _go_on(self) -> Answer | None:
        return self.send(self._ask())

    def _ask(self) -> Answer:
        with_body(self._environ, self._body)
        if may_be_long(self._environ) and self._process.unsent.full():
            refused(Refusal.MEMORY)
            return _refusal(503, "Service unavailable", UNREAD, [(b"retry-after", b"1")])
        return self._process.call(self._environ)

    def send(self, answer: Answer) -> Answer | None:
        """On a thread: send what is answered; None if that is sent, as all that is short and is not to wait."""
        if suspension.SUSPENDED in self._environ or suspension.LIVE in self._environ:
            return answer
        body = b"".join(answer.parts)
        if len(body) > PIECE:
            self._unsent = self._process.unsent.add(self._client, body)
            if self._closed:  # meanwhile
                self._process.unsent.discard(self._unsent)
            return Answer(answer.status, answer.headers, (), self._unsent)
        if heads.SLOWED in self._environ:
            return Answer(answer.status, answer.headers, (body,))
        self._sender.short(answer, body)
        return None

    def _gone(self) -> bool:
        """Whether the client has hung up, as far as it was looked for."""
        if self._hang_up is not None:
            return self._hang_up.seen
        return self._watch is not None and self._watch.done()

    def _look_out(self) -> "asyncio.Task[None]":
        """Ends when the client has hung up. Nothing more of its body is read then."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._until_gone())
        return self._watch

    async def _until_gone(self) -> None:
        if self._hang_up is not None:
            await self._hang_up.wait()
            return
        while (await self._receive())["type"] == "http.request":
            pass

    async def _sleep(self, wait: suspension.Wait) -> None:
        """Return when the wait is rung, or its time is up. Raises ``Gone``."""
        wakeup, watch = Wakeup(), self._look_out()
        wait.begin(wakeup)
        try:
            await asyncio.wait({wakeup.future, watch}, timeout=wait.left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wait.end()
            wakeup.future.cancel()
        if watch.done():
            raise Gone

    def _refuse(self, status: int, title: str, description: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer in the application's stead. From any thread."""
        answer = _refusal(status, title, description, headers)
        self._sender.short(answer, b"".join(answer.parts))

    async def _feed(self, answer: Answer, feed: suspension.Feed) -> None:
        """Send what comes, as it comes."""
        self._sender.begin(answer)
        watch, pool = self._look_out(), self._process.pool
        try:
            while not watch.done():
                part = await pool.do(feed.step, patient=True)
                if part is None:
                    self._sender.end()
                    return
                for begin in range(0, len(part), PIECE):
                    await self._sender.piece(part[begin : begin + PIECE], True, feed.patience, feed.drop)
                if not part:
                    await self._sleep_between(feed, watch)
        finally:
            feed.close()

    async def _sleep_between(self, feed: suspension.Feed, watch: "asyncio.Task[None]") -> None:
        wakeup = Wakeup()
        feed.begin(wakeup)
        await asyncio.wait({wakeup.future, watch}, timeout=feed.left(), return_when=asyncio.FIRST_COMPLETED)
        wakeup.future.cancel()


def _refusal(status: int, title: str, description: str, headers: list[tuple[bytes, bytes]]) -> Answer:
    body = json.dumps({"title": title, "description": description}).encode()
    headers = [
        *((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())),
        *((b"x-content-type-options", b"nosniff"), (b"vary", b"Accept")),
        *headers,
    ]
    return Answer(status, headers, (body,))


class Adapter:
    """An application of ASGI around one of WSGI."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await serve(Exchange(self.process, scope["client"], environment(scope), receive, send))


async def serve(exchange: Exchange, answer: Answer | None = None) -> None:
    """Serve a request to its end; ``answer``: from there on where it was begun on a thread."""
    try:
        await (exchange.run() if answer is None else exchange.go_on(answer))
    except Gone:
        pass
    finally:
        exchange.close()
