# SPDX-License-Identifier: Apache-2.0
"""What a project has stored is known at any time: each message counts from the step that stores it to the one that
removes it, whichever verbs these are.

``USAGE_VERBS`` in the environment says how many random verbs one test makes; 300 by default.
"""

import os
import random
from collections.abc import Callable

import pytest

from zq.conformance.builders import EVERYTHING, OpenStore, Scene, once, together
from zq.errors import ClaimLapsed, ClaimNotFound, Repeated
from zq.model import ClaimRef, Draft, Release, new_ids
from zq.model.quotas import OVERHEAD, Usage
from zq.storage.api import Storage

pytestmark = pytest.mark.needs("usage")
VERBS = int(os.environ.get("USAGE_VERBS", "300"))


def used(scene: Scene, project: str = "") -> Usage:
    usage = scene.storage.usage(project or scene.queue.project, scene.now)
    assert usage is not None
    return usage


def figures(scene: Scene) -> tuple[int, int]:
    usage = used(scene)
    return usage.messages, usage.bytes


def size(*bodies: int) -> tuple[int, int]:
    """Figures of messages with bodies of so many bytes."""
    return len(bodies), sum(bodies) + OVERHEAD * len(bodies)


def post(scene: Scene, *bodies: int, ttl: int = 3600) -> list[str]:
    """Messages with bodies of so many bytes; their ids."""
    ids = new_ids(len(bodies), scene.now)
    new = [Draft(id, b"7" * length, ttl, 0, "alice") for id, length in zip(ids, bodies, strict=True)]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return ids


def test_an_empty_project_has_nothing(scene: Scene):
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


def test_a_post_that_is_not_done_does_not_count(scene: Scene):
    key = once()
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


def test_what_is_popped_and_settled_is_gone(scene: Scene):
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


def test_what_has_expired_is_gone_when_it_is_removed(scene: Scene):
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


def test_a_purged_queue_is_empty_at_once(scene: Scene):
    post(scene, 10, 20)
    post(scene.at("other"), 30)
    scene.storage.queues.purge(scene.queue)
    assert figures(scene) == size(30)
    scene.reclaimed()
    assert figures(scene) == size(30)
    post(scene, 40)
    assert figures(scene) == size(30, 40)


def test_a_deleted_queue_is_gone_at_once(scene: Scene):
    post(scene, 10, 20)
    post(scene.at("other"), 30)
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == size(30)
    scene.reclaimed()
    post(scene, 40)
    assert figures(scene) == size(30, 40)


def test_what_is_staged_counts(scene: Scene):
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


def test_a_stage_that_has_expired_is_gone_when_it_is_removed(scene: Scene):
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
    while scene.carry_on():
        counts.append(figures(scene)[0])
    assert counts == sorted(counts, reverse=True)
    assert figures(scene) == size(1, 1, 1, 1, 1)


def test_two_connections_that_post_and_remove_at_once_lose_no_message(open_store: OpenStore, scene: Scene):
    """Of one queue and of several."""

    def worker(seed: int) -> Callable[[], None]:
        chance, own = random.Random(seed), scene.at(f"own-{seed}")

        def work() -> None:
            for _ in range(25):
                post(scene, chance.randrange(200), chance.randrange(200))
                scene.pop(1)
                post(own, chance.randrange(200))
                scene.move(scene.page(EVERYTHING, 1), own.queue.name)

        return work

    together(*(worker(seed) for seed in range(4)))
    assert figures(scene) == counted(scene, {})


@pytest.mark.shared
def test_every_server_knows_what_all_have_stored(open_store: OpenStore, scene: Scene):
    post(scene, 10)
    other = open_store()
    try:
        there = Scene(other, scene.clock, scene.queue)
        together(*(lambda at=at: [post(at, 20) for _ in range(20)] for at in (scene, there)))
        together(*(lambda at=at: [at.pop(1) for _ in range(10)] for at in (scene, there)))
        assert figures(there) == figures(scene) == counted(scene, {})
    finally:
        other.close()


@pytest.mark.durable
def test_a_store_that_is_opened_again_knows_it_still(open_store: OpenStore, storage: Storage, scene: Scene):
    post(scene, 10, 20)
    scene.stage("s", 2)
    before = figures(scene)
    storage.close()
    again = open_store()
    try:
        assert figures(Scene(again, scene.clock, scene.queue)) == before
    finally:
        again.close()


def test_after_any_verbs_it_is_what_a_count_of_the_store_says(scene: Scene):
    play = Play(scene, random.Random(18))
    for step in range(VERBS):
        play.step()
        if step % 50 == 0:
            play.check()
    play.check()


class Play:
    """Random verbs on a few queues and stages."""

    def __init__(self, scene: Scene, chance: random.Random) -> None:
        self.scene, self.chance = scene, chance
        self.scenes = [scene.at(name) for name in ("a", "b", "c")]
        self.claims: list[tuple[Scene, str]] = []
        self.stages: dict[str, int] = {}
        self.batch = 0
        self.verbs = [
            *[self.post] * 6,
            *[self.claim] * 3,
            self.delete,
            self.pop,
            self.move,
            *[self.settle] * 3,
            self.release,
            *[self.stage] * 2,
            self.drop,
            self.commit,
            *[self.pass_time] * 2,
            self.make_empty,
        ]

    def step(self) -> None:
        self.at = self.chance.choice(self.scenes)
        self.chance.choice(self.verbs)()

    def check(self) -> None:
        self.scene.reclaimed()
        assert figures(self.scene) == counted(self.scene, self.stages)

    def post(self) -> None:
        lengths = [self.chance.randrange(1, 900) for _ in range(self.chance.randrange(1, 6))]
        post(self.at, *lengths, ttl=self.chance.choice([60, 3600]))

    def some(self) -> list[str]:
        page = self.at.page(EVERYTHING, 20)
        return self.chance.sample(page, min(len(page), 2))

    def delete(self) -> None:
        self.at.delete_many(self.some(), history=self.chance.choice([0, 600]))

    def pop(self) -> None:
        self.at.pop(self.chance.randrange(1, 3), self.chance.choice([0, 600]))

    def move(self) -> None:
        body = self.chance.choice([None, b"8" * self.chance.randrange(1, 900)])
        self.at.move(self.some(), self.chance.choice("abc"), body=body, checksum="", ttl=self.chance.choice([None, 60]))

    def claim(self) -> None:
        claim = self.at.claim(self.chance.randrange(1, 5), ttl=60, grace=self.chance.choice([0, 60]))
        if claim is not None:
            self.claims.append((self.at, claim.id))

    def settle(self) -> None:
        if self.claims:
            at, claim = self.claims.pop(self.chance.randrange(len(self.claims)))
            try:
                held = at.held(claim)
                at.settle(claim, delete=held[:1], release=[Release(id, 0) for id in held[1:2]], rest=True)
            except ClaimNotFound:
                pass

    def release(self) -> None:
        if self.claims:
            at, claim = self.claims.pop()
            at.release(claim)

    def stage(self) -> None:
        name = self.chance.choice("xy")
        count = self.chance.randrange(1, 4)
        self.at.stage(name, count, lives=10**6)
        self.stages[name] = self.stages.get(name, 0) + count

    def drop(self) -> None:
        name = self.chance.choice("xy")
        self.at.drop_stage(name)
        self.stages.pop(name, None)

    def commit(self) -> None:
        """What is staged, and what a claim holds."""
        held = [self.claims.pop()] if self.claims else []
        self.batch += 1
        settled = [ClaimRef(at.queue, claim, self.chance.choice([0, 600])) for at, claim in held]
        try:
            self.at.commit(self.batch, sorted(self.stages), settled)
            self.stages.clear()
        except ClaimLapsed:
            pass

    def pass_time(self) -> None:
        self.scene.tick(self.chance.choice([1, 30]))

    def make_empty(self) -> None:
        if self.chance.random() < 0.2:
            remove = self.chance.choice([self.scene.storage.queues.purge, self.scene.storage.queues.delete])
            remove(self.at.queue)


def counted(scene: Scene, stages: dict[str, int]) -> tuple[int, int]:
    """The same by reading all messages of all queues; of staged messages, whose bodies are of one byte, by number."""
    project = scene.queue.project
    queues = scene.storage.queues.list(project, "", 1000).items
    bodies = [len(message.body) for queue in queues for message in scene.at(queue.ref.name).walk()]
    return size(*bodies, *[1] * sum(stages.values()))
