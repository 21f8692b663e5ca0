# SPDX-License-Identifier: Apache-2.0
"""Named claims: any number of attempts under the caller's name create one claim (extensions contract, section 9)."""

from functools import partial

import pytest

from zq.conformance.builders import Scene, ids_of, near, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.core.redelivery import DeadLetters, Redelivery
from zq.errors import ClaimNotFound
from zq.model import ClaimRequest, Lease

NAME = "etl-orders.17.0"


def test_the_first_attempt_of_a_name_creates_a_claim(scene: Scene):
    """The claim holds complete messages in order, with claim count and expiry. It did not exist before."""
    posted = scene.post(5)
    made = scene.storage.claims.create(scene.queue, ClaimRequest(Lease(NAME, 300, 60), 3, named=True), scene.now)
    claim, there = made.claim, made.existing
    assert claim is not None
    assert (claim.id, claim.ttl, claim.created, there) == (NAME, 300, near(scene.now), False)
    assert ids_of(claim.messages) == posted[:3]
    assert [(m.claim, m.claim_count, m.available) for m in claim.messages] == [(NAME, 1, near(scene.now + 300))] * 3
    assert scene.held(NAME) == sorted(posted[:3])
    assert scene.get(posted[:3]) == claim.messages


def test_a_repeat_returns_only_messages_that_the_claim_still_holds(scene: Scene):
    """The repeat returns no further messages, and keeps the claim's expiry, count and terms."""
    posted = scene.post(6)
    assert scene.named(NAME, 4, ttl=300) == (posted[:4], False)
    scene.delete(posted[1], NAME)
    scene.tick(10)
    for limit in (1, 4, 100):
        lease = Lease(NAME, 9999, 0)
        made = scene.storage.claims.create(scene.queue, ClaimRequest(lease, limit, named=True), scene.now)
        claim = made.claim
        assert made.existing is True
        assert claim == scene.storage.claims.get(scene.queue, NAME, scene.now)
        assert (claim.ttl, claim.created) == (300, near(scene.now - 10))
        assert ids_of(claim.messages) == [posted[0], *posted[2:4]]
        assert [(m.claim_count, m.available) for m in claim.messages] == [(1, near(scene.now + 290))] * 3
    scene.tick(290)
    assert scene.claimable() == [posted[4], posted[5], posted[0], *posted[2:4]]


def test_an_empty_named_claim_is_not_created(scene: Scene):
    """The claim does not create a missing queue. If all messages are claimed or delayed, the name stays unused."""
    assert scene.named(NAME) == ([], False)
    assert not scene.exists()
    scene.post(2)
    scene.take()
    scene.post(1, delay=60)
    assert scene.named(NAME) == ([], False)
    with pytest.raises(ClaimNotFound):
        scene.held(NAME)
    posted = scene.post(1)
    assert scene.named(NAME) == (posted, False)


@pytest.mark.parametrize("end", ["lapse", "release", "settle", "delete", "lapse of all"])
def test_a_claim_name_can_be_reused_after_its_claim(scene: Scene, end: str):
    """After a lapse, a release or its last message, the next attempt creates a claim that holds only new messages."""
    posted = scene.post(3)
    scene.named(NAME, 2, ttl=60)
    if end == "lapse":
        scene.tick(60)
    elif end == "release":
        scene.release(NAME)
    elif end == "settle":
        scene.settle(NAME, rest=True)
    elif end == "delete":
        scene.delete_many(posted[:2])
    else:
        assert scene.pop(1) == posted[2:]
        scene.tick(60)
    taken, there = scene.named(NAME, 1, ttl=60)
    assert (len(taken), there) == (1, False)
    assert scene.held(NAME) == taken
    assert scene.counts()[0] == 1
    scene.release(NAME)
    assert taken[0] in scene.page()


def test_lapsed_messages_are_not_held_by_the_next_claim_of_the_name(scene: Scene):
    """The new claim deletes, renews and releases only the messages that it has claimed itself."""
    posted = scene.post(3)
    scene.named(NAME, 3, ttl=60)
    scene.tick(60)
    assert scene.named(NAME, 1, ttl=60) == (posted[:1], False)
    assert scene.settle(NAME, delete=posted[1:]).lost == posted[1:]
    scene.renew(NAME, ttl=600)
    assert scene.page() == posted[1:]
    assert scene.settle(NAME, rest=True).deleted == 1
    assert scene.claimable() == posted[1:]


def test_get_returns_all_messages_of_a_named_claim(scene: Scene):
    """Get returns any number of messages, and every claim verb works by name."""
    posted = scene.post(1200)
    scene.named(NAME, 1100)
    assert scene.held(NAME) == sorted(posted[:1100])
    assert scene.named(NAME, 1) == (posted[:1100], True)
    scene.renew(NAME, ttl=600)
    scene.tick(599)
    assert scene.settle(NAME, delete=posted[:1000]).deleted == 1000
    scene.release(NAME)
    assert scene.claimable(300) == posted[1000:1100] + posted[1100:]


def test_equal_claim_names_in_two_queues_are_independent(scene: Scene):
    rooms = [scene, scene.at("other"), scene.rival]
    posted = [room.post(2) for room in rooms]
    assert [room.named(NAME) for room in rooms] == [(ids, False) for ids in posted]
    scene.settle(NAME, rest=True)
    assert [room.held(NAME) for room in rooms[1:]] == [sorted(ids) for ids in posted[1:]]


def test_claim_names_that_differ_in_a_character_are_distinct(scene: Scene):
    names = ["a.b", "a.B", "a..b", "a.b.", ".a.b", "a.bb", "a-b.", "a_b.", "x" * 127 + "."]
    posted = scene.post(len(names))
    assert [scene.named(name, 1) for name in names] == [([id], False) for id in posted]
    assert [scene.held(name) for name in names] == [[id] for id in posted]


def test_a_named_claim_buries_and_delays_like_any_other(scene: Scene):
    """The first attempt buries used-up messages and applies the redelivery delay. A repeat does neither."""
    old = scene.post(1)
    scene.release(scene.take().id)
    fresh = scene.post(2)
    rule = DeadLetters(scene.at("dead").queue, 1, None)
    create = partial(scene.claim_named, NAME, ttl=60, dead_letters=rule, redelivery=Redelivery(30, cap=600))
    for _ in range(2):
        claim = create()
        assert claim is not None
        assert ids_of(claim.messages) == fresh
    assert scene.at("dead").page() == old
    assert [message.available for message in scene.get(fresh)] == [near(scene.now + 90)] * 2
    scene.tick(90)
    assert create() is None
    assert scene.at("dead").page() == old + fresh


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_claims_with_one_name_create_one_claim(scene: Scene):
    """Eight threads claim: exactly one of them creates the claim, and all get its messages."""
    posted = scene.post(200)
    for turn in range(1, 21):
        name = f"{NAME}.{turn}"
        found = run_together(*[partial(scene.named, name, 3)] * 8)
        assert sorted(existed for _, existed in found) == [False] + [True] * 7
        assert [ids for ids, _ in found] == [found[0][0]] * 8
        assert sorted(found[0][0]) == scene.held(name)
        assert scene.counts() == (3 * turn, 200 - 3 * turn)
    assert ids_of(scene.walk()) == posted


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_claims_with_many_names_share_no_message(scene: Scene):
    """Two threads for each of four names compete with unnamed claims. Each message has one holder."""
    posted = scene.post(60)
    works = [partial(scene.named, f"c.{at % 4}", 5) for at in range(8)]
    told = run_together(*works, *[partial(scene.claimable, 5)] * 3)
    names = [(scene.held(f"c.{at}"), sorted(told[at][0]), sorted(told[at + 4][0])) for at in range(4)]
    assert all(held == one == two for held, one, two in names)
    taken = [id for held, _, _ in names for id in held] + [id for ids in told[8:] for id in ids]
    assert len(taken) == len(set(taken)) == scene.counts()[0]
    assert set(taken) <= set(posted)


@ONE_OR_TWO_CONNECTIONS
def test_a_repeat_racing_its_settlement_gets_the_old_claim_or_a_new_one(scene: Scene):
    for turn in range(10):
        room = scene.at(f"q{turn}")
        posted = room.post(4)
        room.named(NAME, 2)
        (ids, there), told = run_together(partial(room.named, NAME, 2), partial(room.settle, NAME, delete=posted[:2]))
        assert told.deleted == 2
        if there:
            assert set(ids) <= set(posted[:2])
            with pytest.raises(ClaimNotFound):
                room.held(NAME)
        else:
            assert ids == posted[2:]
            assert room.held(NAME) == sorted(posted[2:])
        assert ids_of(room.walk()) == posted[2:]
