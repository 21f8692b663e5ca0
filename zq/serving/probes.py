# SPDX-License-Identifier: Apache-2.0
"""``/healthz``, ``/readyz`` and ``/metrics`` at addresses and from threads of their own.

They answer whatever the engine's connections and threads are doing, and only where they listen, not on the main port.
"""

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
from zq.serving import lifecycle

LOG = logging.getLogger(__name__)
# Requests that one listener serves at a time; connections beyond are closed.
AT_ONCE: Final = 8
# Seconds for a request, its head and its answer together.
WITHIN: Final = 10.0
# Seconds after which an address that was taken is tried again.
RETRY: Final = 1.0
# The media type of metrics.
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
# The media type of health.
JSON: Final = "application/json"
# The sentence of a 503 while the process ends.
STOPPING: Final = "The server is stopping."


class Answer(NamedTuple):
    """What a page says."""

    status: int
    media: str
    body: bytes


Page = Callable[[], Answer]


def health() -> Answer:
    """The process serves."""
    return Answer(200, JSON, b'{"status":"ok"}')


def readiness(check: Callable[[], object]) -> Page:
    """Whether ``check`` raises no ``ZqError``, and the server is not about to end."""

    def page() -> Answer:
        if lifecycle.is_stopping():
            return _unready("Stopping", STOPPING)
        try:
            check()
        except ZqError as error:
            return _unready("Service temporarily unavailable", str(error))
        return health()

    return page


def metrics(page: Callable[[], bytes]) -> Page:
    """What was counted, in Prometheus's text format."""
    return lambda: Answer(200, TEXT, page())


def _unready(title: str, sentence: str) -> Answer:
    return Answer(503, JSON, json.dumps({"title": title, "description": sentence}).encode())


def serve(name: str, host: str, port: int, pages: Mapping[str, Page], announcement: str) -> None:
    """Answer at this address from now on, or as soon as no other process of this machine does.

    ``announcement``: the line of the log when it listens.
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
                LOG.info("[%s] %s:%d cannot be listened on yet, and is tried again: %s", name, *address, error)
            warned = True
            time.sleep(RETRY)
        else:
            LOG.info(announcement)
            server.serve_forever()


class Listener(ThreadingHTTPServer):
    """A thread for each of a few connections, each for a bounded time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: "type[Handler]") -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = threading.BoundedSemaphore(AT_ONCE)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without the name of this machine, which the base class would look up."""
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
        end = threading.Timer(WITHIN, _hang_up, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("A probe was not answered.", exc_info=True)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of a few paths, one for each connection."""

    pages: ClassVar[dict[str, Page]] = {}
    timeout = WITHIN
    server_version = "zq"
    sys_version = ""

    def do_GET(self) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        if page is None:
            self._answer(Answer(404, JSON, b'{"title":"404 Not Found"}'))
            return
        try:
            answer = page()
        except Exception:  # the edge of this thread
            LOG.critical("A probe failed for an unforeseen reason.", exc_info=True)
            answer = Answer(500, JSON, b'{"title":"Internal server error"}')
        self._answer(answer)

    do_HEAD = do_GET

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.media)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.status == 503:
            self.send_header("Retry-After", "1")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """JSON, and nothing of what was sent."""
        self._answer(Answer(code, JSON, b'{"title":"Bad request"}'))

    def log_message(self, format: str, *args: Any) -> None:
        """Probes leave no lines."""
