# SPDX-License-Identifier: Apache-2.0
"""The lines of grouped queues on Redis: claims find the ready messages there after any sequence of verbs."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from msgspec import structs

from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, ids_of
from zq.core.redelivery import Redelivery
from zq.errors import ZqError
from zq.model import ClaimRef, Draft, Grouping, Message, Move, QueueRef, Release, new_ids
from zq.storage import connect
from zq.storage.redis import layout

GROUPS = ["", "a", "b", "c", "a\0", "d" * 128]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


class Lines:
    """Two queues of one kind, and their expected contents.

    ``reserved``: messages that a decided commit is to delete.
    """

    def __init__(self, server: RedisServer, kind: Grouping, seed: int, closing: ExitStack) -> None:
        self.admin: Any = redis.Redis(port=server.port)
        self.admin.flushall()
        storage = connect(server.uri)
        closing.callback(storage.close)
        closing.callback(self.admin.close)
        self.kind = kind
        self.random = random.Random(seed)
        self.scene = Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
        self.scenes = [self.scene, self.scene.at("next")]
        for scene in self.scenes:
            assert storage.queues.create(scene.queue, b"{}", kind)
        self.claims: list[str] = []
        self.commits = 0
        self.reserved: set[str] = set()

    def is_fair(self) -> bool:
        return self.kind is Grouping.FAIR

    def place(self, message: Message) -> bytes:
        """Return the message's member of ``line``."""
        line = hashlib.sha1(message.group.encode(), usedforsecurity=False).digest()[:8]
        order = layout.ms(message.available).to_bytes(8) if self.is_fair() else b""
        return line + order + message.sequence.to_bytes(6)

    def check(self) -> None:
        """Assert that every message has its place, and every line one entry for its head, which is never too late."""
        for scene in self.scenes:
            keys = dict(zip(layout.QUEUE_KINDS, layout.keys(scene.queue).queue, strict=True))
            places = self.admin.zrange(keys["line"], 0, -1)
            every = {int.from_bytes(place[-6:]): place for place in places}
            assert set(every) == {int(at[:-2]) for at, _ in self.admin.xrange(keys["stream"])}
            living = {message.sequence: message for message in scene.walk()}
            assert all(every[at] == self.place(m) for at, m in living.items() if m.id not in self.reserved)
            heads = {place[:8]: place[-6:] for place in reversed(places)}
            entries = dict(self.admin.zrange(keys["avail"], 0, -1, withscores=True))
            assert set(entries) == {member + line for line, member in heads.items()}
            for entry, moment in entries.items():
                head = living.get(int.from_bytes(entry[:6]))
                if head is None or head.id in self.reserved:
                    continue
                soonest = layout.ms(min(head.available, head.expires))
                assert moment == soonest or soonest <= moment <= layout.ms(scene.now)

    def ready(self, scene: Scene) -> dict[str, list[str]]:
        """Return by group the messages before the first one that is not ready."""
        found: dict[str, list[str]] = {group: [] for group in GROUPS}
        over = set()
        order = (lambda m: (m.available, m.sequence)) if self.is_fair() else (lambda m: m.sequence)
        for m in sorted(scene.walk(), key=order):
            is_reserved = m.id in self.reserved
            if is_reserved and self.is_fair():
                continue
            if m.available > scene.now or is_reserved:
                over.add(m.group)
            if m.group not in over:
                found[m.group].append(m.id)
        return found

    def judge(self, ready: dict[str, list[str]], taken: list[str], limit: int) -> None:
        """Assert that a claim took as many messages as possible, and the first ones of each group."""
        assert len(taken) == min(limit, sum(map(len, ready.values())))
        for its in ready.values():
            mine = [id for id in taken if id in its]
            assert mine == its[: len(mine)]

    def post(self) -> None:
        delay, ttl = self.random.choice([0, 0, 0, 3, 40]), self.random.choice([20, 300, 3600])
        ids = new_ids(self.random.choice([1, 4, 30]), self.scene.now)
        new = [Draft(id, b"1", ttl, delay, "alice", group=self.random.choice(GROUPS)) for id in ids]
        self.scene.storage.messages.post(self.scene.queue, new, self.scene.now)

    def claim(self) -> None:
        limit, ready = self.random.choice([1, 3, 10]), self.ready(self.scene)
        name, wait = new_ids(1, self.scene.now)[0], self.random.choice([Redelivery(0), Redelivery(0), Redelivery(20)])
        request = self.scene.request(limit, name=name, ttl=self.random.choice([2, 60]), redelivery=wait)
        request = structs.replace(request, lease=structs.replace(request.lease, prolong=self.random.random() < 0.5))
        claim = self.scene.storage.claims.create(self.scene.queue, request, self.scene.now).claim
        self.judge(ready, [] if claim is None else ids_of(claim.messages), limit)
        self.claims.append(name)

    def pop(self) -> None:
        limit, ready = self.random.choice([1, 3]), self.ready(self.scene)
        self.judge(ready, self.scene.pop(limit, self.random.choice([0, 600])), limit)

    def count(self) -> None:
        ready = sum(map(len, self.ready(self.scene).values()))
        assert self.scene.ready() == ready
        assert self.scene.ready(2) == min(2, ready)

    def on_claim(self) -> None:
        claim = self.random.choice([*self.claims[-8:], "none"])
        try:
            held = self.scene.storage.claims.get(self.scene.queue, claim, self.scene.now).messages
            self.end(claim, held)
        except ZqError:
            return

    def end(self, claim: str, held: list[Message]) -> None:
        """Settle the claim's messages in a random way."""
        scene, ids = self.scene, self.random.sample(ids_of(held), len(held))
        self.commits += 1
        match self.random.randrange(8):
            case 0:
                scene.release(claim)
            case 1:
                scene.release(claim, 15)
            case 2:
                scene.renew(claim, ttl=120)
            case 3:
                scene.settle(claim, rest=True, history=600)
            case 4:
                scene.commit(self.commits, settle=[ClaimRef(scene.queue, claim)])
            case 5:
                if scene.decide(self.commits, settle=[ClaimRef(scene.queue, claim)]).open:
                    self.reserved |= set(ids)
            case 6:
                scene.handle(held, self.random.choice([None, 0, 5, 90]))
            case _:
                moves = [Move(id, self.random.choice(["next", "jobs"]), reason="r") for id in ids[2:]]
                scene.settle(claim, delete=ids[:1], release=[Release(id) for id in ids[1:2]], move=moves)

    def carry(self) -> None:
        """Complete the open commit."""
        while self.reserved and self.scene.continue_commit(3):
            self.check()
        self.reserved.clear()

    def by_ids(self) -> None:
        every = ids_of(self.scene.walk())
        ids = [id for id in self.random.sample(every, min(len(every), 5)) if id not in self.reserved]
        if self.random.random() < 0.5:
            self.scene.move(ids, self.random.choice(["next", "jobs"]))
        else:
            self.scene.delete_many(ids)

    def tick(self) -> None:
        self.scene.tick(self.random.choice([0.001, 1, 2.5, 30]))

    def sweep(self) -> None:
        self.scene.reclaimed()

    def run(self, steps: int) -> None:
        verbs = [self.post, self.post, self.claim, self.claim, self.on_claim, self.on_claim, self.pop, self.by_ids]
        verbs += [self.tick, self.tick, self.sweep, self.count, self.carry]
        for _ in range(steps):
            self.random.choice(verbs)()
            self.check()


@pytest.mark.parametrize("kind", [Grouping.ORDERED, Grouping.FAIR])
@pytest.mark.parametrize("seed", range(2))
def test_claims_find_what_is_ready_after_whatever_was_done(server: RedisServer, kind: Grouping, seed: int):
    with ExitStack() as closing:
        Lines(server, kind, seed, closing).run(80)


@pytest.mark.parametrize("kind", [Grouping.ORDERED, Grouping.FAIR])
def test_what_a_commit_is_going_to_delete_is_not_handed_out(server: RedisServer, kind: Grouping):
    """Its claim has expired: in an ordered queue the group waits until the message is deleted, in a fair one not."""
    with ExitStack() as closing:
        lines = Lines(server, kind, 0, closing)
        scene = lines.scene
        first, second, third = new_ids(3, scene.now)
        new = [Draft(id, b"1", 3600, 0, "alice", group="a") for id in (first, second, third)]
        scene.storage.messages.post(scene.queue, new, scene.now)
        claim = scene.take(2, ttl=2)
        assert scene.decide(1, settle=[ClaimRef(scene.queue, claim.id)]).open
        scene.tick(3)
        lines.reserved = {first, second}
        assert scene.claimable() == ([third] if lines.is_fair() else [])
        assert scene.ready() == 0
        while scene.continue_commit(1):
            lines.check()
        lines.reserved.clear()
        lines.check()
        scene.tick(600)
        assert scene.claimable() == [third]
        lines.check()
