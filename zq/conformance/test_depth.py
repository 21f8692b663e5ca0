# SPDX-License-Identifier: Apache-2.0
"""The depth of one queue by state, also on drivers that inherit the implementation."""

import pytest

from zq.conformance.builders import Scene, near
from zq.model.stats import Depth

pytestmark = pytest.mark.fresh_store


def depth_of(scene: Scene, most: int = 10_000) -> Depth:
    return scene.storage.depth(scene.queue, scene.now, most)


def test_a_missing_queue_has_no_depth(scene: Scene):
    assert depth_of(scene) == Depth()
    scene.storage.queues.create(scene.queue, b"{}")
    assert depth_of(scene) == Depth()
    scene.post(2)
    scene.storage.queues.delete(scene.queue)
    depth = depth_of(scene)
    assert (depth.ready, depth.delayed, depth.claimed) == (0, 0, 0)


def test_a_depth_counts_the_messages_of_each_state(scene: Scene):
    """Messages of other queues do not count. The oldest ready time is right, if the driver reports it."""
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
    scene.post(3, ttl=60)
    scene.post(2, ttl=600)
    scene.tick(60)
    depth = depth_of(scene)
    assert (depth.ready, depth.delayed, depth.claimed) == (2, 0, 0)


def test_a_depth_reaches_its_bound(scene: Scene):
    scene.post(20)
    scene.take(8)
    depth = depth_of(scene, 5)
    assert 5 <= depth.ready <= 12
    assert 5 <= depth.claimed <= 8
    assert depth.delayed <= 5
