# SPDX-License-Identifier: Apache-2.0
"""Threads on which the edge runs the application, without a server."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from zq import turns
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.http.pending import PendingRequest
from zq.serving import draining
from zq.serving.asgi import Edge, EdgeLimits, Response
from zq.serving.draining import Drain
from zq.serving.fairness import MAX_STEPS
from zq.storage import connect
from zq.turns import Contention

# Seconds without a request after which the drain counts a server as idle in these tests.
QUIET = 0.3
POLL = "/v2/queues/jobs/messages"
CLAIM = "/v2/queues/jobs/claims/mine.1"
HEADERS = [(b"host", b"localhost"), (b"client-id", b"30387f00c63a4a30ac1f3e2cf1b0c3a1")]
MESSAGE = b'{"messages": [{"body": 1, "ttl": 300}]}'


class Watched(Edge):
    """An edge that records the threads on which the application ran."""

    def __init__(self, broker: Broker) -> None:
        app = create_app(broker)
        self.drain = drain = Drain()
        limits, loop = EdgeLimits(60, 60, 60, 1 << 20), asyncio.get_running_loop()
        super().__init__(app, app, limits, 2, loop, drain.counter(0), drain.is_leaving)
        self.broker = broker
        self.calls: list[int] = []
        self.projects: list[str] = []
        """The projects of the requests, in order."""
        self.attempts: list[int] = []

    def call(self, environ: dict[str, Any]) -> Response:
        self.calls.append(threading.get_ident())
        self.projects.append(environ["HTTP_X_PROJECT_ID"])
        return super().call(environ)

    def poll_again(self, pending: PendingRequest) -> Response | None:
        self.attempts.append(threading.get_ident())
        return super().poll_again(pending)

    async def ask(self, method: str, path: str, query: str = "", body: bytes = b"", *, project: str = "acme") -> int:
        """Send a request and return the status of the response."""
        events = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not events:
                await asyncio.Event().wait()  # the client stays connected
            return events.pop()

        scope = {
            **{"type": "http", "http_version": "1.1", "method": method, "scheme": "http"},
            **{"path": path, "raw_path": path.encode(), "query_string": query.encode()},
            **{"server": ("127.0.0.1", 8888), "client": ("127.0.0.1", 4711)},
            "headers": [
                *HEADERS,
                (b"x-project-id", project.encode()),
                (b"content-length", str(len(body)).encode()),
            ],
        }
        await self.serve(scope, receive, sent.append)
        status: int = sent[0]["status"]
        return status


def drive(test: Callable[[Watched, int], Any]) -> None:
    """Run a test with an edge on an empty store in memory and the id of the event loop's thread."""

    async def run() -> None:
        edge = Watched(Broker(connect("memory:"), ManualClock(1000.0)))
        await asyncio.wait_for(test(edge, threading.get_ident()), 60)

    asyncio.run(run())


def test_a_poll_goes_on_in_a_thread_while_heavy_work_may_hold_its_queue() -> None:
    async def poll_beside_heavy_work(edge: Watched, loops: int) -> None:
        poll = asyncio.ensure_future(edge.ask("GET", POLL, "wait=30&echo=true"))
        await asyncio.sleep(0)
        assert edge.calls == [loops]
        assert not poll.done()
        turns.begin(lambda: Contention.NONE)
        try:
            assert await edge.ask("POST", POLL, body=MESSAGE) == 201
            assert await poll == 200
        finally:
            turns.end()
        assert loops not in edge.calls[1:] + edge.attempts
        assert edge.attempts

    drive(poll_beside_heavy_work)


def test_only_a_probe_of_health_runs_on_the_loop_unseen() -> None:
    """Another method on the same path needs a credential, which may require a call to the store."""

    async def probe(edge: Watched, loops: int) -> None:
        assert await edge.ask("GET", "/healthz") == 200
        assert await edge.ask("POST", "/healthz", body=b"{}") == 405
        assert edge.calls[0] == loops
        assert edge.calls[1] != loops

    drive(probe)


def test_probes_do_not_delay_the_end_of_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load balancers send health probes to the main port; other requests do delay the end of the drain."""
    monkeypatch.setattr(draining, "IDLE_SECONDS", QUIET)

    async def drain_beside(edge: Watched, path: str) -> bool:
        edge.drain.set(True)
        idle = asyncio.ensure_future(asyncio.to_thread(edge.drain.wait_until_idle, 3 * QUIET))
        began = time.monotonic()
        while not idle.done():
            await edge.ask("GET", path)
            await asyncio.sleep(QUIET / 10)
        has_ended = time.monotonic() - began < 3 * QUIET
        assert await idle == 0 or not has_ended
        return has_ended

    async def drain(edge: Watched, _loops: int) -> None:
        for path, ends in {"/readyz": True, "/healthz": True, "/v2/ping": False}.items():
            assert await drain_beside(edge, path) is ends

    drive(drain)


def test_a_request_passes_the_queued_requests_of_another_project() -> None:
    """A burst of requests of one project takes several iterations of the event loop."""

    async def ask_after_a_burst(edge: Watched, _loops: int) -> None:
        burst = [asyncio.ensure_future(edge.ask("GET", POLL, "echo=true")) for _ in range(100)]
        asked = asyncio.ensure_future(edge.ask("GET", POLL, "echo=true", project="neighbour"))
        assert await asked == 200
        assert edge.projects.index("neighbour") <= 2 * MAX_STEPS
        assert set(await asyncio.gather(*burst)) == {200}

    drive(ask_after_a_burst)


def test_a_request_passes_the_woken_polls_of_another_project() -> None:
    async def ask_beside_polls(edge: Watched, loops: int) -> None:
        polls = [asyncio.ensure_future(edge.ask("DELETE", POLL, "pop=1&wait=30")) for _ in range(100)]
        while len(edge.calls) < len(polls):
            await asyncio.sleep(0)
        edge.broker.end_waiting()
        while not edge.attempts:
            await asyncio.sleep(0)
        assert await edge.ask("GET", POLL, "echo=true", project="neighbour") == 200
        assert len(edge.attempts) <= 2 * MAX_STEPS
        assert set(await asyncio.gather(*polls)) == {200}

    drive(ask_beside_polls)


@pytest.mark.parametrize("count", [20, 200])
@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("PATCH", CLAIM, b'{"ttl": 300}', 204),
        ("DELETE", CLAIM, b"", 204),
        ("POST", f"{CLAIM}/settle", b'{"delete": "*"}', 200),
    ],
)
def test_a_change_of_a_large_claim_leaves_the_loop(
    count: int, method: str, path: str, body: bytes, expected: int
) -> None:
    """The number of messages in the claim is not known from the request."""

    async def change_claim(edge: Watched, loops: int) -> None:
        message = b'{"body": 1, "ttl": 300}'
        assert await edge.ask("POST", POLL, body=b'{"messages": [%s]}' % b",".join([message] * count)) == 201
        assert await edge.ask("PUT", CLAIM, f"limit={count}", b"{}") == 201
        assert await edge.ask(method, path, body=body) == expected
        assert edge.calls[-1] == loops
        assert bool(edge.attempts) is (count > 100)
        assert loops not in edge.attempts
        assert await edge.ask("GET", CLAIM) == (200 if method == "PATCH" else 404)

    drive(change_claim)
