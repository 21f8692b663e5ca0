# SPDX-License-Identifier: Apache-2.0
"""Pools on real stores (contract 11, 12): two servers with a catalogue in Redis, and pools in Redis and MongoDB."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.servers import Answer, ZqServer, ask, wait_for
from tests.sink import CONFIG, Sink
from tests.stores import MongoServer, RedisServer

ADMIN = {"X-Roles": "admin"}
POOLED = f"""
[DEFAULT]
admin_mode = true
pooling = true
[pooling:catalog]
allowed_hosts = 127.0.0.1, localhost
enable_virtual_pool = false
[server]
trust_network = true
{CONFIG}
"""


class Deployment:
    """Two servers; each pool has its own flavor and a queue ``in-POOL``."""

    def __init__(self, opened: ExitStack) -> None:
        self.catalogue = opened.enter_context(RedisServer())
        self.stores = {"quick": opened.enter_context(RedisServer()), "safe": opened.enter_context(MongoServer())}
        self.servers = [opened.enter_context(ZqServer(self.catalogue.uri, config=POOLED)) for _ in range(2)]
        for name, store in self.stores.items():
            terms = {"uri": store.uri, "weight": 1, "flavor": name}
            assert self.ask("PUT", f"/v2/pools/{name}", terms).status == 201
            assert self.ask("PUT", f"/v2/flavors/{name}", {"pool_list": [name]}).status == 201
            assert self.ask("PUT", f"/v2/queues/in-{name}", {"_flavor": name}).status == 201

    def ask(self, method: str, path: str, document: object = None, server: int = 0) -> Answer:
        return ask(self.servers[server].url, method, path, document, headers=ADMIN)

    def post(self, queue: str, *bodies: object, server: int = 0) -> None:
        document = {"messages": [{"body": body} for body in bodies]}
        assert self.ask("POST", f"/v2/queues/{queue}/messages", document, server).status == 201


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with ExitStack() as opened:
        yield Deployment(opened)


def test_queues_of_two_stores_are_used_by_two_servers(deployment: Deployment) -> None:
    """Messages can be claimed through the other server, and also after a restart of a server."""

    def claimed(queue: str, server: int) -> Any:
        answer = deployment.ask("POST", f"/v2/queues/{queue}/claims", {"ttl": 60, "grace": 60}, server)
        return [each["body"] for each in answer.document["messages"]] if answer.status == 201 else []

    for name in deployment.stores:
        deployment.post(f"in-{name}", 1, 2, server=0)
        assert claimed(f"in-{name}", server=1) == [1, 2]
        assert claimed(f"in-{name}", server=0) == []
    listed = deployment.ask("GET", "/v2/queues", server=1).document["queues"]
    assert {queue["name"] for queue in listed} == {"in-quick", "in-safe"}
    for name in deployment.stores:
        deployment.post(f"in-{name}", 3)
    deployment.servers[0].kill()
    deployment.servers[0].start()
    for name in deployment.stores:
        assert claimed(f"in-{name}", server=0) == [3]


def test_what_is_posted_in_every_pool_is_delivered(deployment: Deployment) -> None:
    """A pool's deliveries are stored with the queue, also for a queue that was deleted and created again."""
    with Sink() as sink:
        for name in deployment.stores:
            sink.subscribe(deployment.servers[0].url, f"in-{name}", f"/{name}")
            deployment.post(f"in-{name}", *range(10), server=1)
        for name in deployment.stores:
            wait_for(lambda n=name: sorted(set(sink.bodies(f"/{n}"))) == list(range(10)), 60, f"all of {name}")
        assert deployment.ask("DELETE", "/v2/queues/in-safe").status == 204
        assert deployment.ask("PUT", "/v2/queues/in-safe", {"_flavor": "safe"}, server=1).status == 201
        deployment.post("in-safe", "again", server=0)
        wait_for(lambda: "again" in sink.bodies("/safe"), 60, "what was posted anew")


def test_a_pool_that_is_gone_takes_its_own_queues_alone(deployment: Deployment) -> None:
    """Requests for the pool's queues fail with 503 in time; its messages are available after its return."""
    deployment.post("in-quick", "kept")
    deployment.post("in-safe", 1)
    deployment.stores["safe"].kill()
    assert deployment.ask("POST", "/v2/queues/in-safe/messages", {"messages": [{"body": 2}]}).status == 503
    for server in (0, 1):
        found = deployment.ask("GET", "/v2/queues/in-quick/messages?echo=true", server=server)
        assert [message["body"] for message in found.document["messages"]] == ["kept"]
    deployment.stores["safe"].start()

    def back() -> bool:
        found = deployment.ask("GET", "/v2/queues/in-safe/messages?echo=true", server=1)
        return found.status == 200 and [message["body"] for message in found.document["messages"]] == [1]

    wait_for(back, 60, "the pool's messages")
