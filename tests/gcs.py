# SPDX-License-Identifier: Apache-2.0
"""A simulation of Google Cloud Storage in this process, limited to the requests of a store.

It shows that the driver's requests follow Google's documentation. It cannot show that Google's servers follow it.
"""

import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tests.servers import Startable

BUCKET: Final = "zq-stores"


class Gcs(Startable):
    """A server thread; if ``heeds`` is False, it ignores the condition that the object must not exist."""

    def __init__(self, heeds: bool = True) -> None:
        self.objects: dict[str, bytes] = {}
        self._heeds = heeds
        self._alone = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = {"GOOGLE_BEARER_TOKEN": "testing"}
        """The store driver's credentials; the endpoint is in the URI."""

    def uri(self, prefix: str) -> str:
        """Return the URI of a store."""
        return f"gs://{BUCKET}/{prefix}?endpoint={self.url}"

    def start(self) -> "Gcs":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _put(self, path: str, value: bytes, condition: str | None) -> int:
        with self._alone:
            if self._heeds and condition == "0" and path in self.objects:
                return 412
            self.objects[path] = value
            return 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_PUT(self) -> None:
                value = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                allowed = self.headers.get("Authorization") == "Bearer testing"
                condition = self.headers.get("x-goog-if-generation-match")
                self.answer(played._put(self.path, value, condition) if allowed else 401)

            def do_DELETE(self) -> None:
                self.answer(404 if played.objects.pop(self.path, None) is None else 204)

            def do_GET(self) -> None:
                value = played.objects.get(self.path)
                self.answer(404 if value is None else 200, value or b"")

            do_HEAD = do_GET

            def answer(self, status: int, value: bytes = b"") -> None:
                self.send_response_only(status)
                for name, text in (
                    ("ETag", '"1"'),
                    ("Last-Modified", formatdate(usegmt=True)),
                    ("x-goog-generation", "1"),
                ):
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(value)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(value)

        return Handler
