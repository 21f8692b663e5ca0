# SPDX-License-Identifier: Apache-2.0
"""WebSocket connections at the server's edge, dispatched to features by path."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from zq.http import heads
from zq.http.features import Feature, Receive, Scope, Send, SocketHandler
from zq.serving import lifecycle
from zq.serving.asgi import Edge


class Sockets:
    """The WebSocket connections of one process. Implements ``SocketEdge`` for their handlers."""

    def __init__(self, edge: Edge, app: Callable[..., Iterable[bytes]], features: Sequence[Feature]) -> None:
        self._edge = edge
        self._app = app
        self._handlers: Mapping[bytes, SocketHandler] = {
            path.encode(): handler for feature in features for path, handler in feature.sockets(self).items()
        }

    def __bool__(self) -> bool:
        """Return whether any feature serves WebSocket connections."""
        return bool(self._handlers)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection from its handshake until it closes."""
        await receive()  # the handshake
        handler = self._handlers.get(scope["raw_path"])
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        if handler is None:
            await _refuse(send, HTTPStatus.NOT_FOUND)
        elif heads.refusal(headers, "") is not None:
            await _refuse(send, HTTPStatus.BAD_REQUEST)
        elif (refusal := handler.refusal(scope)) is not None:
            await _refuse(send, refusal)
        else:
            await handler.serve(scope, receive, send)

    def end(self) -> None:
        """Close all connections because the server is stopping."""
        for handler in self._handlers.values():
            handler.end()

    def run(self, work: Callable[[], Any], caller: bytes) -> Awaitable[Any]:
        """Run blocking work on a worker thread and return the result."""
        return self._edge.pool.do(work, caller=caller, patient=True)

    def bound(self, awaited: Any, deadline: Callable[[], float]) -> Awaitable[Any]:
        """Await ``awaited``. Raises ``TimeoutError`` soon after the monotonic time that ``deadline`` returns."""
        return self._edge.deadlines.bound(awaited, deadline)

    def call(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Call the WSGI application on the current thread. Blocks. Thread-safe."""
        return self._app(environ, start)

    def is_stopping(self) -> bool:
        """Return whether the server is stopping."""
        return lifecycle.is_stopping()


async def _refuse(send: Send, status: HTTPStatus) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "websocket.http.response.start", "status": int(status), "headers": headers})
    await send({"type": "websocket.http.response.body", "body": b""})
