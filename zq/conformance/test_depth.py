# SPDX-License-Identifier: Apache-2.0
"""How many messages one queue has in each state; of drivers, too, that inherit how they are counted."""

import pytest

from zq.conformance.builders import Scene, near
from zq.model.stats import Depth

pytestmark = pytest.mark.fresh_store


def depth_of(scene: Scene, most: int = 10_000) -> Depth:
    return scene.storage.depth(scene.queue, scene.now, most)


def test_a_missing_queue_has_nothing(scene: Scene):
    """As an empty one has."""
    assert depth_of(scene) == Depth()
    scene.storage.queues.create(scene.queue, b"{}")
    assert depth_of(scene) == Depth()
    scene.post(2)
    scene.storage.queues.delete(scene.queue)
    depth = depth_of(scene)
    assert (depth.ready, depth.delayed, depth.claimed) == (0, 0, 0)


def test_messages_of_each_state_are_counted(scene: Scene):
    """Ready, delayed and claimed ones, in this queue alone; since when the first is ready, if the driver tells."""
    scene.at("other").post(9)
    scene.post(5)
    began = scene.now
    scene.tick(5)
    scene.post(2, delay=60)
    scene.take(2)
    depth = depth_of(scene)
    assert (depth.ready, depth.delayed, depth.claimed) == (3, 2, 2)
    assert depth.oldest_ready in (None, near(began))
    scene.tick(60)
    assert depth_of(scene).delayed == 0


def test_expired_messages_are_in_no_state(scene: Scene):
    """Though they may be there still."""
    scene.post(3, ttl=60)
    scene.post(2, ttl=600)
    scene.tick(60)
    depth = depth_of(scene)
    assert (depth.ready, depth.delayed, depth.claimed) == (2, 0, 0)


def test_beyond_the_bound_no_more_need_be_counted(scene: Scene):
    """But so many are told, where there are so many."""
    scene.post(20)
    scene.take(8)
    depth = depth_of(scene, 5)
    assert 5 <= depth.ready <= 12
    assert 5 <= depth.claimed <= 8
    assert depth.delayed <= 5
