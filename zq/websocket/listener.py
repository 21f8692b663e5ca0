# SPDX-License-Identifier: Apache-2.0
"""Where WebSocket connections come in: a thread for each, bounded in number, size of frames and patience."""

import logging
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Origin

from zq.application import Application
from zq.errors import StartRefused
from zq.lifecycle import is_stopping
from zq.serving.tls import ServerTls
from zq.settings import Settings
from zq.websocket.session import TRY_LATER, Ended, Service, Session

LOG = logging.getLogger(__name__)
# Bytes that a frame may have beside the largest post: its action, headers and names.
ENVELOPE: Final = 16 * 1024
# Seconds after which a reader that takes nothing is cut off.
SLOW: Final = 30
# Seconds between a connection's looks at its credential, and at the end of the server.
TICK: Final = 1.0
# Headers of a handshake that hold for all of its frames; those of a proxy where that says who asks.
KEPT: Final = ("Host",)
PROXYS: Final = ("X-Zq-Proxy-Secret", "X-Project-Id", "X-User-Id", "X-Roles", "X-Forwarded-For")
GOING_AWAY: Final = 1001


class Listener:
    """Serves WebSocket at one address, from ``start`` to ``stop``. Raises ``StartRefused``."""

    def __init__(self, chosen: Settings, made: Application) -> None:
        self._chosen = chosen
        self._tls = ServerTls(chosen) if chosen.tls_cert else None
        self._pages = made.pages
        self._lock = threading.Lock()
        self._projects: dict[object, str] = {}
        self._ending = False
        self._connections: set[ServerConnection] = set()
        self._service = Service(made.outermost(), made.broker, chosen.auth.strategy, self._join)
        self._server = self._listen()

    def _listen(self) -> Server:
        chosen = self._chosen
        address = (chosen.websocket.bind, chosen.websocket.port)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            listening = socket.create_server(address, family=family, reuse_port=chosen.workers > 1, backlog=128)
        except OSError as error:
            raise StartRefused(
                f"[websocket] bind and port must be an address that is free: {address[0]}:{address[1]}: {error}."
            ) from error
        return serve(
            self._serve,
            sock=listening,
            origins=[None, *map(Origin, chosen.websocket.allowed_origins)],
            max_size=chosen.limits.max_messages_post_size + ENVELOPE,
            compression=None,
            ping_interval=20,
            ping_timeout=20,
            open_timeout=5,
            close_timeout=2,
            max_queue=2,
            server_header=None,
            ssl=self._first_tls(),
            process_request=self._page,
        )

    def reload(self) -> None:
        """Read the certificate again, for new connections. Raises ``StartRefused``, and the former one stays."""
        if self._tls is not None:
            self._tls.reload()

    def _page(self, connection: ServerConnection, request: Request) -> Response | None:
        """What a probe is told; None to all others, who go on with the handshake."""
        page = self._pages.get(request.path)
        if page is None:
            return None
        answer = page()
        response = connection.respond(HTTPStatus(answer.status), answer.body.decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = answer.media
        return response

    def _first_tls(self) -> ssl.SSLContext | None:
        """What the server holds for good: each handshake goes on with what was read last."""
        if self._tls is None:
            return None
        tls, context = self._tls, ServerTls(self._chosen).context
        context.sni_callback = lambda connection, _name, _context: setattr(connection, "context", tls.context)
        return context

    def start(self) -> int:
        """Accept connections from a thread; the port."""
        threading.Thread(target=self._server.serve_forever, name="zq-websocket", daemon=True).start()
        port = int(self._server.socket.getsockname()[1])
        LOG.info("WebSocket is served at %s, port %d.", self._chosen.websocket.bind, port)
        return port

    def stop(self, within: float) -> None:
        """Accept no more, answer what has come, and close; the rest is cut off after so many seconds."""
        self._server.shutdown()
        self._ending = True
        with self._lock:
            left = list(self._connections)
        deadline = time.monotonic() + within
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            with self._lock:
                left = list(self._connections)
        for connection in left:
            with suppress(OSError):  # it has ended meanwhile
                connection.socket.shutdown(socket.SHUT_RDWR)

    def _join(self, session: object, project: str) -> bool:
        """Count a connection for a project; False if that has as many as it may."""
        with self._lock:
            if self._projects.get(session) != project:
                if Counter(self._projects.values())[project] >= self._chosen.websocket.max_connections_per_project:
                    return False
                self._projects[session] = project
            return True

    def _enter(self, connection: ServerConnection) -> bool:
        with self._lock:
            if len(self._connections) >= self._chosen.websocket.max_connections:
                return False
            self._connections.add(connection)
            return True

    def _serve(self, connection: ServerConnection) -> None:
        if not self._enter(connection):
            connection.close(TRY_LATER, "This server has as many connections as it may have.")
            return
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SLOW, 0))
        session = Session(self._service, str(connection.remote_address[0]), self._kept(connection), connection.send)
        try:
            session.begin()
            self._converse(connection, session)
        except Ended as ended:
            connection.close(ended.code, ended.reason)
        except ConnectionClosed:
            pass
        finally:
            session.end()
            with self._lock:
                self._projects.pop(session, None)
                self._connections.discard(connection)

    def _converse(self, connection: ServerConnection, session: Session) -> None:
        while not (self._ending or is_stopping()):
            session.check()
            try:
                frame: Any = connection.recv(timeout=TICK)
            except TimeoutError:
                continue
            connection.send(session.handle(frame))
            session.answered()
        raise Ended(GOING_AWAY, "The server ends.")

    def _kept(self, connection: ServerConnection) -> dict[str, str]:
        assert connection.request is not None
        given = connection.request.headers
        names = [*KEPT, *(PROXYS if self._chosen.auth.strategy == "proxy" else PROXYS[-1:])]
        return {name: ",".join(given.get_all(name)) for name in names if name in given}
