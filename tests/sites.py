# SPDX-License-Identifier: Apache-2.0
"""Web servers in this process, such as one with fixed responses for clients that must encounter an error."""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

# Status, headers and content of a response. Content other than text is sent as JSON.
Response = tuple[int, Mapping[str, str], object]


class LocalServer(ThreadingHTTPServer):
    """A web server on a free port of this machine. It serves within a ``with`` block."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Site(LocalServer):
    """A server with fixed responses. A path without a response gives 404."""

    def __init__(self, responses: Mapping[str, Response]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, content = responses.get(self.path.partition("?")[0], (404, {}, {"title": "Not found"}))
                body = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response_only(status)
                sent = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
                for name, value in sent.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        super().__init__(Handler)
