# SPDX-License-Identifier: Apache-2.0
"""The listener of the Redis driver: it survives lost connections and foreign messages."""

import threading
from collections.abc import Iterator

import pytest
import redis

from tests.servers import wait_for
from tests.stores import RedisServer
from zq.model import Draft, QueueRef, new_ids
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.redis.connections import CONNECTIONS

QUEUE = QueueRef("acme", "jobs")
SOON = 60


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def storage(server: RedisServer) -> Iterator[Storage]:
    opened = connect(server.uri)
    yield opened
    opened.close()


def free(storage: Storage) -> int:
    """Return the number of connections that verbs may use."""
    pool = storage.messages._store.client.network.pool(b"zq:version")
    return int(pool.pool.qsize() + len(pool._idle))


def hears(storage: Storage, ear: threading.Event) -> None:
    """Assert that the listener is notified of a post, though perhaps not of the first."""

    def posted() -> bool:
        now = storage.now()
        storage.messages.post(QUEUE, [Draft(id, b"1", 60, 0, "") for id in new_ids(1, now)], now)
        return ear.wait(0.1)

    ear.clear()
    wait_for(posted, SOON, "a post is heard")


def test_what_strangers_publish_does_no_harm(server: RedisServer, storage: Storage) -> None:
    """The foreign message is not a queue name, and the listener gets the next notification."""
    ear = threading.Event()
    storage.listen(lambda queue: ear.set() if queue == QUEUE else None)
    hears(storage, ear)
    with redis.Redis.from_url(server.uri) as stranger:
        for junk in (b"", b"x", b"\xff" * 40, b"\0\0\0\1\xff\xff"):
            assert stranger.publish("zq:ready", junk) == 1
    hears(storage, ear)


def test_lost_connections_use_nothing_up(server: RedisServer, storage: Storage) -> None:
    """The listener reconnects each time, and as many connections are left for verbs as before."""
    ear = threading.Event()
    storage.listen(lambda queue: ear.set())
    with redis.Redis.from_url(server.uri) as operator:
        for _ in range(5):
            hears(storage, ear)
            operator.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        hears(storage, ear)
    assert free(storage) >= CONNECTIONS - 1
    hears(storage, ear)
