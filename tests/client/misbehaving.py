# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a real server that simulates faults of networks and busy servers."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Trouble(NamedTuple):
    """The fault of one request: whether it is forwarded, then a response, a disconnection or a hang."""

    passes: bool = True
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    hangs: bool = False
    content: bytes = b"<h1>trouble</h1>"
    late: bool = False
    """Only delay the response until the ``gate`` opens."""


LOST_ANSWER = Trouble()
"""The server processes the request, and then the connection breaks."""
LOST_REQUEST = Trouble(passes=False)
BUSY = Trouble(passes=False, status=503)
SILENT = Trouble(passes=False, hangs=True)
LATE = Trouble(late=True)


class Proxy:
    """A proxy that applies each of ``troubles`` to one of the next requests and records all requests in ``seen``."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.troubles: deque[Trouble | None] = deque()
        self.commits: deque[Trouble] = deque()
        """Faults of the next requests that commit."""
        self.gate = threading.Event()
        self.fails_from: int | None = None
        """Number of requests that succeed before all others fail."""
        self.seen: list[tuple[str, str, str]] = []
        """Method, path and Idempotency-Key of each request."""
        self.ending = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def plan(self, *troubles: Trouble | None) -> None:
        """Set the faults of the next requests and clear ``seen``."""
        self.seen.clear()
        self.troubles.extend(troubles)

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                proxy.seen.append((self.command, self.path, self.headers.get("Idempotency-Key", "")))
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                planned = proxy.commits if self.path.startswith("/v2/commits") else proxy.troubles
                trouble = planned.popleft() if planned else None
                if proxy.fails_from is not None and len(proxy.seen) > proxy.fails_from:
                    trouble = BUSY
                status, headers, content = 0, list[tuple[str, str]](), b""
                if trouble is None or trouble.passes:
                    status, headers, content = proxy.ask(self.command, self.path, dict(self.headers), body)
                if trouble is not None and trouble.late:
                    proxy.gate.wait(120)
                elif trouble is not None:
                    status, headers, content = trouble.status, list(trouble.headers), trouble.content
                    if trouble.hangs:
                        proxy.ending.wait(30)
                self.close_connection = not status
                if status:
                    self.answer(status, headers, content)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _any

            def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                with suppress(ConnectionError):  # the client has disconnected
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Log no requests."""

        return Handler

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[Any], bytes]:
        """Return the real server's response."""
        connection = HTTPConnection(self.target, timeout=120)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, reply.getheaders(), content

    @contextmanager
    def serving(self) -> Iterator["Proxy"]:
        """Run the proxy until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self.ending.set()
            self.gate.set()
            self._server.shutdown()
            thread.join()
            self._server.server_close()
