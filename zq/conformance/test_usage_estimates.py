# SPDX-License-Identifier: Apache-2.0
"""Estimated usage of a project is within 5 % after maintenance.

Posted messages count at once, and removed ones are subtracted within seconds.
"""

import random

import pytest

from zq.conformance.builders import OpenStore, Scene
from zq.conformance.test_usage import VERBS
from zq.conformance.usage_builders import (
    MANY,
    EstimatedRandomCalls,
    count_usage,
    figures,
    fill,
    is_close,
    post,
    size,
    used,
    wait_for_usage,
)
from zq.storage.api import Storage

pytestmark = [pytest.mark.needs_part("usage"), pytest.mark.fresh_store]


@pytest.fixture(autouse=True)
def estimated(storage: Storage) -> None:
    """Skip stores with exact usage, which have their own tests."""
    usage = storage.usage("nothing", storage.now())
    if usage is not None and usage.exact:
        pytest.skip("The store's figures are exact.")


def test_estimated_usage_is_never_reported_as_exact(scene: Scene):
    assert not used(scene).exact
    fill(scene)
    assert not used(scene).exact


def test_few_messages_are_counted_one_by_one(scene: Scene):
    post(scene, 10, 500)
    post(scene.at("other"), 20)
    post(scene.at("jobs", "another"), 30)
    scene.stage("s", 2)
    assert wait_for_usage(scene) == size(10, 500, 20, 1, 1)
    scene.pop(1)
    assert wait_for_usage(scene) == size(500, 20, 1, 1)


def test_many_messages_are_estimated(scene: Scene):
    stored = fill(scene)
    assert is_close(wait_for_usage(scene), MANY, stored)


def test_messages_posted_after_a_count_count_at_once(scene: Scene):
    fill(scene)
    messages, stored = wait_for_usage(scene)
    post(scene, 10, 500)
    post(scene.at("new"), 20)
    scene.stage("s", 1)
    more = size(10, 500, 20, 1)
    assert figures(scene) == (messages + more[0], stored + more[1])
    scene.commit(1, ["s"])
    assert figures(scene) == (messages + more[0], stored + more[1])


def test_a_move_does_not_change_estimated_usage(scene: Scene):
    fill(scene)
    messages, stored = wait_for_usage(scene)
    [one] = post(scene, 10)
    scene.move([one], "other", body=b"7" * 100, checksum="")
    assert figures(scene) == (messages + 1, stored + size(100)[1])


def test_removed_messages_are_subtracted_by_the_next_count(scene: Scene):
    """The estimate is right even if many messages are left."""
    fill(scene)
    wait_for_usage(scene)
    for name in "abc":
        scene.at(name).pop(500)
    left = count_usage(scene, {})
    assert left[0] == MANY // 2
    assert is_close(wait_for_usage(scene), *left)


def test_purged_and_deleted_queues_are_subtracted_at_once(scene: Scene):
    fill(scene)
    wait_for_usage(scene)
    scene.storage.queues.purge(scene.at("a").queue)
    scene.storage.queues.delete(scene.at("b").queue)
    scene.storage.queues.purge(scene.at("c").queue)
    post(scene.at("b"), 10)
    assert figures(scene) == size(10)


@pytest.mark.shared
def test_servers_share_a_count_and_include_each_others_posts(open_store: OpenStore, scene: Scene):
    fill(scene)
    messages, stored = wait_for_usage(scene)
    other = open_store()
    try:
        there = Scene(other, scene.clock, scene.queue)
        assert figures(there) == (messages, stored)
        post(there, 10)
        assert figures(scene) == (messages + 1, stored + size(10)[1])
    finally:
        other.close()


def test_estimated_usage_is_near_a_full_count_after_random_verbs(scene: Scene):
    EstimatedRandomCalls(scene, random.Random(18)).run(VERBS)
