# SPDX-License-Identifier: Apache-2.0
"""A queue moves between pools on Redis and MongoDB while producers and consumers use two servers."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.servers import Answer, Lost, ZqServer, ask, every_message, wait_for
from tests.stores import MongoServer, RedisServer

ADMIN = {"X-Roles": "admin"}
POOLED = """
[DEFAULT]
admin_mode = true
pooling = true
[pooling:catalog]
allowed_hosts = 127.0.0.1, localhost
enable_virtual_pool = true
queue_moves = true
[server]
trust_network = true
"""
QUEUE = "/v2/queues/jobs"
MOVES = {"moving", "freezing", "copying", "switching", "cleaning", "done"}


class Deployment:
    """Two servers with a catalogue and a pool in Redis, and a pool in MongoDB. New queues are in the catalogue."""

    def __init__(self, opened: ExitStack) -> None:
        self.catalogue = opened.enter_context(RedisServer())
        self.stores = {"quick": opened.enter_context(RedisServer()), "safe": opened.enter_context(MongoServer())}
        self.servers = [opened.enter_context(ZqServer(self.catalogue.uri, config=POOLED)) for _ in range(2)]
        for name, store in self.stores.items():
            assert self.ask("PUT", f"/v2/pools/{name}", {"uri": store.uri, "weight": 0}).status == 201

    def ask(self, method: str, path: str, document: object = None, server: int = 0, **headers: str) -> Answer:
        return ask(self.servers[server].url, method, path, document, headers=ADMIN | headers)

    def request(self, pool: str, server: int = 0) -> Any:
        """Request the move of the queue, and return the move."""
        answer = self.ask("POST", f"/v2/pools/{pool}/moves", {"queue": "jobs"}, server)
        assert answer.status == 202, answer
        return answer.document

    def wait(self, move: Any, phases: set[str], server: int = 0, within: float = 60) -> Any:
        """Wait until the move is in one of the phases, and return the move."""

        def current() -> Any:
            with suppress(Lost):
                found = self.ask("GET", move["href"], server=server)
                return found.document if found.status == 200 and found.document["phase"] in phases else None

        return wait_for(current, within, f"the move is in {phases}")


class Load:
    """Producers and consumers on both servers, and what each of them knows."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.posted: set[str] = set()
        self.received = Counter[str]()
        self.deleted: set[str] = set()
        self.statuses = Counter[tuple[str, int, str]]()
        self.errors: list[BaseException] = []
        self.reads = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        works = [(self._produce, number) for number in range(2)] + [(self._consume, number) for number in range(4)]
        works.append((self._read, 1))
        self._threads = [threading.Thread(target=self._run, args=work) for work in works]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def check(self) -> None:
        """Check that no acknowledged message is lost, and that none was delivered twice."""
        assert self.errors == []
        left = Counter(message["body"] for message in every_message(self.deployment.servers[1].url, "jobs"))
        assert [body for body, count in (left + self.received).items() if count > 1 and left[body] > 1] == []
        assert [body for body, count in self.received.items() if count > 1] == []
        assert self.posted - self.deleted - left.keys() == set()
        assert self.deleted & left.keys() == set()
        assert len(self.deleted) > 50
        assert self.reads > 10

    def _run(self, work: Any, number: int) -> None:
        try:
            while not self._stopping.is_set():
                with suppress(Lost):
                    work(number)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _ask(self, number: int, method: str, path: str, document: object = None, **headers: str) -> Answer:
        """Repeat the request while the queue moves or a server is down."""
        while True:
            server = number % 2
            try:
                answer = self.deployment.ask(method, path, document, server, **headers)
            except Lost:
                self._stopping.wait(0.1)
                number += 1
                if self._stopping.is_set():
                    raise
                continue
            with self._lock:
                self.statuses[method, answer.status, answer.headers.get("x-zq-error", "")] += 1
            if answer.status != 503:
                return answer
            assert int(answer.headers["retry-after"]) > 0
            if self._stopping.wait(0.05):
                raise Lost
            number += 1

    def _produce(self, number: int) -> None:
        body = f"{number}-{len(self.posted)}-{threading.get_ident()}-{sum(self.statuses.values())}"
        document = {"messages": [{"body": body, "ttl": 3600}]}
        answer = self._ask(number, "POST", f"{QUEUE}/messages", document, **{"Idempotency-Key": f'"{body}"'})
        assert answer.status in (200, 201), answer
        with self._lock:
            self.posted.add(body)

    def _consume(self, number: int) -> None:
        answer = self._ask(number, "POST", f"{QUEUE}/claims?limit=3", {"ttl": 300, "grace": 60})
        if answer.status == 204:
            self._stopping.wait(0.02)
            return
        for message in answer.document["messages"]:
            with self._lock:
                self.received[message["body"]] += 1
            deleted = self._ask(number, "DELETE", message["href"])
            assert deleted.status in (204, 400, 403, 404), deleted
            if deleted.status == 204:
                with self._lock:
                    self.deleted.add(message["body"])

    def _read(self, number: int) -> None:
        answer = self.deployment.ask("GET", f"{QUEUE}/messages?echo=true", server=number % 2)
        assert answer.status == 200, answer
        self.reads += 1
        self._stopping.wait(0.05)


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with ExitStack() as opened:
        yield Deployment(opened)


def test_a_queue_moves_under_load_without_losing_or_doubling_messages(deployment: Deployment) -> None:
    """From the catalogue to MongoDB, to Redis and back. Reads are served at each moment."""
    with Load(deployment) as load:
        wait_for(lambda: len(load.deleted) > 20, 30, "the first messages")
        for server, pool in enumerate(("safe", "quick", "safe")):
            move = deployment.request(pool, server % 2)
            assert move["estimated_seconds"] > 0
            done = deployment.wait(move, {"done", "failed"})
            assert done["phase"] == "done", (pool, done.get("error"), deployment.servers[0].output[-1500:])
            count = len(load.deleted)
            wait_for(lambda at=count: len(load.deleted) > at + 20, 30, "messages after the move")
        load.stop()
        load.check()
        assert load.statuses["POST", 503, "QueueMoving"] > 0
    assert deployment.ask("DELETE", "/v2/pools/quick").status == 204
    assert deployment.ask("DELETE", "/v2/pools/safe").status == 403
