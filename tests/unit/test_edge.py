# SPDX-License-Identifier: Apache-2.0
"""The edge without a server: on which thread it runs what."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from zq import turns
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.http.application import App
from zq.http.pending import PendingAnswer
from zq.serving.asgi import Answer, Edge, Limits
from zq.storage import connect
from zq.turns import Company

POLL = "/v2/queues/jobs/messages"
HEADERS = [(b"host", b"localhost"), (b"client-id", b"30387f00c63a4a30ac1f3e2cf1b0c3a1"), (b"x-project-id", b"acme")]
MESSAGE = b'{"messages": [{"body": 1, "ttl": 300}]}'


class Watched(Edge):
    """An edge that remembers the threads on which the application worked."""

    def __init__(self, app: App) -> None:
        super().__init__(app, app, Limits(60, 60, 60, 1 << 20), 2, asyncio.get_running_loop())
        self.calls: list[int] = []
        self.attempts: list[int] = []

    def call(self, environ: dict[str, Any]) -> Answer:
        self.calls.append(threading.get_ident())
        return super().call(environ)

    def go_on(self, pending: PendingAnswer) -> Answer | None:
        self.attempts.append(threading.get_ident())
        return super().go_on(pending)

    async def ask(self, method: str, path: str, query: str = "", body: bytes = b"") -> int:
        """Return the status of the answer to a request."""
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not events:
                await asyncio.Event().wait()  # the client stays
            return events.pop()

        scope = {
            **{"type": "http", "http_version": "1.1", "method": method, "scheme": "http"},
            **{"raw_path": path.encode(), "query_string": query.encode()},
            **{"server": ("127.0.0.1", 8888), "client": ("127.0.0.1", 4711)},
            "headers": [*HEADERS, (b"content-length", str(len(body)).encode())],
        }
        await self.serve(scope, receive, sent.append)
        status: int = sent[0]["status"]
        return status


def drive(test: Callable[[Watched, int], Any]) -> None:
    """Run a test with an edge on an empty store in memory, and the event loop's thread."""

    async def run() -> None:
        edge = Watched(create_app(Broker(connect("memory:"), ManualClock(1000.0))))
        await asyncio.wait_for(test(edge, threading.get_ident()), 60)

    asyncio.run(run())


def test_a_poll_goes_on_in_a_thread_while_heavy_work_may_hold_its_queue() -> None:
    async def poll_beside_heavy_work(edge: Watched, loops: int) -> None:
        poll = asyncio.ensure_future(edge.ask("GET", POLL, "wait=30&echo=true"))
        await asyncio.sleep(0)
        assert edge.calls == [loops]
        assert not poll.done()
        turns.begin(lambda: Company.NONE)
        try:
            assert await edge.ask("POST", POLL, body=MESSAGE) == 201
            assert await poll == 200
        finally:
            turns.end()
        assert loops not in edge.calls[1:] + edge.attempts
        assert edge.attempts

    drive(poll_beside_heavy_work)


def test_only_a_probe_of_health_runs_on_the_loop_unseen() -> None:
    """Another method of the path needs a credential, for which the store or others may be asked."""

    async def probe(edge: Watched, loops: int) -> None:
        assert await edge.ask("GET", "/healthz") == 200
        assert await edge.ask("POST", "/healthz", body=b"{}") == 405
        assert edge.calls[0] == loops
        assert edge.calls[1] != loops

    drive(probe)
