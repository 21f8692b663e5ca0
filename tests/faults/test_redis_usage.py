# SPDX-License-Identifier: Apache-2.0
"""Usage of a project on Redis with messages that earlier versions of zq stored, or store concurrently: none count."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, make_key
from zq.conformance.usage_builders import figures, post, size
from zq.model import QueueRef
from zq.storage import connect
from zq.storage.redis import layout


class Former:
    """A scene on a server of its own, which can be changed to look like one of an earlier version."""

    def __init__(self, server: RedisServer) -> None:
        storage = connect(server.uri)
        self.scene = Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
        self.client: Any = redis.Redis(port=server.port)
        self.keys = layout.keys(self.scene.queue)

    def forget_figures(self) -> None:
        """Remove the counts, which are all that an earlier version did not write."""
        self.client.delete(self.keys.usage)
        self.client.hdel(self.keys.state, "from", "stored", "bytes", "kept")
        answers, windows = self.keys.answers
        for key, score in self.client.zrange(windows, 0, -1, withscores=True):
            assert self.client.hexists(answers, key)
            self.client.zadd(windows, {key: score + 0.25})


@pytest.fixture
def former() -> Iterator[Former]:
    with RedisServer() as server, ExitStack() as closing:
        made = Former(server)
        closing.callback(made.scene.storage.close)
        yield made


def test_what_an_earlier_version_stored_counts_neither_when_it_is_there_nor_when_it_goes(former: Former):
    scene = former.scene
    post(scene, 10, 20, 30, 40)
    scene.pop(1, history=600)
    scene.post(1, once=make_key(window=600))
    former.forget_figures()
    assert figures(scene) == (0, 0)
    scene.pop(1, history=600)
    assert figures(scene) == (0, size(20)[1])
    post(scene, 100)
    scene.post(1, once=make_key("post:other", window=9000))
    stored = figures(scene)
    assert stored[0] == 2
    scene.pop(3)
    assert figures(scene) == stored
    scene.tick(601)
    scene.reclaimed()
    assert figures(scene) == (2, stored[1] - size(20)[1])
    scene.pop(1)
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == (0, 0)
    assert not former.client.exists(former.keys.usage)


def test_figures_do_not_fall_below_zero(former: Former):
    """This happens if a server of an earlier version stores messages in between; later counts are right again."""
    scene = former.scene
    post(scene, 10, 20, 30)
    scene.stage("s", 3)
    former.client.hset(former.keys.state, mapping={"stored": 1, "bytes": size(10)[1]})
    former.client.hset(former.keys.usage, mapping={"messages": 2, "bytes": size(10, 1)[1]})
    former.client.hset(former.keys.usage, mapping={"staged": 1, "staged_bytes": size(1)[1]})
    scene.pop(2)
    assert figures(scene) == size(1)
    scene.drop_stage("s")
    assert figures(scene) == (0, 0)
    scene.pop(1)
    post(scene, 40)
    scene.stage("s", 1)
    assert figures(scene) == size(40, 1)


def test_figures_of_what_is_gone_go_with_the_next_sweep(former: Former):
    """This happens if a server of an earlier version removes counted messages."""
    scene, keys = former.scene, former.keys
    post(scene, 10, 20, ttl=60)
    scene.post(1, once=make_key(window=60))
    scene.pop(1, history=60)
    scene.stage("s", 3, lives=60)
    state, usage = former.client.hgetall(keys.state), former.client.hgetall(keys.usage)
    scene.pop(2)
    scene.drop_stage("s")
    former.client.hset(keys.state, mapping=state)
    former.client.hset(keys.usage, mapping=usage)
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    assert not former.client.exists(keys.usage)


def test_nothing_is_left_of_the_figures_of_a_project_that_is_empty(former: Former):
    scene = former.scene
    scene.post(3, once=make_key(window=60))
    scene.pop(1, history=60)
    scene.pop(2)
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    assert not former.client.exists(former.keys.usage)


def test_usage_is_one_question_whatever_the_project_holds(former: Former):
    for number in range(30):
        scene = former.scene.at(f"queue-{number}")
        post(scene, 10)
    before = former.client.info("commandstats")
    assert figures(former.scene) == size(*[10] * 30)
    after = former.client.info("commandstats")
    calls = {name: told["calls"] - before.get(name, {"calls": 0})["calls"] for name, told in after.items()}
    assert {name: number for name, number in calls.items() if number and name != "cmdstat_info"} == {"cmdstat_hmget": 1}
