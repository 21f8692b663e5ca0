# SPDX-License-Identifier: Apache-2.0
"""A Redis that is killed and comes back, and the memory of expired messages."""

import pytest
import redis

from tests.faults.test_redis_faults import BINARIES, assert_unavailable, open_scene, round_trip
from tests.servers import wait_for
from tests.stores import RedisServer
from zq.model import Draft, new_ids

each_server = pytest.mark.parametrize("binary", BINARIES, ids=["valkey", "redis"][: len(BINARIES)])


@each_server
def test_a_killed_store_is_unavailable_and_comes_back(binary: str | None):
    """Every verb answers within the timeout, from idle connections as well as new ones; a restart is all it takes."""
    with RedisServer(binary, "--appendonly", "yes", "--appendfsync", "always") as server:
        scene = open_scene(server.uri)
        posted = scene.post(3)
        server.kill()
        assert_unavailable(scene)
        server.start()
        assert scene.page() == posted
        round_trip(scene.at("other"))
        scene.storage.close()


def test_used_memory_returns_when_messages_have_expired():
    """INFO memory before 50,000 messages and after they were swept: no more than a fiftieth of them is left."""
    with RedisServer() as server, redis.Redis(port=server.port) as admin:
        scene = open_scene(server.uri)
        scene.post(1)
        scene.pop()
        before = admin.info("memory")["used_memory"]
        for _ in range(50):
            new = [Draft(id, b'"%b"' % (b"x" * 198), 60, 0, "alice") for id in new_ids(1000, scene.now)]
            scene.storage.messages.post(scene.queue, new, scene.now)
        full = admin.info("memory")["used_memory"]
        assert full - before > 50_000 * 400
        scene.tick(60)
        assert scene.storage.maintain(scene.now) == 50_000
        left = wait_for(lambda: shrunk(admin, before + (full - before) // 50), 60, "memory returns")
        assert left < full
        scene.storage.close()


def shrunk(admin: redis.Redis, most: int) -> int:
    """The memory in use once it is below the bound; before, 0."""
    used = int(admin.info("memory")["used_memory"])
    return used if used <= most else 0
