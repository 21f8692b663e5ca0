# SPDX-License-Identifier: Apache-2.0
"""Listings of stages, fences and producers that earlier versions of zq stored, or store concurrently.

All are listed, without the times that earlier versions did not store.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tests.stores import RedisServer, Stores
from zq.clock import ManualClock
from zq.conformance.builders import Scene, near
from zq.conformance.test_work import listed, names
from zq.model import CommitResult, KnownFence, KnownProducer, QueueRef
from zq.model.quotas import Work
from zq.storage import connect
from zq.storage.ordered import layout as ordered
from zq.storage.redis import layout

Forget = Callable[[], object]
"""A function that changes the store as an earlier version would have left it."""


def scene_at(closing: ExitStack, uri: str) -> Scene:
    storage = connect(uri)
    closing.callback(storage.close)
    return Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))


def embedded(closing: ExitStack, stores: Stores) -> tuple[Scene, Forget]:
    scene = scene_at(closing, "memory:")

    def forget() -> None:
        storage: Any = scene.storage
        with storage._handle as (store, _):
            notes = store.scan("default", ordered.ADVANCED, ordered.prefix_end(ordered.ADVANCED))
            gone = [("default", key, None) for key, _ in notes]
            former = [
                ("producers", key, b"\x93" + value[1 : -len(ordered.encode(ordered.decode_batch(value).decided))])
                for key, value in store.scan("producers", b"", b"\xff" * 64)
            ]
            store.write([*gone, *former])

    return scene, forget


def on_redis(closing: ExitStack, stores: Stores) -> tuple[Scene, Forget]:
    server = closing.enter_context(RedisServer())
    client = closing.enter_context(redis.Redis(port=server.port))
    return scene_at(closing, server.uri), lambda: client.delete(
        *layout.keys(layout.project_ref("acme")).transactions[-2:]
    )


def on_mongodb(closing: ExitStack, stores: Stores) -> tuple[Scene, Forget]:
    server = stores.mongodb()
    messages = closing.enter_context(server.client())["earlier_work"]["messages"]
    return scene_at(closing, server.uri_of("earlier_work")), lambda: messages.update_many(
        {}, {"$unset": {"advanced": "", "decided": ""}}
    )


@pytest.fixture(params=[embedded, on_redis, on_mongodb], ids=lambda make: make.__name__)
def former(request: pytest.FixtureRequest, stores: Stores) -> Iterator[tuple[Scene, Forget]]:
    with ExitStack() as closing:
        yield request.param(closing, stores)


def test_what_an_earlier_version_stored_is_listed_without_moments(former: tuple[Scene, Forget]) -> None:
    """The times are missing until the next epoch or batch."""
    scene, forget = former
    for name in ("a", "b"):
        scene.fence(name)
        scene.stage(name, 2)
        scene.commit(3, producer=name)
    forget()
    assert names(scene, Work.STAGE) == ["a", "b"]
    assert listed(scene, Work.FENCE) == [KnownFence("a", 1, None), KnownFence("b", 1, None)]
    last, expires = CommitResult(3, 0, 0), near(scene.now + 86400)
    assert listed(scene, Work.PRODUCER) == [KnownProducer(name, last, None, expires) for name in ("a", "b")]
    scene.fence("b")
    scene.commit(4, producer="b")
    assert [getattr(one, "advanced", 0) is None for one in listed(scene, Work.FENCE)] == [True, False]
    assert [getattr(one, "decided", 0) is None for one in listed(scene, Work.PRODUCER)] == [True, False]
    scene.commit(5, ["a"], producer="c")
    assert (names(scene, Work.STAGE), names(scene, Work.PRODUCER)) == (["b"], ["a", "b", "c"])


def test_what_a_server_of_an_earlier_version_does_meanwhile_is_found_out() -> None:
    """On Redis, an earlier version does not update the list. A listing finds its additions, removals and new epochs."""
    with ExitStack() as closing:
        server = closing.enter_context(RedisServer())
        client = closing.enter_context(redis.Redis(port=server.port))
        scene, keys = scene_at(closing, server.uri), layout.keys(layout.project_ref("acme"))
        scene.fence("a")
        scene.stage("s")
        client.hset(keys.fences[0], mapping={"a": 2, "b": 1})
        assert listed(scene, Work.FENCE) == [KnownFence("a", 2, None), KnownFence("b", 1, None)]
        client.hdel(keys.stages, "s")  # the number of listed stages is unchanged
        client.hset(keys.fences[0], "c", 1)
        assert names(scene, Work.STAGE) == []
        assert names(scene, Work.FENCE) == ["a", "b", "c"]


def test_every_verb_on_redis_keeps_the_list_right() -> None:
    """No listing repairs the list in between, and removals leave no times behind."""
    with ExitStack() as closing:
        server = closing.enter_context(RedisServer())
        client = closing.enter_context(redis.Redis(port=server.port))
        scene, keys = scene_at(closing, server.uri), layout.keys(layout.project_ref("acme"))
        hashes = {b"f": keys.fences[0], b"p": keys.producers, b"s": keys.stages}
        work, moments = keys.transactions[-2:]

        def there() -> set[str]:
            found = {kind + name for kind, key in hashes.items() for name in client.hkeys(key)}
            assert set(client.zrange(work, 0, -1)) == found
            assert set(client.hkeys(moments)) == {name for name in found if not name.startswith(b"s")}
            return {name.decode() for name in found}

        scene.fence("a")
        for stage in ("dropped", "small", "large", "ends"):
            scene.stage(stage, 2, lives=60)
        assert there() == {"fa", "sdropped", "ssmall", "slarge", "sends"}
        scene.drop_stage("dropped")
        scene.commit(1, ["small"], producer="p", ttl=60)
        scene.decide(1, ["large"], producer="q")
        assert there() == {"fa", "pp", "pq", "sends"}
        while scene.continue_commit(producer="q"):
            pass
        scene.tick(61)
        scene.reclaimed()
        assert there() == {"fa", "pq"}
