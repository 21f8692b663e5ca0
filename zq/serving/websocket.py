# SPDX-License-Identifier: Apache-2.0
"""The WebSocket transport: connections as coroutines of the edge, bounded before their handshake (contract 14)."""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct

from zq import lifecycle
from zq.broker import Broker
from zq.http import heads
from zq.serving.asgi import Edge, Gone, Receive, Send
from zq.serving.listening import network
from zq.settings import Settings
from zq.websocket.calls import Application
from zq.websocket.session import Ended, Service, Session

LOG = logging.getLogger(__name__)
# The path at which WebSocket is served.
PATH: Final = b"/v2/ws"
# Bytes that a frame may have beside the largest post: its action, headers and names.
ENVELOPE: Final = 16 * 1024
# Seconds after which a reader that takes nothing is cut off.
SLOW: Final = 30.0
# Seconds between a connection's looks at its credential, and at the end of the server.
TICK: Final = 1.0
# Headers of a handshake that hold for all of its frames; those of a proxy where that says who asks.
KEPT: Final = ("Host", "X-Forwarded-For")
PROXYS: Final = ("X-Zq-Proxy-Secret", "X-Project-Id", "X-User-Id", "X-Roles")
GOING_AWAY: Final = 1001
TOO_BIG: Final = 1009


class Bounds(Struct, frozen=True):
    """How many connections there may be: in all, of one address (None: any number) and of one project.

    Connections without a credential get at most half of all places.
    """

    connections: int
    per_address: int | None
    per_project: int


class Connections:
    """The WebSocket connections of one process."""

    def __init__(self, edge: Edge, app: Application, broker: Broker, chosen: Settings) -> None:
        options = chosen.websocket
        self._edge = edge
        per_address = None if chosen.behind_proxy else options.max_connections_per_address
        self._bounds = Bounds(options.max_connections, per_address, options.max_connections_per_project)
        self._origins = frozenset(options.allowed_origins)
        self._kept = (*KEPT, *(PROXYS if chosen.auth.strategy == "proxy" else ()))
        self._max_frame = chosen.limits.max_messages_post_size + ENVELOPE
        self._service = Service(app, broker, chosen.auth.strategy, self._join)
        self._sessions: dict[Session, bytes] = {}
        """The networks that the connections come from."""
        self._connections: set[Connection] = set()
        self._projects: dict[object, str] = {}

    async def serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection from its handshake to its end."""
        await receive()  # the handshake
        address = network(scope["client"][0])
        refusal = self._refusal(scope, address)
        if refusal is not None:
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "websocket.http.response.start", "status": int(refusal), "headers": headers})
            await send({"type": "websocket.http.response.body", "body": b""})
            return
        connection = Connection(self._edge, self._max_frame, receive, send)
        session = Session(self._service, scope["client"][0], self._headers(scope), connection.notify)
        self._sessions[session] = address
        self._connections.add(connection)
        try:
            await connection.send({"type": "websocket.accept"})
            await connection.converse(session)
        except Ended as ended:
            with suppress(Gone, TimeoutError):
                await connection.send({"type": "websocket.close", "code": ended.code, "reason": ended.reason})
        except Gone:
            pass
        finally:
            del self._sessions[session]
            self._connections.discard(connection)
            self._projects.pop(session, None)
            connection.close()
            await self._edge.pool.do(session.end, patient=True)

    def end(self) -> None:
        """Have each connection look at once whether the server is stopping, and not at its next tick."""
        for connection in self._connections:
            connection.notify()

    def _refusal(self, scope: dict[str, Any], address: bytes) -> HTTPStatus | None:
        """Return the status with which a handshake is refused; None: it is not."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        origins = {value for name, value in headers if name == "origin"}
        if scope["raw_path"] != PATH:
            return HTTPStatus.NOT_FOUND
        if heads.refusal(headers, "") is not None:
            return HTTPStatus.BAD_REQUEST
        if not origins <= self._origins:
            return HTTPStatus.FORBIDDEN
        strangers = sum(not session.is_known for session in self._sessions)
        of_address = sum(each == address for each in self._sessions.values())
        bounds = self._bounds
        if (
            len(self._sessions) >= bounds.connections
            or strangers >= max(1, bounds.connections // 2)
            or (bounds.per_address is not None and of_address >= bounds.per_address)
            or lifecycle.is_stopping()
        ):
            return HTTPStatus.SERVICE_UNAVAILABLE
        return None

    def _headers(self, scope: dict[str, Any]) -> dict[str, str]:
        """Return the headers of the handshake that hold for all frames."""
        found: dict[str, str] = {}
        for kept in self._kept:
            values = [value.decode("latin-1") for name, value in scope["headers"] if name.decode() == kept.lower()]
            if values:
                found[kept] = ",".join(values)
        return found

    def _join(self, session: object, project: str) -> bool:
        """Count a connection for a project; return False if that has as many as it may. From any thread."""
        if self._projects.get(session) != project:
            if Counter(list(self._projects.values()))[project] >= self._bounds.per_project:
                return False
            self._projects[session] = project
        return True


class Connection:
    """One connection that was accepted: its frames, and the frames that are pushed to it."""

    def __init__(self, edge: Edge, max_frame: int, receive: Receive, send: Send) -> None:
        self._edge = edge
        self._max_frame = max_frame
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        self._coming: asyncio.Future[dict[str, Any]] | None = None

    def notify(self) -> None:
        """Look for something to send. From any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stirred.set)

    async def converse(self, session: Session) -> None:
        """Answer each frame, and send what is pushed. Raise ``Ended``, and ``Gone`` if the client has left."""
        pool = self._edge.pool
        await pool.do(session.begin, patient=True)
        while not lifecycle.is_stopping():
            session.check()
            if session.is_recheck_due():
                await pool.do(session.recheck, patient=True)
            message = await self._next_message()
            if message is not None:
                answer = await pool.do(partial(session.handle, self._frame_of(message)), patient=True)
                await self._send_frame(answer)
                session.answered()
            if session.pushes.is_due():
                batches = session.pushes.batches()
                while (batch := await pool.do(partial(next, batches, None), patient=True)) is not None:
                    for frame in batch:
                        await self._send_frame(frame)
        raise Ended(GOING_AWAY, "The server ends.")

    async def _next_message(self) -> dict[str, Any] | None:
        """Return the next message of the client; None if none comes within a tick, or there is something to send."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(_awaited(self._receive()))
            self._coming.add_done_callback(lambda _: self._stirred.set())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stirred.wait(), TICK)
        self._stirred.clear()
        if not self._coming.done():
            return None
        coming, self._coming = self._coming, None
        message = coming.result()
        if message["type"] != "websocket.receive":
            raise Gone
        return message

    def _frame_of(self, message: dict[str, Any]) -> str | bytes:
        frame: str | bytes | None = message.get("text")
        if frame is None:
            frame = message.get("bytes") or b""
        if len(frame) > self._max_frame:
            raise Ended(TOO_BIG, f"A frame must have at most {self._max_frame} bytes.")
        return frame

    async def _send_frame(self, frame: str | bytes) -> None:
        kind = "bytes" if isinstance(frame, bytes) else "text"
        await self.send({"type": "websocket.send", kind: frame})

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raise ``Gone`` if the client has left, or takes nothing for too long."""
        until = self._loop.time() + SLOW
        try:
            await self._edge.deadlines.bound(self._send(message), lambda: until)
        except (TimeoutError, RuntimeError) as error:  # Granian raises its own error for a client that has left
            raise Gone from error

    def close(self) -> None:
        """Wait for nothing more of the client."""
        if self._coming is not None:
            self._coming.cancel()


async def _awaited(coming: Any) -> Any:
    return await coming
