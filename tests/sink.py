# SPDX-License-Identifier: Apache-2.0
"""A local webhook subscriber that confirms subscriptions, and servers that never answer."""

import json
import resource
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Self

from tests.servers import ask
from tests.sites import LocalServer

KEY = "k" * 40
CONFIG = f"""
[signed_url]
secret_key = {KEY}
[notification]
allowed_networks = 127.0.0.0/8
rate = 0
"""
"""The configuration of a server that delivers to this machine."""
REFUSAL = b"<img src=x\nonerror=alert(1)>"
"""The body of every response that is not a success."""


class Delivery(NamedTuple):
    """A received request, and its time on the monotonic clock."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Sink(LocalServer):
    """A subscriber that answers 200 or the entry of ``answers`` for a path: a status, or a function of the handler."""

    def __init__(self) -> None:
        self.answers: dict[str, int | Callable[[BaseHTTPRequestHandler], int]] = {}
        self._lock = threading.Lock()
        self._came: defaultdict[str, list[Delivery]] = defaultdict(list)
        super().__init__(self._handler())

    def came(self, path: str, kind: str = "Notification") -> list[Delivery]:
        """Return the deliveries to a path, including failed attempts."""
        with self._lock:
            return [each for each in self._came[path] if each.document.get("Message_Type", kind) == kind]

    def asked(self, path: str) -> list[dict[str, Any]]:
        """Return the confirmation requests for a path."""
        return [each.document for each in self.came(path, "SubscriptionConfirmation")]

    def bodies(self, path: str) -> list[Any]:
        """Return the bodies of the delivered messages."""
        return [each.document["body"] for each in self.came(path)]

    def subscribe(self, url: str, name: str, path: str, kind: str = "queue", **terms: Any) -> dict[str, str]:
        """Subscribe a path of this server, confirm the subscription, and return the subscribe response."""
        source = f"/v2/{kind}s/{name}/subscriptions"
        answer = ask(url, "POST", source, {"subscriber": self.url + path, "ttl": 3600, **terms})
        assert answer.status == 201, answer
        made: dict[str, str] = answer.document
        agreed = time.monotonic() + 20
        while not (asked := self.came(path, "SubscriptionConfirmation")):
            assert time.monotonic() < agreed, "Nobody asked for confirmation."
            time.sleep(0.02)
        self.agree(url, asked[-1].document)
        return made

    @staticmethod
    def agree(url: str, asked: dict[str, Any]) -> None:
        """Confirm a subscription with the data of its confirmation request."""
        names = ("URL-Signature", "URL-Expires", "URL-Methods", "URL-Paths", "X-Project-ID")
        answer = ask(url, "PUT", asked["URL-Paths"], asked["SubscribeBody"], headers={n: asked[n] for n in names})
        assert answer.status == 204, answer

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                delivery = Delivery(self.path, dict(self.headers.items()), body, time.monotonic())
                with sink._lock:
                    sink._came[self.path].append(delivery)
                answer = sink.answers.get(self.path, 200)
                status = answer(self) if callable(answer) else answer
                if status:
                    self.send_response(status)
                    said = b"" if status < 300 else REFUSAL
                    self.send_header("Content-Length", str(len(said)))
                    if 300 <= status < 400:
                        self.send_header("Location", f"{sink.url}/elsewhere")
                    self.end_headers()
                    self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                """Log no requests."""

        return Handler


class BlackHoles:
    """Servers at local addresses that accept connections and never answer."""

    def __init__(self, count: int) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._listening = [socket.create_server((f"127.0.1.{1 + number}", 0)) for number in range(count)]
        self._taken: list[socket.socket] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)

    @property
    def urls(self) -> list[str]:
        """Return the URLs of the servers."""
        return ["http://{}:{}".format(*each.getsockname()) for each in self._listening]

    @property
    def connections(self) -> int:
        """Return the number of accepted connections."""
        return len(self._taken)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        for each in [*self._listening, *self._taken]:
            each.close()

    def _take(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self._listening:
                selector.register(each, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(0.1):
                    self._taken.append(key.fileobj.accept()[0])  # type: ignore[union-attr]
