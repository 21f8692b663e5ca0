# SPDX-License-Identifier: Apache-2.0
"""A worker process that runs Granian's embeddable server and the ASGI application (edge) in one event loop."""

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server
from msgspec import Struct

from zq import turns
from zq.http import heads
from zq.http.application import App
from zq.http.features import Feature, Receive, Scope, Send, SocketHandler
from zq.serving import fairness, lifecycle, listening, systemd
from zq.serving.asgi import PIECE_SIZE, Edge, EdgeLimits
from zq.serving.draining import Drain
from zq.serving.settings import Settings
from zq.serving.settings.sections import ServerOptions
from zq.serving.tls import ServerTls

LOG = logging.getLogger(__name__)
# Maximum seconds for which a stopping worker serves connected clients after the drain.
LINGER_SECONDS: Final = 2.0
# Seconds without a new request after which a stopping worker exits.
IDLE_SECONDS: Final = 0.3
# Seconds between two checks of whether a stopping worker still serves requests.
DRAIN_CHECK_INTERVAL: Final = 0.05
# Seconds between two checks of whether a starting server accepts connections.
ACCEPT_CHECK_INTERVAL: Final = 0.02


class WorkerApplication(Struct, frozen=True):
    """The application of a worker.

    ``inner`` is the ``App`` inside the WSGI application ``app``. ``reload`` also reloads the files of ``tls``.
    """

    app: Callable[..., Iterable[bytes]]
    inner: App
    features: Sequence[Feature]
    end_waiting: Callable[[], object]
    reload: Callable[[], object]
    drain: Drain
    tls: ServerTls | None


def serve(chosen: Settings, open_app: Callable[[], WorkerApplication], number: int) -> int:
    """Serve as the worker ``number`` until a signal ends this process. Return the exit code."""
    _allow_connections()
    sys.setswitchinterval(turns.SWITCH_INTERVAL)
    opened = open_app()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(Worker(chosen, opened, number).run())
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory, or ``None`` if uvloop is not installed.

    With uvloop, a small request takes a third less time.
    """
    if find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Sockets:
    """The WebSocket connections of one process, and the server functions that WebSocket handlers call."""

    def __init__(self, edge: Edge, app: Callable[..., Iterable[bytes]], features: Sequence[Feature]) -> None:
        self._edge = edge
        self._app = app
        self._handlers: Mapping[bytes, SocketHandler] = {
            path.encode(): handler for feature in features for path, handler in feature.sockets(self).items()
        }

    def __bool__(self) -> bool:
        return bool(self._handlers)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection from its handshake until it closes."""
        await receive()  # the handshake
        handler = self._handlers.get(scope["raw_path"])
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        if handler is None:
            await _reject(send, HTTPStatus.NOT_FOUND)
        elif heads.find_head_error(headers, "") is not None:
            await _reject(send, HTTPStatus.BAD_REQUEST)
        elif (refusal := handler.refusal(scope)) is not None:
            await _reject(send, refusal)
        else:
            await handler.serve(scope, receive, send)

    def end(self) -> None:
        for handler in self._handlers.values():
            handler.end()

    def run(self, work: Callable[[], Any], caller: bytes) -> Awaitable[Any]:
        return self._edge.pool.do(work, caller=caller, patient=True)

    def bound(self, awaited: Any, deadline: Callable[[], float]) -> Awaitable[Any]:
        return self._edge.deadlines.bound(awaited, deadline)

    def call(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        return self._app(environ, start)

    def is_stopping(self) -> bool:
        return lifecycle.is_stopping()


async def _reject(send: Send, status: HTTPStatus) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "websocket.http.response.start", "status": int(status), "headers": headers})
    await send({"type": "websocket.http.response.body", "body": b""})


class Worker:
    """The event loop of one process with its Granian servers.

    A reload of certificates starts another Granian server for new connections. The previous server then finishes its
    requests and ends.
    """

    def __init__(self, chosen: Settings, opened: WorkerApplication, number: int) -> None:
        self._chosen = chosen
        self._number = number
        self._opened = opened
        self._address = listening.resolve(chosen.server.bind)
        """The listening address, resolved once because a reload or a stop must not depend on DNS."""
        self._edge: Edge
        self._sockets: Sockets
        self._servers: dict[Server, asyncio.Task[None]] = {}
        self._ending = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGQUIT. SIGTERM drains the worker first."""
        chosen, server, loop = self._chosen, self._chosen.server, asyncio.get_running_loop()
        per_address = None if server.behind_proxy else server.max_connections_per_address
        limits = EdgeLimits(
            *(server.body_timeout, server.send_timeout, server.queue_timeout, chosen.max_body),
            per_address,
            _caller_headers(chosen.auth.strategy),
        )
        opened, counter = self._opened, self._opened.drain.counter(self._number)
        self._edge = edge = Edge(
            opened.app, opened.inner, limits, chosen.threads, loop, counter, opened.drain.is_leaving
        )
        self._sockets = Sockets(edge, self._opened.app, self._opened.features)
        self._start_server()
        loop.add_signal_handler(signal.SIGTERM, self._begin, self._drain)
        for number in (signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._end_at_once)
        loop.add_signal_handler(lifecycle.RELOAD, self._begin, self._reload)
        lifecycle.allow_reload()
        LOG.info("Process %d is serving.", os.getpid())
        if systemd.is_notified():
            self._begin(self._announce)
        ended = asyncio.ensure_future(self._ending.wait())
        while not ended.done():
            await asyncio.wait({ended, *self._servers.values()}, return_when=asyncio.FIRST_COMPLETED)
            if not self._ending.is_set() and any(task.done() for task in self._servers.values()):
                raise RuntimeError("Granian has stopped unexpectedly.")
        for each in self._servers:
            each.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait(self._servers.values(), timeout=server.graceful_timeout)

    def _serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> Awaitable[None]:
        serve = self._edge.serve if scope["type"] == "http" else self._sockets.serve
        return serve(scope, receive, send)

    def _begin(self, work: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_server(self) -> Server:
        chosen = self._chosen
        server = Server(
            self._serve,
            address=self._address,
            port=chosen.server.port,
            interface=Interfaces.ASGINL,
            # With HTTP/2, Granian has no timeout for idle connections; see decision 0135.
            http=HTTPModes.http1,
            websockets=bool(self._sockets),
            backlog=1024,
            backpressure=chosen.max_waiters + chosen.max_streams + chosen.server.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(chosen.server.head_timeout * 1000),
                max_buffer_size=PIECE_SIZE,  # bytes of a response that Granian buffers for a slow client
            ),
            log_level=LogLevels.error,
            **_tls(chosen.server),
        )
        self._servers[server] = asyncio.ensure_future(server.serve())
        return server

    async def _announce(self) -> None:
        port = self._chosen.server.port
        while port and not listening.accepts(self._address, port):
            await asyncio.sleep(ACCEPT_CHECK_INTERVAL)
        systemd.notify(systemd.READY)

    async def _reload(self) -> None:
        """Reload the options and files. If the TLS files are valid, start a server for new connections with them."""
        async with self._reloading:
            tls = self._opened.tls
            former_context = tls and tls.context
            await asyncio.to_thread(self._opened.reload)
            if tls is None or tls.context is former_context:  # Granian would end this process if a file is invalid
                return
            former = list(self._servers.items())
            self._start_server()
            await asyncio.sleep(IDLE_SECONDS)
        for server, task in former:  # a stopped server finishes its requests
            task.add_done_callback(partial(self._forget, server))
            server.stop()  # type: ignore[no-untyped-call]

    def _forget(self, server: Server, _task: "asyncio.Task[None]") -> None:
        self._servers.pop(server, None)

    async def _drain(self) -> None:
        """Drain the worker, then let it end.

        The worker accepts new connections for ``drain_delay`` seconds. After that, the worker serves the existing
        connections until no request has arrived for ``IDLE_SECONDS`` seconds, but for at most ``LINGER_SECONDS``
        seconds.
        """
        if lifecycle.is_stopping():
            return
        server = self._chosen.server
        lifecycle.begin_stopping(server.drain_delay, self._opened.end_waiting)
        self._sockets.end()
        await asyncio.sleep(server.drain_delay)
        sink = listening.divert_new_connections(self._address, server.port, server.workers)
        began = time.monotonic()
        while time.monotonic() < min(began + LINGER_SECONDS, max(began, self._edge.last_request) + IDLE_SECONDS):
            await asyncio.sleep(DRAIN_CHECK_INTERVAL)
        self._ending.set()
        if sink is not None:
            sink.close()

    def _end_at_once(self) -> None:
        lifecycle.begin_stopping(0, self._opened.end_waiting)
        self._sockets.end()
        self._ending.set()


def _tls(chosen: ServerOptions) -> dict[str, Any]:
    if not chosen.tls_cert:
        return {}
    return {
        "ssl_cert": Path(chosen.tls_cert),
        "ssl_key": Path(chosen.tls_key),
        "ssl_protocol_min": SSLProtocols.tls13 if chosen.tls_min == "1.3" else SSLProtocols.tls12,
        "ssl_ca": Path(chosen.tls_client_ca) if chosen.tls_client_ca else None,
        "ssl_client_verify": bool(chosen.tls_client_ca),
    }


def _allow_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _caller_headers(strategy: str) -> tuple[bytes, ...]:
    if strategy in ("", "proxy"):
        return fairness.PROJECTS
    return fairness.KEYSTONE if strategy == "keystone" else fairness.CREDENTIALS
