# SPDX-License-Identifier: Apache-2.0
"""The edge: the ASGI application that wraps the WSGI application.

The event loop reads bodies, waits for messages and sends responses, so that a slow client occupies no thread. Each of
these steps has a deadline. If the store is embedded, requests on ``zq.http.application.ShortRoutes`` run on the event
loop's thread. All other requests run in a thread pool. The module ``zq.http.pending`` describes how the application
defers long polls and streams.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache, partial
from typing import Any, Final

from msgspec import Struct

from zq.errors import Crowded, Unavailable
from zq.events import Refusal, count_refusal
from zq.http import heads
from zq.http.application import App
from zq.http.features import Receive, Send
from zq.http.pending import HANDOVER_KEY, Feed, Handover, PendingRequest
from zq.model.addresses import client_network
from zq.serving import fairness
from zq.serving.draining import RequestCounter
from zq.serving.environ import add_body, announced_size, environment
from zq.serving.fairness import FairQueue
from zq.serving.pool import Deadlines, DurabilityWaiter, Pool
from zq.storage.inline import Ticket

# Requests that are served even under overload: liveness probes, which need neither credential nor store.
ALWAYS_SERVED: Final = frozenset({("GET", "/healthz"), ("HEAD", "/healthz")})
# Requests that are not counted, because a load balancer continues to send them while the server drains.
PROBES: Final = ALWAYS_SERVED | {("GET", "/readyz"), ("HEAD", "/readyz")}
# Maximum bytes of a response that the edge passes to Granian at once.
PIECE_SIZE: Final = 64 << 10
# Minimum transfer rate of a body in bytes per second, after the body timeout.
BODY_RATE: Final = 10_000
# Maximum total size of request bodies in memory, in bytes. Above it, the edge rejects requests.
MAX_BODIES: Final = 256 << 20
# Maximum total size of long responses in progress, in bytes.
MAX_UNSENT: Final = 128 << 20
# Seconds without progress after which a long response may be aborted in favour of other clients.
READER_STALL: Final = 1.0
# Seconds for which a request waits for a thread before the edge watches for the client's disconnect. Each watch needs a
# task, which costs a tenth of the throughput on Redis.
WATCH_DELAY: Final = 0.05


class EdgeLimits(Struct, frozen=True):
    """Limits for clients, and timeouts in seconds.

    Attributes:
        queue: Timeout for a request that waits for a thread.
        requests_per_address: Maximum number of concurrent requests from one address, ``None`` for no limit.
        callers: Headers that identify a caller; see the module ``zq.serving.fairness``.
    """

    body: float
    send: float
    queue: float
    max_body: int
    requests_per_address: int | None = None
    callers: tuple[bytes, ...] = fairness.PROJECTS


class Response(Struct):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class LongResponse(Struct):
    """A long response in progress. ``last_progress`` is the monotonic time at which the client last accepted data."""

    size: int
    last_progress: float


class ClientDisconnect(Exception):
    """Raised if the client has disconnected, or the server has aborted the response."""


class Edge:
    """The ASGI application of one process, which wraps the WSGI application.

    Args:
        app: The WSGI application, possibly with WSGI middleware around it.
        inner: The ``App`` without the WSGI middleware.
        is_leaving: Returns whether the server stops or drains. If so, each response closes its connection.
    """

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        inner: App,
        limits: EdgeLimits,
        threads: int,
        loop: Any,
        counter: RequestCounter,
        is_leaving: Callable[[], bool],
    ) -> None:
        self.limits = limits
        self.inner = inner
        self.head_authenticator = getattr(app, "head_authenticator", None)
        self.queue = FairQueue(loop, inner.has_several_projects)
        self.pool = Pool(threads, limits.queue, loop, inner.has_several_projects)
        self.durability = DurabilityWaiter(loop)
        self.deadlines = Deadlines(loop)
        self.addresses: Counter[bytes] = Counter()
        """Number of concurrent requests by client network."""
        self.last_request = time.monotonic()
        self.counter = counter
        self.is_leaving = is_leaving
        self.body_bytes = 0
        self._app = app
        self._unsent: dict[asyncio.Task[Any], LongResponse] = {}
        self._pauses = 0

    def serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request.

        This method is not a coroutine function, and it may begin the request before it returns. The caller must
        therefore await the result in the same task.
        """
        if self.queue.begin_step() or (scope["method"], scope["path"]) in ALWAYS_SERVED:
            return Exchange(self, scope, receive, send).run()
        return self._serve_later(scope, receive, send)

    async def _serve_later(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await self.queue.wait(self.caller(scope))
        await Exchange(self, scope, receive, send).run()

    def caller(self, scope: dict[str, Any]) -> bytes:
        return fairness.caller(scope, self.limits.callers)

    def call(self, environ: dict[str, Any]) -> Response:
        """Call the WSGI application and return the response. The call blocks.

        - If the application defers the response of a long poll, only ``poll_again`` returns the actual response.
        - If the application streams the response, the returned status and headers are valid, but the body is empty.
        """
        begun: list[Any] = []
        parts = self._app(environ, lambda status, headers, _=None: begun.extend((status, headers)))
        status, headers = begun
        encoded = [(_header_name(name), value.encode("latin-1")) for name, value in headers]
        handover = environ[HANDOVER_KEY]
        body = b"" if handover.pending is not None or handover.feed is not None else b"".join(parts)
        return Response(int(status[:3]), encoded, body)

    def poll_again(self, pending: PendingRequest) -> Response | None:
        """Repeat the poll of a waiting request. Return ``None`` if the request must wait again. The call blocks."""
        later = self.inner.poll_again(pending)
        if later is None:
            return None
        headers = [(_header_name(name), value.encode("latin-1")) for name, value in later.headers]
        return Response(later.status, headers, later.body)

    def runs_inline(self, environ: dict[str, Any], body: bytes) -> bool:
        """Return whether the request may run on the event loop's thread."""
        if self._app is not self.inner or not self.inner.is_short(environ, body):
            return False
        return self.head_authenticator is None or self.head_authenticator.cached_validity(environ) is True

    def is_overloaded(self) -> bool:
        is_stalled = self.durability.seconds_waiting() > self.limits.queue
        return self.pool.is_crowded() or is_stalled or self.body_bytes > MAX_BODIES

    async def pause(self) -> None:
        """Delay the response to a rate-limited request, so that the client does not retry immediately."""
        if self._pauses < heads.MAX_PAUSED:
            self._pauses += 1
            try:
                await asyncio.sleep(heads.DELAY)
            finally:
                self._pauses -= 1

    def has_room_for_long_response(self) -> bool:
        """Return whether there is memory for another long response. If memory is low, first abort stalled responses."""
        if not self._unsent:
            return True
        total = sum(unsent.size for unsent in self._unsent.values())
        if total <= MAX_UNSENT:
            return True
        before = time.monotonic() - READER_STALL
        for task, unsent in sorted(self._unsent.items(), key=lambda item: item[1].last_progress):
            if unsent.last_progress > before or total <= MAX_UNSENT:
                break
            count_refusal(Refusal.MEMORY)
            total -= unsent.size
            del self._unsent[task]
            task.cancel()
        return total <= MAX_UNSENT

    async def send_long(self, body: bytes, send: Send) -> None:
        """Send a long body in parts. Raises ``ClientDisconnect`` if the client stalls or the response is aborted."""
        task = asyncio.current_task()
        assert task is not None
        self._unsent[task] = unsent = LongResponse(len(body), time.monotonic())
        try:
            for at in range(0, len(body), PIECE_SIZE):
                more = at + PIECE_SIZE < len(body)
                await self.send_piece(body[at : at + PIECE_SIZE], more, send, lambda: self.limits.send)
                unsent.last_progress = time.monotonic()
        except asyncio.CancelledError:
            if task in self._unsent:
                raise
            raise ClientDisconnect from None
        finally:
            self._unsent.pop(task, None)

    async def send_piece(self, piece: bytes, more: bool, send: Send, send_timeout: Callable[[], float]) -> None:
        """Send a part of a response. Raises ``ClientDisconnect`` if the client does not accept the part in time."""
        since = time.monotonic()
        handed = send({"type": "http.response.body", "body": piece, "more_body": more})
        try:
            await self.deadlines.bound(handed, lambda: since + send_timeout())
        except TimeoutError:
            count_refusal(Refusal.ANSWER)
            raise ClientDisconnect from None


class Exchange:
    """One request and its response."""

    def __init__(self, edge: Edge, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self._edge = edge
        self._scope = scope
        self._known_caller: bytes | None = None
        self._environ = environ = environment(scope)
        self._receive = receive
        self._send = send
        self._handover = Handover()
        self._body = b""
        self._must_close = False
        """Whether to close the connection after the response, because part of the body may be unread."""
        self._watch: asyncio.Task[None] | None = None
        environ[HANDOVER_KEY] = self._handover

    async def run(self) -> None:
        edge, address = self._edge, client_network(self._environ["REMOTE_ADDR"])
        edge.last_request = time.monotonic()
        edge.addresses[address] += 1
        target = self._environ["REQUEST_METHOD"], self._environ["PATH_INFO"]
        counter = None if target in PROBES else edge.counter
        if counter is not None:
            counter.begin()
        try:
            if target in ALWAYS_SERVED:
                self._must_close = announced_size(self._environ) != 0
                add_body(self._environ, b"")
                self._answer(edge.call(self._environ))
            elif edge.is_overloaded():
                self._reject_overload(Refusal.QUEUE, "The server is overloaded. Try again later.")
            elif edge.addresses[address] > (edge.limits.requests_per_address or edge.addresses[address]):
                sentence = "Your address has too many concurrent requests. Try again later."
                self._reject_overload(Refusal.CONNECTIONS, sentence)
            elif (size := announced_size(self._environ)) == 0 or await self._read(size):
                await self._serve()
        except ClientDisconnect:
            pass
        except Crowded:
            self._reject_overload(Refusal.QUEUE, "The server is overloaded. Try again later.")
        finally:
            if counter is not None:
                counter.end()
            edge.body_bytes -= len(self._body)
            edge.addresses[address] -= 1
            if not edge.addresses[address]:
                del edge.addresses[address]
            if self._handover.pending is not None:
                self._handover.pending.close()
            if self._handover.feed is not None:
                self._handover.feed.close()
            if self._watch is not None:
                self._watch.cancel()

    async def _read(self, size: int | None) -> bool:
        """Read the body. If reading fails, send an error response and return ``False``."""
        edge, environ = self._edge, self._environ
        self._must_close = True
        if heads.ERROR_KEY in environ or (size is not None and size > edge.limits.max_body):
            return True  # the application rejects the request without its body
        if edge.head_authenticator is not None:
            validity = edge.head_authenticator.cached_validity(environ)
            if validity is None:
                validity = await edge.pool.do(partial(edge.head_authenticator.look_up, environ), caller=self._caller())
            if not validity:
                environ[heads.WITHHELD_KEY] = heads.UNKNOWN_CREDENTIAL if validity is None else True
                return True
        try:
            self._must_close = await self._read_pieces(size)
        except TimeoutError:
            self._reject(408, Refusal.BODY, "Request timeout", "The request body did not arrive in time.")
            return False
        except ClientDisconnect:
            sentence = "The request body has invalid framing or ended early."
            self._reject(400, Refusal.MALFORMED, "Invalid request body", sentence)
            return False
        return True

    async def _read_pieces(self, size: int | None) -> bool:
        """Read the body. Return ``True`` if the body is too large; the remainder is then unread."""
        edge, began, more = self._edge, time.monotonic(), True
        pieces: list[bytes] = []
        received = 0
        try:
            while more and received <= edge.limits.max_body:
                event = await edge.deadlines.bound(self._receive(), self._body_deadline(began, received))
                if event["type"] != "http.request":
                    raise ClientDisconnect
                piece = event["body"]
                pieces.append(piece)
                received += len(piece)
                edge.body_bytes += len(piece)
                more = event["more_body"] and received != size
        except BaseException:
            edge.body_bytes -= received
            raise
        self._body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return more

    def _body_deadline(self, began: float, received: int) -> Callable[[], float]:
        moment = began + self._edge.limits.body + received / BODY_RATE
        return lambda: moment

    async def _serve(self) -> None:
        edge, environ, handover = self._edge, self._environ, self._handover
        add_body(environ, self._body)
        if not edge.has_room_for_long_response() and _may_be_long(environ):
            self._reject_overload(Refusal.MEMORY, "The server is sending too many long responses. Try again later.")
            return
        answer: Response | None
        try:
            if inline := edge.runs_inline(environ, self._body):
                ticket = Ticket()
                with ticket:
                    answer = edge.call(environ)
                if ticket.wait is not None:
                    await edge.durability.wait_for(ticket)
            else:
                answer = await self._call_on_thread()
            while (pending := handover.pending) is not None:
                if not handover.needs_thread:
                    was_notified = await self._wait(pending)
                    if inline and not was_notified and not edge.queue.begin_step():
                        await edge.queue.wait(self._caller())
                if inline and not handover.needs_thread and edge.inner.is_prompt():
                    ticket = Ticket()
                    with ticket:
                        answer = edge.poll_again(pending)
                    if ticket.wait is not None:
                        await edge.durability.wait_for(ticket)
                else:
                    handover.begin_poll()
                    answer = await edge.pool.do(partial(edge.poll_again, pending), caller=self._caller(), patient=True)
        except Unavailable as error:  # the changes could not be made durable
            self._reject(503, None, "Service unavailable", str(error))
            return
        assert answer is not None
        if heads.RATE_LIMITED_KEY in environ:
            await edge.pause()
        if handover.feed is not None:
            await self._send_feed(answer, handover.feed)
        elif len(answer.body) > PIECE_SIZE:
            self._begin(answer)
            await edge.send_long(answer.body, self._send)
        else:
            self._answer(answer)

    async def _call_on_thread(self) -> Response:
        """Call the application in the thread pool. If the request waits for a thread, watch for a disconnect."""
        edge, caller = self._edge, self._caller()
        is_busy = edge.pool.is_busy(caller)
        called: asyncio.Future[Response] = edge.pool.do(partial(edge.call, self._environ), caller=caller)
        if self._must_close or not is_busy:
            return await called
        watch = asyncio.get_running_loop().call_later(WATCH_DELAY, self._watch_client)
        try:
            return await called
        finally:
            watch.cancel()

    def _caller(self) -> bytes:
        if self._known_caller is None:
            self._known_caller = self._edge.caller(self._scope)
        return self._known_caller

    async def _wait(self, waits: PendingRequest | Feed) -> bool:
        """Wait until the request is notified, and until the fair queue lets this caller continue.

        Return ``False`` after a timeout. Raises ``ClientDisconnect`` if the client disconnects.
        """
        watch, notified = self._watch_client(), asyncio.get_running_loop().create_future()
        waits.begin(partial(self._edge.queue.notify, self._caller(), notified))
        try:
            await asyncio.wait({notified, watch}, timeout=waits.seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if isinstance(waits, PendingRequest):
                waits.end()
            was_notified = notified.done()
            notified.cancel()
        if watch.done():
            raise ClientDisconnect
        return was_notified

    async def _send_feed(self, answer: Response, feed: Feed) -> None:
        self._begin(answer)
        while (part := await self._edge.pool.do(feed.step, caller=self._caller(), patient=True)) is not None:
            for at in range(0, len(part), PIECE_SIZE):
                try:
                    await self._edge.send_piece(part[at : at + PIECE_SIZE], True, self._send, feed.send_timeout)
                except ClientDisconnect:
                    feed.note_disconnect()
                    raise
            if not part:
                await self._wait(feed)
        self._send({"type": "http.response.body", "body": b""})

    def _watch_client(self) -> "asyncio.Task[None]":
        """Return a task that ends when the client disconnects. The task discards the unread part of the body."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self._wait_for_disconnect())
        return self._watch

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] == "http.request":
            pass
        self._handover.note_disconnect()

    def _reject_overload(self, reason: Refusal, sentence: str) -> None:
        self._must_close = self._must_close or announced_size(self._environ) != 0
        self._reject(503, reason, "Service unavailable", sentence)

    def _reject(self, status: int, reason: Refusal | None, title: str, sentence: str) -> None:
        if reason is not None:
            count_refusal(reason)
        body = json.dumps({"title": title, "description": sentence}).encode()
        headers = [
            *((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())),
            *((b"x-content-type-options", b"nosniff"), (b"vary", b"Accept")),
            *([(b"retry-after", b"1")] if status == 503 else []),
        ]
        self._answer(Response(status, headers, body))

    def _answer(self, answer: Response) -> None:
        """Send a short response, without waiting for the client. Granian buffers the response."""
        self._begin(answer)
        self._send({"type": "http.response.body", "body": answer.body})

    def _begin(self, answer: Response) -> None:
        headers = answer.headers
        if self._must_close or self._edge.is_leaving():
            headers = [header for header in headers if header[0] != b"connection"] + [(b"connection", b"close")]
        self._send({"type": "http.response.start", "status": answer.status, "headers": headers})


def _may_be_long(environ: dict[str, Any]) -> bool:
    path: str = environ["PATH_INFO"]
    method: str = environ["REQUEST_METHOD"]
    if method == "GET":
        return path.startswith("/v2/")  # not probes or metrics
    if method == "POST" and not path.startswith("/v2/"):
        return True  # not an operation of zq's own API
    return "/claims" in path or (method == "DELETE" and "pop=" in environ["QUERY_STRING"])


@lru_cache(maxsize=256)
def _header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")
