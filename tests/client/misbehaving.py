# SPDX-License-Identifier: Apache-2.0
"""A proxy before a real server that does to requests what networks and busy servers do."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Trouble(NamedTuple):
    """What befalls one request: it is passed on or not, then it is answered, hung up on, or left waiting."""

    passes: bool = True
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    hangs: bool = False
    content: bytes = b"<h1>trouble</h1>"
    late: bool = False
    """Nothing else befalls it but that its answer waits for the ``gate``."""


LOST_ANSWER = Trouble()
"""The server does its work, and the connection breaks."""
LOST_REQUEST = Trouble(passes=False)
BUSY = Trouble(passes=False, status=503)
SILENT = Trouble(passes=False, hangs=True)
LATE = Trouble(late=True)


class Proxy:
    """``troubles`` befall the next requests, one each; those after them go well. ``seen``: all of them."""

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target).netloc
        self.troubles: deque[Trouble | None] = deque()
        self.commits: deque[Trouble] = deque()
        """The same, for requests that commit."""
        self.gate = threading.Event()
        self.fails_from: int | None = None
        """So many requests go well, and no further one."""
        self.seen: list[tuple[str, str, str]] = []
        """Method, path, Idempotency-Key."""
        self.ending = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def plan(self, *troubles: Trouble | None) -> None:
        """What befalls the next requests."""
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
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        return Handler

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list[Any], bytes]:
        """The real server's answer."""
        connection = HTTPConnection(self.target, timeout=120)
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        return reply.status, reply.getheaders(), content

    @contextmanager
    def serving(self) -> Iterator["Proxy"]:
        """Until the end of the block."""
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
