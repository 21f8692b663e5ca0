# SPDX-License-Identifier: Apache-2.0
"""WebSocket connections: handshake, connection limits, and transfer of frames (contract section 14)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct

from zq.http.features import Receive, Scope, Send, SocketEdge
from zq.model.addresses import client_network
from zq.websocket.session import CloseConnection, Service, Session

LOG = logging.getLogger(__name__)
# Seconds after which the server disconnects a client that does not read.
SEND_TIMEOUT: Final = 30.0
# Seconds between two checks whether the credential has expired or the server is stopping.
CHECK_INTERVAL: Final = 1.0
# Handshake headers that are sent with each request of the connection.
FORWARDED: Final = ("Host", "X-Forwarded-For")
# Handshake headers that identify the client if the authentication strategy is ``proxy``. The proxy sets them.
PROXY_HEADERS: Final = ("X-Zq-Proxy-Secret", "X-Project-Id", "X-User-Id", "X-Roles")
CLOSE_GOING_AWAY: Final = 1001
CLOSE_TOO_BIG: Final = 1009


class ClientDisconnect(Exception):
    """The error for a client that has disconnected, or that does not read the data sent to it."""


class ConnectionLimits(Struct, frozen=True):
    """Connection limits of a process. At most half of the connections may be unauthenticated."""

    connections: int
    per_address: int | None
    frame: int


class Connections:
    """The WebSocket connections of this process."""

    def __init__(
        self, edge: SocketEdge, service: Service, bounds: ConnectionLimits, allowed_origins: Collection[str]
    ) -> None:
        self._edge = edge
        self._service = service
        self._bounds = bounds
        self._origins = frozenset(allowed_origins)
        self._forwarded = (*FORWARDED, *(PROXY_HEADERS if service.strategy == "proxy" else ()))
        self._sessions: dict[Session, bytes] = {}
        """The client network of each session."""
        self._connections: set[Connection] = set()

    def refusal(self, scope: Scope) -> HTTPStatus | None:
        origins = {value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"}
        if not origins <= self._origins:
            return HTTPStatus.FORBIDDEN
        address = client_network(scope["client"][0])
        unknown = sum(not session.is_known for session in self._sessions)
        of_address = sum(each == address for each in self._sessions.values())
        bounds = self._bounds
        if (
            len(self._sessions) >= bounds.connections
            or unknown >= max(1, bounds.connections // 2)
            or (bounds.per_address is not None and of_address >= bounds.per_address)
            or self._edge.is_stopping()
        ):
            return HTTPStatus.SERVICE_UNAVAILABLE
        return None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope["client"][0]
        run = partial(self._edge.run, caller=client_network(peer))
        connection = Connection(self._edge, run, self._bounds.frame, receive, send)
        session = Session(self._service, peer, self._headers(scope), connection.notify)
        self._sessions[session] = client_network(peer)
        self._connections.add(connection)
        try:
            await connection.send({"type": "websocket.accept"})
            await connection.converse(session)
        except CloseConnection as ended:
            with suppress(ClientDisconnect, TimeoutError):
                await connection.send({"type": "websocket.close", "code": ended.code, "reason": ended.reason})
        except ClientDisconnect:
            pass
        finally:
            del self._sessions[session]
            self._connections.discard(connection)
            self._service.places.leave(session)
            connection.close()
            await run(session.end)

    def end(self) -> None:
        for connection in self._connections:
            connection.notify()

    def _headers(self, scope: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for kept in self._forwarded:
            values = [value.decode("latin-1") for name, value in scope["headers"] if name.decode() == kept.lower()]
            if values:
                found[kept] = ",".join(values)
        return found


class Connection:
    """An accepted WebSocket connection."""

    def __init__(
        self,
        edge: SocketEdge,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        max_frame: int,
        receive: Receive,
        send: Send,
    ) -> None:
        """Create the connection. ``run`` runs a blocking call in a worker thread."""
        self._edge = edge
        self._run = run
        self._max_frame = max_frame
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._receiving: asyncio.Future[dict[str, Any]] | None = None

    def notify(self) -> None:
        """Wake the connection, so that it pushes new messages. Thread-safe."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wakeup.set)

    async def converse(self, session: Session) -> None:
        """Answer frames and push messages until ``CloseConnection`` or ``ClientDisconnect`` is raised."""
        run = self._run
        await run(session.begin)
        while not self._edge.is_stopping():
            session.check()
            if session.is_recheck_due():
                await run(session.recheck)
            message = await self._next_message()
            if message is not None:
                answer = await run(partial(session.handle, self._frame(message)))
                await self._send_frame(answer)
                session.start_pushing()
            if session.pushes.is_due():
                batches = session.pushes.batches()
                while (batch := await run(partial(next, batches, None))) is not None:
                    for frame in batch:
                        await self._send_frame(frame)
        raise CloseConnection(CLOSE_GOING_AWAY, "The server is stopping.")

    async def _next_message(self) -> dict[str, Any] | None:
        """Wait for the client's next event. Return None after a notification or ``CHECK_INTERVAL`` seconds."""
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(_await(self._receive()))
            self._receiving.add_done_callback(lambda _: self._wakeup.set())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wakeup.wait(), CHECK_INTERVAL)
        self._wakeup.clear()
        if not self._receiving.done():
            return None
        receiving, self._receiving = self._receiving, None
        message = receiving.result()
        if message["type"] != "websocket.receive":
            raise ClientDisconnect
        return message

    def _frame(self, message: dict[str, Any]) -> str | bytes:
        frame: str | bytes | None = message.get("text")
        if frame is None:
            frame = message.get("bytes") or b""
        if len(frame) > self._max_frame:
            raise CloseConnection(CLOSE_TOO_BIG, f"A frame can have at most {self._max_frame} bytes.")
        return frame

    async def _send_frame(self, frame: str | bytes) -> None:
        kind = "bytes" if isinstance(frame, bytes) else "text"
        await self.send({"type": "websocket.send", kind: frame})

    async def send(self, message: dict[str, Any]) -> None:
        """Send an event. Raises ``ClientDisconnect`` if the client has disconnected or does not read in time."""
        until = self._loop.time() + SEND_TIMEOUT
        try:
            await self._edge.bound(self._send(message), lambda: until)
        except (TimeoutError, RuntimeError) as error:  # Granian raises RuntimeError for a client that has disconnected
            raise ClientDisconnect from error

    def close(self) -> None:
        """Stop receiving events from the client."""
        if self._receiving is not None:
            self._receiving.cancel()


async def _await(receiving: Any) -> Any:
    return await receiving
