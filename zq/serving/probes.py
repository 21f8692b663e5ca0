# SPDX-License-Identifier: Apache-2.0
"""Listeners for ``/healthz``, ``/readyz`` and ``/metrics`` with their own threads.

They respond even if all connections and threads of the HTTP server are busy.
"""

import errno
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, NamedTuple

from zq.errors import ZqError

LOG = logging.getLogger(__name__)
# Maximum number of concurrent requests per listener; further connections are closed.
MAX_REQUESTS: Final = 8
# Maximum duration of a request in seconds, including the response.
TIMEOUT: Final = 10.0
# Seconds between attempts to bind an address.
RETRY_INTERVAL: Final = 1.0
# Media type of the metrics page.
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
# Media type of health reports.
JSON: Final = "application/json"
# Description of the 503 response while the server is leaving.
STOPPING_ERROR: Final = "The server is draining: it is about to stop, or zq-server drain was run."
# Body of the 401 response.
UNAUTHORIZED: Final = b'{"title":"Unauthorized","description":"Send the token of [metrics] token_file."}'


class Response(NamedTuple):
    """The status, media type and body of a response."""

    status: int
    media: str
    body: bytes


Page = Callable[[str], Response]
"""Returns the response to a request with this ``Authorization`` header; "" = no header."""


def health(_authorization: str = "") -> Response:
    return Response(200, JSON, b'{"status":"ok"}')


def readiness(check: Callable[[], object], is_leaving: Callable[[], bool]) -> Page:
    """Return a readiness page.

    The status of the page is 503 if ``check`` raises ``ZqError``, or if the server drains or stops.
    """

    def page(_authorization: str) -> Response:
        if is_leaving():
            return _unready("Stopping", STOPPING_ERROR)
        try:
            check()
        except ZqError as error:
            return _unready("Service temporarily unavailable", str(error))
        return health()

    return page


def metrics(render: Callable[[], bytes], permits: Callable[[str], bool]) -> Page:
    """Return the metrics page. Its status is 401 if ``permits`` rejects the ``Authorization`` header."""

    def page(authorization: str) -> Response:
        return Response(200, TEXT, render()) if permits(authorization) else Response(401, JSON, UNAUTHORIZED)

    return page


def _unready(title: str, sentence: str) -> Response:
    return Response(503, JSON, json.dumps({"title": title, "description": sentence}).encode())


def serve(name: str, host: str, port: int, pages: Mapping[str, Page], announcement: str) -> None:
    """Serve HTTP pages in a background thread. If the address cannot be used, retry until it can.

    ``pages`` maps URL paths to functions that return the response. ``name`` is the configuration section of the
    listener. ``announcement`` is logged when the listener has started.
    """
    arguments = (name, (host, port), pages, announcement)
    threading.Thread(target=_listen, args=arguments, name=f"zq-{name}", daemon=True).start()


def _listen(name: str, address: tuple[str, int], pages: Mapping[str, Page], announcement: str) -> None:
    warned = False
    while True:
        try:
            kind = type("Handler", (Handler,), {"pages": dict(pages)})
            server = Listener(address, kind)
        except OSError as error:
            if not warned:
                # Another worker of this server may use the address.
                level = logging.INFO if error.errno == errno.EADDRINUSE else logging.WARNING
                LOG.log(level, "[%s] cannot listen on %s:%d; retrying: %s", name, *address, error)
            warned = True
            time.sleep(RETRY_INTERVAL)
        else:
            LOG.info(announcement)
            server.serve_forever()


class Listener(ThreadingHTTPServer):
    """An HTTP server with at most ``MAX_REQUESTS`` connections, each with its own thread and deadline."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: "type[Handler]") -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind the address. Unlike the base class, do not look up this machine's name in DNS."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", 0

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(TIMEOUT, _hang_up, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("Error in a probe request.", exc_info=True)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """A handler for GET and HEAD requests. Each connection serves one request.

    ``pages`` maps paths to functions that return the response.
    """

    pages: ClassVar[dict[str, Page]] = {}
    timeout = TIMEOUT
    server_version = "zq"
    sys_version = ""

    def do_GET(self) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        if page is None:
            self._answer(Response(404, JSON, b'{"title":"404 Not Found"}'))
            return
        try:
            answer = page(self.headers.get("Authorization", ""))
        except Exception:  # the probe must get a response
            LOG.critical("Unexpected error in a probe.", exc_info=True)
            answer = Response(500, JSON, b'{"title":"Internal server error"}')
        self._answer(answer)

    do_HEAD = do_GET

    def _answer(self, answer: Response) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.media)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.status == 503:
            self.send_header("Retry-After", "1")
        if answer.status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error without echoing the request."""
        self._answer(Response(code, JSON, b'{"title":"Bad request"}'))

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing, because probes are not logged."""
