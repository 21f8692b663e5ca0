# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of usage: expected figures, and random calls whose usage is checked by a full count."""

import random

import pytest

from zq.conformance.builders import EVERYTHING, Scene, make_key
from zq.errors import ClaimLapsed, ClaimNotFound
from zq.model import ClaimRef, Draft, Release, new_ids
from zq.model.quotas import OVERHEAD, Usage


def used(scene: Scene, project: str = "") -> Usage:
    usage = scene.storage.usage(project or scene.queue.project, scene.now)
    assert usage is not None
    return usage


def figures(scene: Scene) -> tuple[int, int]:
    usage = used(scene)
    return usage.messages, usage.bytes


def size(*bodies: int) -> tuple[int, int]:
    """Return the usage of messages with bodies of these sizes."""
    return len(bodies), sum(bodies) + OVERHEAD * len(bodies)


def post(scene: Scene, *bodies: int, ttl: int = 3600) -> list[str]:
    """Post messages with bodies of these sizes; return their ids."""
    ids = new_ids(len(bodies), scene.now)
    new = [Draft(id, b"7" * length, ttl, 0, "alice") for id, length in zip(ids, bodies, strict=True)]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return ids


class RandomCalls:
    """Random calls on a few queues and stages."""

    def __init__(self, scene: Scene, chance: random.Random) -> None:
        self.scene, self.chance = scene, chance
        self.scenes = [scene.at(name) for name in ("a", "b", "c")]
        self.claims: list[tuple[Scene, str]] = []
        self.stages: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        """Bytes of remembered results, by queue."""
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
        messages, size = count_usage(self.scene, self.stages)
        assert figures(self.scene) == (messages, size + sum(self.answers.values()))

    def post(self) -> None:
        lengths = [self.chance.randrange(1, 900) for _ in range(self.chance.randrange(1, 6))]
        post(self.at, *lengths, ttl=self.chance.choice([60, 3600]))

    def some(self) -> list[str]:
        page = self.at.page(EVERYTHING, 20)
        return self.chance.sample(page, min(len(page), 2))

    def post_once(self) -> None:
        """Post with a key whose window is longer than the test. The key then exists as long as its queue."""
        self.batch += 1
        self.scene.reclaimed()  # A store's own threads may otherwise remove messages between the two reads.
        before = figures(self.scene)[1]
        key = make_key(f"post:{self.batch}", window=10**8)
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
        """Commit the staged messages and the claimed ones."""
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


def count_usage(scene: Scene, stages: dict[str, int]) -> tuple[int, int]:
    """Count usage by reading all messages and history entries of all queues.

    Staged messages have bodies of one byte, so their number is enough.
    """
    project = scene.queue.project
    queues = scene.storage.queues.list(project, "", 1000).items
    bodies = [len(message.body) for queue in queues for message in scene.at(queue.ref.name).walk()]
    entries = [len(entry.message.body) for queue in queues for entry in scene.at(queue.ref.name).history()]
    messages, stored = size(*bodies, *[1] * sum(stages.values()))
    return messages, stored + size(*entries)[1]


# The rest is for stores that estimate.
CLOSE = 0.05
# More messages than any store counts on each request.
MANY = 3000


def wait_for_usage(scene: Scene) -> tuple[int, int]:
    """Wait for a new estimate and return the usage."""
    for _ in range(100):
        usage = used(scene)
        scene.tick(15)
        scene.storage.maintain(scene.now)
        usage = used(scene)
        if usage.age == 0:
            return usage.messages, usage.bytes
    raise AssertionError("The figures stay old.")


def fill(scene: Scene, count: int = MANY) -> int:
    """Post messages of many sizes to three queues, and return their total usage in bytes."""
    chance, total = random.Random(7), 0
    for start in range(0, count, 500):
        bodies = [chance.randrange(900) for _ in range(500)]
        post(scene.at("abc"[start // 500 % 3]), *bodies)
        total += size(*bodies)[1]
    return total


def is_close(found: tuple[int, int], messages: int, stored: int) -> bool:
    return found == (pytest.approx(messages, rel=CLOSE), pytest.approx(stored, rel=CLOSE))


class EstimatedRandomCalls(RandomCalls):
    """Random calls without idempotency keys, because estimates do not include remembered results."""

    def run(self, verbs: int) -> None:
        for step in range(verbs):
            self.step()
            if step % 50 == 49:
                self.check()
        self.check()

    def post_once(self) -> None:
        self.post()

    def check(self) -> None:
        found = wait_for_usage(self.scene)
        self.scene.reclaimed()
        assert is_close(wait_for_usage(self.scene), *count_usage(self.scene, self.stages)), found
