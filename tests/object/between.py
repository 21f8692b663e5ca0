# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy in front of Swift that fails the requests that a test chooses."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.servers import Startable, free_port
from tests.swift import Swift

# Outcome of a request: a status that the proxy returns instead of Swift, ``CUT``, or 0 for none.
CUT = -1
Judge = Callable[[str, str], int]


class Between(Startable):
    """A proxy that replaces Swift in the variables of ``environment``."""

    def __init__(self, swift: Swift) -> None:
        self._target = urlsplit(swift.auth_url).netloc
        self._judge: Judge = lambda _method, _path: 0
        self.harmed = 0
        """Number of requests that the proxy failed."""
        port = free_port()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.environment = {**swift.environment, "ST_AUTH": f"http://127.0.0.1:{port}/auth/v1.0"}

    def start(self) -> "Between":
        self._thread.start()
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextmanager
    def doing(self, judge: Judge) -> Iterator[None]:
        """Apply the outcome that ``judge`` returns for the method and path of each request."""
        former, self._judge = self._judge, judge
        try:
            yield
        finally:
            self._judge = former

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                harm = between._judge(self.command, self.path)
                between.harmed += harm != 0
                if harm > 0:
                    self.answer(harm, {}, b"")
                    return
                connection = HTTPConnection(between._target, timeout=20)
                connection.request(self.command, self.path, body, dict(self.headers))
                reply = connection.getresponse()
                content = reply.read()
                connection.close()
                if harm == CUT:
                    self.close_connection = True
                    return
                self.answer(reply.status, dict(reply.getheaders()), content)

            def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response_only(status)
                headers = {name.lower(): value for name, value in headers.items()}
                length = headers["content-length"] if self.command == "HEAD" and headers else str(len(content))
                for name, value in (headers | {"content-length": length}).items():
                    if name != "transfer-encoding":
                        self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_HEAD = do_DELETE = pass_on

        return Handler
