# SPDX-License-Identifier: Apache-2.0
"""The structures of a queue on Redis: each message is in exactly one, on which claim order and counts rely."""

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.rotation import CAMPAIGN, rotated
from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.conformance.builders import EVERYTHING, Scene, ids_of
from zq.core.redelivery import Redelivery
from zq.model import ClaimRef, Draft, Lease, ListFilter, Move, QueueRef, Release, new_ids
from zq.storage import connect
from zq.storage.redis import layout

QUEUE = QueueRef("acme", "jobs")
STEPS = 1000
"""The value of ``STEPS`` in shared.lua."""


class Places:
    """A snapshot of the keys of a queue in Redis."""

    def __init__(self, admin: Any, queue: QueueRef) -> None:
        keys = dict(zip(layout.QUEUE_KINDS, layout.keys(queue).queue, strict=True))
        self.state = {name: int(value) for name, value in admin.hgetall(keys["state"]).items()}
        self.entries = {int(place[:-2]): value[b"m"] for place, value in admin.xrange(keys["stream"])}
        self.avail, self.claimed, self.expiry = (
            {int.from_bytes(member): score for member, score in admin.zrange(keys[name], 0, -1, withscores=True)}
            for name in ("avail", "claimed", "expiry")
        )
        self.states, self.bodies = (
            {int.from_bytes(member): value for member, value in admin.hgetall(keys[name]).items()}
            for name in ("states", "bodies")
        )
        self.ids = {int.from_bytes(member): id for id, member in admin.hgetall(keys["ids"]).items()}
        self.exists = admin.exists(keys["stream"]) == 1

    def check(self) -> None:
        """Assert that each message is in exactly one structure, and that structures have no other entries."""
        assert self.exists == bool(self.entries)
        every = set(self.entries)
        assert set(self.expiry) == set(self.ids) == every
        lane = every - set(self.avail) - set(self.claimed)
        assert not set(self.avail) & set(self.claimed)
        assert set(self.avail) | set(self.claimed) <= every
        assert set(self.claimed) <= set(self.states) <= every - lane
        large = {at for at, value in self.entries.items() if struct.unpack_from(">I", value, 31)[0] >= 1024}
        assert set(self.bodies) == large
        assert all(int.from_bytes(value[1:7]) == at for at, value in self.entries.items())
        head, last = self.state.get(b"head", 0), self.state.get(b"laned", 0)
        came_with_delay = {at for at, value in self.entries.items() if value[0]}
        assert lane == {at for at in every if head < at <= last} - came_with_delay
        moments = [int.from_bytes(self.entries[at][7:15]) for at in sorted(lane)]
        assert all(one <= other for one, other in pairwise(moments))


class Lanes:
    """A scene on Redis, and one in memory that gets the same operations."""

    def __init__(self, server: RedisServer, closing: ExitStack) -> None:
        self.admin: Any = redis.Redis(port=server.port)
        storage, other = connect(server.uri), connect("memory:")
        closing.callback(storage.close)
        closing.callback(other.close)
        clock = ManualClock(storage.now())
        self.scene, self.other = Scene(storage, clock, QUEUE), Scene(other, clock, QUEUE)
        self.pair = (self.scene, self.other)

    def check(self) -> None:
        for name in ("jobs", "next"):
            Places(self.admin, QueueRef("acme", name)).check()

    def post(self, count: int, *, delay: int = 0, ttl: int = 3600, size: int = 5) -> list[str]:
        new = [Draft(id, b'"%b"' % (b"x" * size), ttl, delay, "alice") for id in new_ids(count, self.scene.now)]
        for scene in self.pair:
            scene.storage.messages.post(scene.queue, new, scene.now)
        return ids_of(new)

    def same(self, work: Any) -> Any:
        """Do the work on both, assert equal results, and return the result."""
        found, other = work(self.scene), work(self.other)
        assert found == other
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def lanes(server: RedisServer) -> Iterator[Lanes]:
    with ExitStack() as closing, redis.Redis(port=server.port) as admin:
        admin.flushall()
        yield Lanes(server, closing)


def test_what_is_behind_many_delayed_ones_is_claimed_at_once(lanes: Lanes):
    """Any number of delayed messages may be in between; once ready, all are in the order of (available, sequence)."""
    first = lanes.post(1)
    late = [id for _ in range(4) for id in lanes.post(3 * STEPS // 4, delay=50)]
    second = lanes.post(2)
    between = lanes.post(1, delay=20)
    third = lanes.post(1)
    lanes.check()
    assert lanes.same(lambda scene: scene.ready()) == 4
    assert lanes.same(lambda scene: scene.page()) == [*first, *second, *third]
    claim = lanes.scene.storage.claims.create(QUEUE, lanes.scene.request(10), lanes.scene.now).claim
    assert claim is not None
    assert ids_of(claim.messages) == [*first, *second, *third]
    lanes.check()
    lanes.scene.tick(50)
    assert lanes.scene.claimable(STEPS) == [*between, *late[: STEPS - 1]]
    lanes.check()


@pytest.mark.parametrize("delayed", [True, False])
def test_claimed_messages_in_front_of_the_lane_are_not_read_by_a_listing(lanes: Lanes, delayed: bool):
    lanes.post(3 * STEPS)
    late = lanes.post(1, delay=50)
    for _ in range(30):
        lanes.same(lambda scene: len(scene.claimable(100)))
    behind = lanes.post(5)
    every = [*late, *behind] if delayed else behind
    before = lanes.admin.info("commandstats")["cmdstat_xrange"]["calls"]
    for _ in range(10):
        assert lanes.scene.page(ListFilter(delayed=delayed), 5) == every[:5]
    assert lanes.admin.info("commandstats")["cmdstat_xrange"]["calls"] - before <= 30
    assert lanes.same(lambda scene: scene.page(ListFilter(delayed=delayed), 10)) == every


def test_a_lane_from_a_false_future_blocks_nobody(lanes: Lanes):
    """Messages posted there keep their time; later ones are claimed, counted and listed, and do not join that lane."""
    days = 864_000
    early = lanes.post(2)
    future = lanes.scene.now + days
    new = [Draft(id, b"1", 3 * days, 0, "alice") for id in new_ids(STEPS + 5, future)]
    for scene in lanes.pair:
        scene.storage.messages.post(scene.queue, new, future)
    assert lanes.same(lambda scene: scene.ready()) == 2
    fresh = lanes.post(3, ttl=3 * days)
    lanes.check()
    assert lanes.same(lambda scene: scene.ready()) == 5
    assert lanes.same(lambda scene: scene.page()) == [*early, *fresh]
    assert lanes.same(lambda scene: scene.pop(4)) == [*early, *fresh[:2]]
    assert lanes.same(lambda scene: scene.due()) is not None
    assert lanes.same(lambda scene: scene.claimable()) == fresh[2:]
    lanes.scene.tick(days)
    assert lanes.same(lambda scene: scene.pop(2000)) == [*fresh[2:], *ids_of(new)]
    lanes.check()


def test_expired_ones_in_front_of_a_lane_are_removed_once(lanes: Lanes):
    """Removal takes limited steps; messages ready since later do not overtake the messages behind the expired ones."""
    for _ in range(3):
        lanes.post(STEPS, ttl=60)
    fresh, late = lanes.post(2), lanes.post(1, delay=10)
    lanes.scene.tick(61)
    found = lanes.scene.storage.claims.create(QUEUE, lanes.scene.request(1), lanes.scene.now).claim
    assert found is not None
    assert ids_of(found.messages) == fresh[:1]
    lanes.check()
    assert lanes.scene.pop() == [fresh[1], *late]
    lanes.check()


def test_expired_ones_in_front_of_the_others_are_not_overtaken(lanes: Lanes):
    """The first message of the lane is ready at once, but has been ready for a shorter time."""
    for _ in range(3):
        lanes.post(STEPS, delay=1, ttl=60)
    early = lanes.post(1, delay=1)
    lanes.scene.tick(2)
    fresh = lanes.post(1)
    lanes.scene.tick(60)
    assert lanes.scene.pop(1) == early
    lanes.check()
    assert lanes.scene.pop(1) == fresh
    lanes.check()


def test_more_claims_than_a_step_lapse_at_once(lanes: Lanes):
    """Their messages are delivered in the order of the claims' expiry; counts are right even before."""
    posted = [id for _ in range(3) for id in lanes.post(STEPS)]
    for number in range(3):
        assert lanes.same(lambda scene, ttl=100 + number: ids_of(scene.take(STEPS, ttl=ttl).messages))
    fresh = lanes.post(1)
    lanes.scene.tick(200)
    depth = lanes.scene.depth()
    assert depth is not None
    assert (depth.ready, depth.claimed, depth.delayed) == (3001, 0, 0)
    assert lanes.scene.page(limit=5) == posted[:5]
    assert lanes.scene.ready(5000) == 3001
    lanes.check()
    assert lanes.scene.pop(4000) == [*fresh, *posted]
    lanes.check()


def test_messages_that_lie_apart_are_found(lanes: Lanes):
    """The ids are in any order, with other messages in between and some deleted."""
    posted = lanes.post(500)
    some = [*posted[400:450], *posted[::7][::-1], posted[499], posted[0]]
    lanes.same(lambda scene: scene.delete_many(posted[100:110]))
    wanted = [id for id in dict.fromkeys(some) if id not in posted[100:110]]
    assert lanes.same(lambda scene: ids_of(scene.get(some))) == wanted
    lanes.check()


class Fuzz:
    """Random verbs, with many messages at a time, on both stores."""

    def __init__(self, lanes: Lanes, seed: int) -> None:
        self.lanes = lanes
        self.random = random.Random(seed)
        self.known: list[str] = []
        self.claims: list[str] = []
        self.commits = 0

    def some(self, most: int = 40) -> list[str]:
        return self.random.sample(self.known, min(len(self.known), self.random.randrange(1, most)))

    def post(self) -> None:
        delay, ttl = self.random.choice([0, 0, 0, 3, 40]), self.random.choice([60, 300, 3600])
        size = self.random.choice([5, 5, 1022, 1021, 5000])
        self.known += self.lanes.post(self.random.choice([1, 5, 60, 130]), delay=delay, ttl=ttl, size=size)

    def claim(self) -> None:
        name, limit = new_ids(1, self.lanes.scene.now)[0], self.random.choice([1, 10, 100])
        lease, bytes = Lease(name, self.random.choice([2, 60, 600]), 60), self.random.choice([10**9, 10**9, 3000])
        wait = self.random.choice([Redelivery(0), Redelivery(0), Redelivery(20)])

        def create(scene: Scene) -> list[str]:
            request = scene.request(limit, name=name, ttl=lease.ttl, redelivery=wait, max_bytes=bytes)
            claim = scene.storage.claims.create(scene.queue, request, scene.now).claim
            return [] if claim is None else ids_of(claim.messages)

        if self.lanes.same(create):
            self.claims.append(name)

    def on_claim(self) -> None:
        if not self.claims:
            return
        claim, ids = self.random.choice(self.claims), self.some()

        def verb(scene: Scene, number: int) -> Any:
            try:
                match number:
                    case 0:
                        return scene.release(claim)
                    case 1:
                        return scene.release(claim, 15)
                    case 2:
                        return scene.renew(claim, ttl=120)
                    case 3:
                        return scene.settle(claim, rest=True, history=600)
                    case 4:
                        return scene.commit(self.commits, settle=[ClaimRef(scene.queue, claim)])
                    case _:
                        parts = ids[:5], ids[5:10], ids[10:]
                        return scene.settle(
                            claim,
                            delete=parts[0],
                            release=[Release(id) for id in parts[1]],
                            move=[Move(id, "next") for id in parts[2]],
                        )
            except Exception as error:  # noqa: BLE001
                return type(error)

        self.commits += 1
        number = self.random.randrange(8)
        self.lanes.same(lambda scene: verb(scene, number))

    def pop(self) -> None:
        limit, history = self.random.choice([1, 10, 100]), self.random.choice([0, 600])
        self.lanes.same(lambda scene: scene.pop(limit, history))

    def by_ids(self) -> None:
        ids, moves = self.some(), self.random.random() < 0.5
        if moves:
            to = self.random.choice(["next", "jobs"])
            self.lanes.same(lambda scene: scene.move(ids, to))
        else:
            self.lanes.same(lambda scene: scene.delete_many(ids))

    def tick(self) -> None:
        self.lanes.scene.tick(self.random.choice([0.001, 1, 2.5, 30, 61]))

    def sweep(self) -> None:
        self.lanes.same(lambda scene: scene.reclaimed() and None)

    def look(self) -> None:
        view = ListFilter(claimed=self.random.random() < 0.5, delayed=self.random.random() < 0.5)
        limit = self.random.choice([1, 7, 200])
        self.lanes.same(lambda scene: ids_of(scene.walk(view, limit=limit)))
        self.lanes.same(lambda scene: [(one.message.id, one.outcome) for one in scene.tail(limit)])
        self.lanes.same(lambda scene: scene.counts())
        self.lanes.same(lambda scene: (scene.due(), scene.ready(10_000)))

        def depth(scene: Scene) -> Any:
            found = scene.depth()
            return found and (found.ready, found.delayed, found.claimed)

        self.lanes.same(depth)

        def seen(scene: Scene) -> list[Any]:
            return [
                (one.id, one.available, one.expires, one.created, one.claim, one.claim_count, len(one.body))
                for one in scene.walk(EVERYTHING)
            ]

        self.lanes.same(seen)

    def run(self, steps: int) -> None:
        verbs = [self.post, self.post, self.claim, self.claim, self.on_claim, self.on_claim, self.pop, self.by_ids]
        verbs += [self.tick, self.look, self.sweep]
        for _ in range(steps):
            self.random.choice(verbs)()
            self.lanes.check()


@pytest.mark.parametrize("seed", rotated(range(8), 2))
def test_a_queue_answers_as_one_in_memory_does(lanes: Lanes, seed: int):
    Fuzz(lanes, seed).run(120 if CAMPAIGN else 60)
