# SPDX-License-Identifier: Apache-2.0
"""What a project has stored is known at any time: each message counts from the step that stores it to the one that
removes it, whichever verbs these are. So do, in bytes alone, history entries and remembered answers.

An entry counts as much as its message, an answer its bytes as the store has them and ``OVERHEAD``. Stores whose figures
are estimates (``Usage.exact``) skip all this.

``USAGE_VERBS`` in the environment says how many random verbs one test makes; 300 by default.
"""

import os
import random
from collections.abc import Callable

import pytest

from zq.conformance.builders import EVERYTHING, OpenStore, Scene, once, together
from zq.conformance.topic_builders import Log
from zq.errors import ClaimLapsed, ClaimNotFound, Repeated
from zq.model import ClaimRef, Draft, IdempotencyKey, Release, Settled, new_ids
from zq.model.quotas import OVERHEAD, Usage
from zq.storage.api import Storage

pytestmark = pytest.mark.needs("usage")
VERBS = int(os.environ.get("USAGE_VERBS", "300"))


@pytest.fixture(autouse=True)
def exact(storage: Storage) -> None:
    usage = storage.usage("nothing", storage.now())
    if usage is not None and not usage.exact:
        pytest.skip("The store's figures are estimates.")


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


def in_history(scene: Scene, *bodies: int) -> None:
    """Nothing counts but entries of so many bytes."""
    assert figures(scene) == (0, size(*bodies)[1])


FINISH: list[Callable[[Scene, str], object]] = [
    lambda scene, id: scene.delete(id, history=600),
    lambda scene, id: scene.pop(1, history=600),
    lambda scene, id: scene.settle(scene.take(1).id, delete=[id], history=600),
    lambda scene, id: scene.commit(1, [], [ClaimRef(scene.queue, scene.take(1).id, 600)]),
]


@pytest.mark.parametrize("finish", FINISH)
def test_a_history_entry_counts_as_much_as_its_message(scene: Scene, finish: Callable[[Scene, str], object]):
    """From the moment when the message finishes until its time is up and it is removed."""
    [message] = post(scene, 10)
    finish(scene, message)
    in_history(scene, 10)
    scene.tick(599)
    scene.reclaimed()
    in_history(scene, 10)
    scene.tick(2)
    scene.reclaimed()
    assert figures(scene) == (0, 0)


def test_a_moved_message_counts_in_the_history_of_its_former_queue_too(scene: Scene):
    """The entry has the body that the message had there."""
    [message] = post(scene, 10)
    scene.move([message], "other", history=600, body=b"7" * 100, checksum="")
    assert figures(scene) == (1, size(10, 100)[1])


def test_a_purge_leaves_history_and_a_deletion_does_not(scene: Scene):
    post(scene, 10, 20)
    scene.pop(1, history=600)
    scene.storage.queues.purge(scene.queue)
    in_history(scene, 10)
    scene.tick(601)
    scene.reclaimed()
    post(scene, 20)
    scene.storage.queues.purge(scene.queue)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    post(scene, 10)
    scene.pop(1, history=600)
    in_history(scene, 10)
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == (0, 0)
    scene.reclaimed()
    scene.tick(601)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    post(scene, 30)
    scene.pop(1, history=600)
    in_history(scene, 30)


def remembered(scene: Scene, ids: int) -> int:
    """Bytes that count besides living messages of the queue and their bodies: those of an answer with so many ids."""
    messages, stored = figures(scene)
    bodies = [len(message.body) for message in scene.walk()]
    assert messages == len(bodies)
    beside = stored - size(*bodies)[1]
    assert OVERHEAD < beside <= OVERHEAD + 100 * (ids + 1)
    return beside


def test_a_remembered_answer_counts_until_its_window_ends(scene: Scene):
    """Whatever becomes of the messages; a repeat adds nothing."""
    key = once(window=600)
    scene.post(10, once=key)
    before = remembered(scene, 10)
    with pytest.raises(Repeated):
        scene.post(10, once=key)
    scene.pop(5)
    assert remembered(scene, 10) == before
    scene.storage.queues.purge(scene.queue)
    scene.tick(599)
    scene.reclaimed()
    assert figures(scene) == (0, before)
    scene.tick(2)
    scene.reclaimed()
    assert figures(scene) == (0, 0)


def test_a_key_that_is_used_again_counts_once(scene: Scene):
    scene.post(1, once=once(window=60))
    scene.tick(61)
    scene.post(1, once=once(window=60))
    scene.reclaimed()
    assert remembered(scene, 1)
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == size(1, 1)


def test_the_answer_to_a_settlement_counts_too(scene: Scene):
    scene.post(3)
    claim = scene.take(3)
    settled = scene.settle(claim.id, rest=True, once=once("settle:k"))
    assert settled == Settled(deleted=3)
    remembered(scene, 0)


def test_a_deleted_queue_forgets_its_answers_at_once(scene: Scene):
    scene.post(1, once=once(window=60))
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == (0, 0)
    scene.post(1, once=once(window=600))
    before = remembered(scene, 1)
    scene.reclaimed()
    scene.tick(61)
    scene.reclaimed()
    assert remembered(scene, 1) == before


def staged_once(scene: Scene, key: IdempotencyKey) -> int:
    """Stage one message for the queue and drop the stage; what counts then."""
    scene.stage("s", once=key)
    scene.drop_stage("s")
    return figures(scene)[1]


def test_the_answer_to_staging_counts_where_there_is_no_queue_too(scene: Scene):
    """It is the same when the queue is made, and goes at its time."""
    before = staged_once(scene, once(window=60))
    assert OVERHEAD < before <= OVERHEAD + 200
    assert staged_once(scene.at("jobs", "other"), once(window=60)) == before
    post(scene, 10)
    assert remembered(scene, 1) == before
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == size(10)
    assert figures(scene.at("jobs", "other")) == (0, 0)


def test_answers_to_publishing_count_nothing(scene: Scene):
    """A topic's log has a bound of its own."""
    Log(scene.storage, scene.clock, scene.queue.project).publish(once=once("publish:k"))
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
    scene.pop(1, history=600)
    scene.post(1, once=once())
    scene.at("none").stage("t", once=once())
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
        self.answers: dict[str, int] = {}
        """Bytes of what is remembered, by queue."""
        self.batch = 0
        self.verbs = [
            self.post_once,
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
        messages, size = counted(self.scene, self.stages)
        assert figures(self.scene) == (messages, size + sum(self.answers.values()))

    def post(self) -> None:
        lengths = [self.chance.randrange(1, 900) for _ in range(self.chance.randrange(1, 6))]
        post(self.at, *lengths, ttl=self.chance.choice([60, 3600]))

    def some(self) -> list[str]:
        page = self.at.page(EVERYTHING, 20)
        return self.chance.sample(page, min(len(page), 2))

    def post_once(self) -> None:
        """Remembered for longer than the test takes, and so until its queue is deleted."""
        self.batch += 1
        before = figures(self.scene)[1]
        key = once(f"post:{self.batch}", window=10**6)
        self.at.post(1, once=key)
        remembered = figures(self.scene)[1] - before - OVERHEAD - 1
        assert remembered >= OVERHEAD
        self.answers[self.at.queue.name] = self.answers.get(self.at.queue.name, 0) + remembered

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
            self.scene.storage.queues.purge(self.at.queue)
        elif self.chance.random() < 0.2:
            self.scene.storage.queues.delete(self.at.queue)
            self.answers.pop(self.at.queue.name, None)


def counted(scene: Scene, stages: dict[str, int]) -> tuple[int, int]:
    """The same by reading all messages and histories of all queues; of staged messages, whose bodies are of one byte,
    by number."""
    project = scene.queue.project
    queues = scene.storage.queues.list(project, "", 1000).items
    bodies = [len(message.body) for queue in queues for message in scene.at(queue.ref.name).walk()]
    entries = [len(entry.message.body) for queue in queues for entry in scene.at(queue.ref.name).history()]
    messages, stored = size(*bodies, *[1] * sum(stages.values()))
    return messages, stored + size(*entries)[1]
