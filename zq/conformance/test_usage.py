# SPDX-License-Identifier: Apache-2.0
"""The exact usage of a project: each message counts from the step that stores it to the one that removes it.

Stores whose usage is an estimate (``Usage.exact``) skip these tests. ``test_usage_kept`` covers history entries and
remembered results. ``USAGE_VERBS`` in the environment sets the number of random verbs per test; the default is 300.
"""

import os
import random
from collections.abc import Callable

import pytest

from zq.conformance.builders import EVERYTHING, OpenStore, Scene, make_key, run_together
from zq.conformance.usage_builders import RandomCalls, count_usage, figures, post, size
from zq.errors import Repeated
from zq.model import ClaimRef, Draft, Release, new_ids
from zq.storage.api import Storage

pytestmark = [
    pytest.mark.needs_part("usage"),
    pytest.mark.usefixtures("exact_usage"),
    pytest.mark.fresh_store,
    pytest.mark.pools,
]
VERBS = int(os.environ.get("USAGE_VERBS", "300"))


def test_an_empty_project_has_no_usage(scene: Scene):
    assert figures(scene) == (0, 0)


def test_a_message_counts_from_its_post_to_its_deletion(scene: Scene):
    first, _ = post(scene, 10, 500)
    assert figures(scene) == size(10, 500)
    scene.delete(first)
    assert figures(scene) == size(500)
    scene.delete(first)
    assert figures(scene) == size(500)


def test_projects_are_counted_apart(scene: Scene):
    post(scene, 10)
    post(scene.at("jobs", "other"), 20, 30)
    post(scene.at("more"), 40)
    assert figures(scene) == size(10, 40)
    assert figures(scene.at("jobs", "other")) == size(20, 30)


def test_a_refused_post_does_not_count(scene: Scene):
    key = make_key()
    scene.post(1, once=key)
    before = figures(scene)
    with pytest.raises(Repeated):
        scene.post(1, once=key)
    new = [Draft(new_ids(1, scene.now)[0], b"{}", 60, 0, "alice")]
    assert scene.storage.messages.post(scene.queue, new, scene.now, b'{"other": 1}') is not None
    assert figures(scene) == before


def test_claims_and_releases_change_nothing(scene: Scene):
    post(scene, 10, 20)
    claim = scene.take(2, ttl=600, grace=7200)
    scene.renew(claim.id, ttl=9000)
    scene.release(claim.id)
    assert figures(scene) == size(10, 20)


def test_popped_and_settled_messages_do_not_count(scene: Scene):
    post(scene, 10, 20, 30, 40)
    scene.pop(1)
    assert figures(scene) == size(20, 30, 40)
    claim = scene.take(3)
    one, two, _ = (message.id for message in claim.messages)
    scene.settle(claim.id, delete=[one], release=[Release(two, 5)])
    assert figures(scene) == size(30, 40)


def test_a_moved_message_counts_once(scene: Scene):
    one, two = post(scene, 10, 20)
    scene.move([one], "other")
    assert figures(scene) == size(10, 20)
    scene.move([two], "other", body=b"7" * 100, checksum="")
    assert figures(scene) == size(10, 100)
    scene.at("other").pop()
    assert figures(scene) == (0, 0)


def test_expired_messages_count_in_usage_until_removed(scene: Scene):
    post(scene, 10, ttl=60)
    post(scene, 20)
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == size(20)


def test_a_claim_that_finds_expired_messages_may_remove_them(scene: Scene):
    post(scene, 10, ttl=60)
    post(scene, 20)
    scene.tick(61)
    scene.take(10)
    scene.reclaimed()
    assert figures(scene) == size(20)


def test_a_purged_queue_stops_counting_at_once(scene: Scene):
    post(scene, 10, 20)
    post(scene.at("other"), 30)
    scene.storage.queues.purge(scene.queue)
    assert figures(scene) == size(30)
    scene.reclaimed()
    assert figures(scene) == size(30)
    post(scene, 40)
    assert figures(scene) == size(30, 40)


def test_a_deleted_queue_stops_counting_at_once(scene: Scene):
    post(scene, 10, 20)
    post(scene.at("other"), 30)
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == size(30)
    scene.reclaimed()
    post(scene, 40)
    assert figures(scene) == size(30, 40)


def test_staged_messages_count(scene: Scene):
    scene.stage("s", 3)
    assert figures(scene) == size(1, 1, 1)
    scene.commit(1, ["s"])
    assert figures(scene) == size(1, 1, 1)
    scene.pop()
    assert figures(scene) == (0, 0)


def test_a_dropped_stage_is_gone(scene: Scene):
    scene.stage("s", 3)
    scene.drop_stage("s")
    assert figures(scene) == (0, 0)


def test_an_expired_stage_stops_counting_when_it_is_removed(scene: Scene):
    scene.stage("s", 3, lives=60)
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    scene.stage("s", 1)
    assert figures(scene) == size(1)


def test_a_commit_in_slices_counts_each_message_once(scene: Scene):
    post(scene, 10, 20, 30)
    claim = scene.take(3)
    scene.stage("s", 5)
    scene.decide(1, ["s"], [ClaimRef(scene.queue, claim.id, 0)])
    counts = [figures(scene)[0]]
    while scene.continue_commit():
        counts.append(figures(scene)[0])
    assert counts == sorted(counts, reverse=True)
    assert figures(scene) == size(1, 1, 1, 1, 1)


def test_concurrent_posts_and_removals_on_two_connections_keep_usage_exact(open_store: OpenStore, scene: Scene):
    def worker(seed: int) -> Callable[[], None]:
        chance, own = random.Random(seed), scene.at(f"own-{seed}")

        def work() -> None:
            for _ in range(25):
                post(scene, chance.randrange(200), chance.randrange(200))
                scene.pop(1)
                post(own, chance.randrange(200))
                scene.move(scene.page(EVERYTHING, 1), own.queue.name)

        return work

    run_together(*(worker(seed) for seed in range(4)))
    assert figures(scene) == count_usage(scene, {})


@pytest.mark.shared
def test_usage_on_one_connection_includes_messages_of_others(open_store: OpenStore, scene: Scene):
    post(scene, 10)
    other = open_store()
    try:
        there = Scene(other, scene.clock, scene.queue)
        run_together(*(lambda at=at: [post(at, 20) for _ in range(20)] for at in (scene, there)))
        run_together(*(lambda at=at: [at.pop(1) for _ in range(10)] for at in (scene, there)))
        assert figures(there) == figures(scene) == count_usage(scene, {})
    finally:
        other.close()


@pytest.mark.durable
def test_usage_survives_a_restart(open_store: OpenStore, storage: Storage, scene: Scene):
    post(scene, 10, 20)
    scene.stage("s", 2)
    scene.pop(1, history=600)
    scene.post(1, once=make_key())
    scene.at("none").stage("t", once=make_key())
    before = figures(scene)
    storage.close()
    again = open_store()
    try:
        assert figures(Scene(again, scene.clock, scene.queue)) == before
    finally:
        again.close()


def test_usage_equals_a_full_count_after_random_verbs(scene: Scene):
    play = RandomCalls(scene, random.Random(18))
    for step in range(VERBS):
        play.step()
        if step % 50 == 0:
            play.check()
    play.check()
