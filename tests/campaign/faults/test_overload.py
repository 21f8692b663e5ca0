# SPDX-License-Identifier: Apache-2.0
"""More requests than a server can answer in time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from http.client import HTTPConnection, HTTPException
from itertools import islice

import pytest

from tests.servers import CLIENT, PROJECT, Answer, ZqServer, ask, soon, wait_for
from tests.stores import RedisServer

ENGINES = ["gunicorn", "granian"]
POST = {"messages": [{"body": 1}]}


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_requests_that_would_be_late_are_refused(store: RedisServer) -> None:
    """If the store hangs, further requests of the project fail early with 503 and Retry-After.

    The project's requests hold three quarters of the threads. Health checks still work, and later requests succeed.
    """
    config = "[server]\nthreads = 12\nqueue_timeout = 0.5\n[transport]\nstorage_timeout = 20\n"
    with ExitStack() as stack:
        server = stack.enter_context(ZqServer(store.uri, engine="granian", config=config))
        assert ask(server.url, "POST", "/v2/queues/q/messages", POST).status == 201
        frozen = stack.enter_context(ExitStack())
        frozen.enter_context(store.frozen())
        pool = stack.enter_context(ThreadPoolExecutor(30))
        posts = [pool.submit(ask, server.url, "POST", "/v2/queues/q/messages", POST, timeout=60) for _ in range(9 + 20)]
        refused = [each.result() for each in islice(as_completed(posts, 18), 20)]
        assert [each.status for each in refused] == [503] * 20
        assert all(well_refused(each) for each in refused), refused
        assert ask(server.url, "GET", "/healthz").status == 200
        held = [each for each in posts if not each.done()]
        frozen.close()
        assert [each.result().status for each in held] == [201] * 9
        assert ask(server.url, "POST", "/v2/queues/q/messages", POST).status == 201
        assert b'zq_refused_total{reason="overload"} 20.0' in ask(server.url, "GET", "/metrics").body


def well_refused(answer: Answer) -> bool:
    return answer.headers["retry-after"] == "1" and {"title", "description"} <= set(answer.document)


@pytest.mark.parametrize("engine", ENGINES)
def test_health_answers_beside_many_busy_connections(engine: str, tmp_path) -> None:
    """A health check does not wait for one of 1,200 connections that post without a pause."""
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine) as server:
        load = Load(server, 1200)
        with load:
            wait_for(lambda: load.answered > 1200, 60, "the load has begun")
            for _ in range(8):
                assert soon(5, lambda: ask(server.url, "GET", "/healthz", timeout=60)).status == 200
        assert load.failed == 0


class Load:
    """A number of connections, each with one request in flight, from a few threads."""

    THREADS = 12

    def __init__(self, server: ZqServer, count: int) -> None:
        self._server = server
        self._count = count
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._post, daemon=True) for _ in range(self.THREADS)]
        self.answered = self.failed = 0

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _post(self) -> None:
        headers = {"Client-ID": CLIENT, "X-Project-ID": PROJECT}
        connections = [HTTPConnection("127.0.0.1", self._server.port, timeout=60) for _ in range(self._count // 12)]
        with suppress(OSError, HTTPException):
            while not self._over.is_set():
                for connection in connections:
                    connection.request("POST", "/v2/queues/q/messages", b'{"messages":[{"body":1}]}', headers)
                for connection in connections:
                    answer = connection.getresponse()
                    answer.read()
                    self.answered += 1
                    self.failed += answer.status != 201
        for connection in connections:
            connection.close()
