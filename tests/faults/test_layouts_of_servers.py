# SPDX-License-Identifier: Apache-2.0
"""The layout of shared stores: those of the released version have all their contents; others are refused unchanged."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from pymongo import MongoClient
from redis import Redis

from tests.data import make_released
from tests.stores import MongoServer, RedisServer
from zq.auth.tokens import TokenVerifier, format_token
from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts
from zq.errors import StartRefused
from zq.model import QueueRef
from zq.storage import mongodb, redis
from zq.storage.mongodb import layout as mongodb_layout
from zq.storage.redis import layout as redis_layout

NOW, JOBS = 1_700_000_000.0, QueueRef("acme", "jobs")


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    with MongoServer() as started:
        yield started


def content(client: MongoClient[Any], database: str) -> dict[str, Any]:
    """Return all documents and indexes."""
    found = client[database]
    return {
        name: (sorted(map(repr, found[name].find())), found[name].index_information())
        for name in found.list_collection_names()
    }


def test_a_mongodb_store_has_a_number(server: MongoServer) -> None:
    """The first start writes the number, and later starts read it."""
    with server.client() as client:
        for _ in range(2):
            mongodb.connect(server.uri).close()
            document = client["zq"][mongodb_layout.CLOCK].find_one({"_id": mongodb_layout.LAYOUT})
            assert document == {"_id": mongodb_layout.LAYOUT, "n": mongodb_layout.VERSION}


def test_a_mongodb_store_of_version_0_1_0_gets_its_number(server: MongoServer) -> None:
    """The store has the same layout without a number; its messages are delivered."""
    with server.client() as client:
        storage = mongodb.connect(server.uri)
        storage.messages.post(JOBS, drafts(3, storage.now()), storage.now())
        storage.close()
        client["zq"][mongodb_layout.CLOCK].delete_one({"_id": mongodb_layout.LAYOUT})
        storage = mongodb.connect(server.uri)
        assert storage.queues.stats(JOBS, storage.now()).entered == 3
        storage.close()
        assert client["zq"][mongodb_layout.CLOCK].count_documents({"_id": mongodb_layout.LAYOUT}) == 1


@pytest.mark.parametrize("way", [mongodb.connect, mongodb.prepare])
def test_a_mongodb_store_of_another_layout_is_refused_unchanged(server: MongoServer, way: Any) -> None:
    """The start creates no index and no collection."""
    with server.client() as client:
        client.drop_database("zq")
        client["zq"][mongodb_layout.CLOCK].insert_one({"_id": mongodb_layout.LAYOUT, "n": 2})
        before = content(client, "zq")
        with pytest.raises(StartRefused, match="database zq has layout 2, but this version of zq requires 1"):
            way(server.uri)
        assert content(client, "zq") == before
        client.drop_database("zq")


def test_a_redis_store_of_another_layout_is_refused_unchanged(store: RedisServer) -> None:
    """The keys are unchanged, and nothing is published."""
    with Redis.from_url(store.uri) as client:
        client.set(redis_layout.VERSION_KEY, b"3")
        client.set(b"other", b"value")
        heard = client.pubsub()
        heard.psubscribe("*")
        assert heard.get_message(timeout=5) is not None
        with pytest.raises(StartRefused, match=f"has layout 3, but this version of zq requires {redis_layout.VERSION}"):
            redis.connect(store.uri)
        assert {key: client.get(key) for key in client.scan_iter()} == {
            redis_layout.VERSION_KEY: b"3",
            b"other": b"value",
        }
        assert heard.get_message(timeout=0.2) is None


@pytest.mark.parametrize("kind", ["mongodb", "redis"])
def test_the_store_of_the_released_version_has_all_its_contents(kind: str, server: MongoServer) -> None:
    """Queues, messages in all states, claims, topics, subscriptions and tokens are as the released version read them.

    The store can then be used.
    """
    described, files = make_released.read_descriptions()[kind], make_released.read_files()
    with ExitStack() as started:
        if kind == "redis":
            given = RedisServer(None)
            (given.folder / "dump.rdb").write_bytes(files["dump.rdb"])
            storage = started.enter_context(closing(redis.connect(started.enter_context(given).uri)))
        else:
            with server.client() as client:
                client.drop_database("zq")
            make_released.load_mongodb(server, files["mongodb.bson"])
            storage = started.enter_context(closing(mongodb.connect(server.uri)))
        scene = Scene(storage, ManualClock(described["now"]), make_released.JOBS)
        assert len({kind for kind, *_ in described["items"]}) == 9
        assert len(described["claims"]) == 3
        assert list(make_released.find_differences(described, make_released.describe(scene))) == []
        verified = TokenVerifier(storage.documents, scene.clock).verify(format_token(*make_released.TOKEN))
        assert not isinstance(verified, str), verified
        assert verified[0].scopes == ("observe:jobs",)
        assert scene.fence("job").epoch == 3
        posted = scene.post(1)
        assert posted[0] in scene.claimable()
