# SPDX-License-Identifier: Apache-2.0
"""Settling a claim: acknowledge, release and move in one round trip (extensions, section 3, laws L2, L3 and L7)."""

import contextlib
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import EVERYTHING, Scene, ids_of, near, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import ClaimNotFound
from zq.model import ListFilter, Move, Release, SettleResult

pytestmark = pytest.mark.every_server


def test_a_settlement_applies_each_action_to_its_messages(scene: Scene):
    """The settlement deletes, releases, delays, moves and buries. Two messages that it does not name stay claimed."""
    posted = scene.post(7)
    claim = scene.take(7)
    told = scene.settle(
        claim.id,
        delete=posted[:1],
        release=[Release(posted[1]), Release(posted[2], 30)],
        move=[Move(posted[3], "next"), Move(posted[4], "dead", reason="schema mismatch")],
    )
    assert told == SettleResult(1, 2, 1, 1, [])
    assert scene.held(claim.id) == sorted(posted[5:])
    assert scene.page() == posted[1:2]
    assert scene.page(ListFilter(delayed=True)) == posted[1:3]
    assert ids_of(scene.walk()) == posted[1:3] + posted[5:]
    assert scene.counts() == (2, 2)
    assert scene.at("next").claimable() == posted[3:4]
    assert scene.at("dead").claimable() == posted[4:5]


def test_a_settlement_of_all_ends_the_claim(scene: Scene):
    """When its last message leaves in any way, the claim is unknown to every verb."""
    for turn, way in enumerate(["delete", "rest", "release", "move"]):
        room = scene.at(f"q{turn}")
        [id] = room.post(1)
        claim = room.take()
        settlement = {
            "delete": {"delete": [id]},
            "rest": {"rest": True},
            "release": {"release": [Release(id)]},
            "move": {"move": [Move(id, "next")]},
        }[way]
        assert room.settle(claim.id, **settlement).lost == []
        for verb in (room.held, room.renew, partial(room.settle, rest=True)):
            with pytest.raises(ClaimNotFound):
                verb(claim.id)
        assert room.counts() == (0, 1 if way == "release" else 0)


def test_the_rest_is_every_unnamed_message_of_the_claim(scene: Scene):
    """Named messages have their own action. Messages of other claims and ready messages stay."""
    posted = scene.post(8)
    claim, other = scene.take(5), scene.take(1)
    told = scene.settle(claim.id, rest=True, release=[Release(posted[1])], move=[Move(posted[2], "next")])
    assert told == SettleResult(3, 1, 1, 0, [])
    assert ids_of(scene.walk()) == posted[1:2] + posted[5:]
    assert scene.held(other.id) == posted[5:6]
    assert scene.claimable() == posted[1:2] + posted[6:]


def test_a_thousand_messages_are_settled_at_once(scene: Scene):
    posted = scene.post(1500)
    claim = scene.take(1000)
    back = [Release(id) for id in posted[200:400]]
    assert scene.settle(claim.id, delete=posted[:200], release=back) == SettleResult(200, 200, 0, 0, [])
    assert scene.counts() == (600, 700)
    assert scene.settle(claim.id, rest=True) == SettleResult(600)
    assert scene.page(limit=2000) == posted[200:400] + posted[1000:]
    assert scene.counts() == (0, 700)


def test_messages_outside_the_claim_are_returned_as_lost_and_unchanged(scene: Scene):
    """Removed, free, delayed and unknown messages, and messages of other claims, are lost, in the given order."""
    posted = scene.post(6)
    elsewhere = scene.at("elsewhere").post(1)
    claim, other = scene.take(4), scene.take(1)
    delayed = scene.post(1, delay=60)
    scene.delete_many(posted[:1])
    told = scene.settle(
        claim.id,
        delete=[posted[4], "unknown", posted[1]],
        release=[Release(delayed[0], 0), Release(posted[2]), Release(posted[0])],
        move=[Move(elsewhere[0], "next"), Move(posted[3], "next"), Move(posted[5], "next")],
    )
    assert told.lost == [posted[4], "unknown", delayed[0], posted[0], elsewhere[0], posted[5]]
    assert (told.deleted, told.released, told.moved, told.buried) == (1, 1, 1, 0)
    assert scene.held(other.id) == posted[4:5]
    assert ids_of(scene.walk()) == [posted[2], posted[4], posted[5], delayed[0]]
    assert scene.page() == [posted[2], posted[5]]
    assert scene.at("elsewhere").page() == elsewhere
    assert scene.at("next").page() == posted[3:4]


def test_a_repeat_while_the_claim_lives_is_harmless(scene: Scene):
    """All named messages are lost. The claim keeps the messages that it still holds."""
    posted = scene.post(4)
    claim = scene.take()
    settlement = {"delete": posted[:1], "release": [Release(posted[1], 60)], "move": [Move(posted[2], "next")]}
    assert scene.settle(claim.id, **settlement) == SettleResult(1, 1, 1)
    assert scene.settle(claim.id, **settlement) == SettleResult(lost=posted[:3])
    assert scene.held(claim.id) == posted[3:]
    assert scene.at("next").page() == posted[2:3]


def test_a_late_holder_settles_nothing(scene: Scene):
    """After its expiry, the claim is unknown, whether another claim has taken its messages or not."""
    posted = scene.post(2)
    late = scene.take(ttl=60)
    scene.tick(60)
    with pytest.raises(ClaimNotFound):
        scene.settle(late.id, delete=posted[:1], move=[Move(posted[1], "next")])
    claim = scene.take()
    with pytest.raises(ClaimNotFound):
        scene.settle(late.id, rest=True)
    assert scene.held(claim.id) == sorted(posted)
    assert not scene.at("next").exists()


def test_a_holder_settles_to_the_last_millisecond(scene: Scene):
    posted = scene.post(2)
    claim = scene.take(ttl=60)
    scene.renew(claim.id, ttl=100)
    scene.tick(99.999)
    assert scene.settle(claim.id, delete=posted) == SettleResult(2)
    assert scene.is_empty()


@pytest.mark.parametrize("claim", ["unknown", "", "a/b"])
def test_an_unknown_claim_settles_nothing(scene: Scene, claim: str):
    """A missing queue is not created, and a live claim next to the unknown one is unchanged."""
    with pytest.raises(ClaimNotFound):
        scene.settle(claim, rest=True)
    assert not scene.exists()
    posted = scene.post(2)
    held = scene.take(1)
    with pytest.raises(ClaimNotFound):
        scene.settle(claim, delete=posted)
    with pytest.raises(ClaimNotFound):
        scene.at("other").settle(held.id, rest=True)
    assert scene.held(held.id) == posted[:1]
    assert scene.counts() == (1, 1)


def test_a_settlement_without_actions_requires_a_live_claim(scene: Scene):
    """It changes no message of a live claim. An unknown, lapsed or emptied claim is not found."""
    with pytest.raises(ClaimNotFound):
        scene.settle("unknown")
    posted = scene.post(2)
    claim, lapsing = scene.take(1, ttl=300), scene.take(1, ttl=60)
    assert scene.settle(claim.id) == SettleResult()
    assert scene.held(claim.id) == posted[:1]
    scene.tick(60)
    scene.delete_many(posted[:1])
    for gone in (lapsing, claim):
        with pytest.raises(ClaimNotFound):
            scene.settle(gone.id)
    assert scene.page() == posted[1:]


def test_a_message_released_by_a_settlement_returns_to_its_position(scene: Scene):
    """Without a delay the message comes before later posts; with delay 0 it comes behind them."""
    posted = scene.post(2)
    claim = scene.take(2)
    scene.tick(5)
    later = scene.post(1)
    scene.tick(5)
    assert scene.settle(claim.id, release=[Release(posted[0], 0), Release(posted[1])]) == SettleResult(released=2)
    assert scene.one(posted[0]).available == near(scene.now)
    assert scene.one(posted[1]).available == near(scene.now - 10)
    assert [message.claim_count for message in scene.get(posted)] == [1, 1]
    assert scene.claimable() == [posted[1], *later, posted[0]]


def test_a_message_released_by_a_settlement_with_a_delay_is_delayed(scene: Scene):
    posted = scene.post(2)
    claim = scene.take(2)
    scene.settle(claim.id, release=[Release(posted[0], 30)])
    scene.tick(29.999)
    assert (scene.claim(), scene.pop(), scene.page()) == (None, [], [])
    assert scene.page(ListFilter(delayed=True)) == posted[:1]
    scene.tick(0.001)
    assert scene.claimable() == posted[:1]
    assert scene.held(claim.id) == posted[1:]


@pytest.mark.fresh_store
def test_settled_messages_are_not_delivered_again(scene: Scene):
    """No verb shows deleted messages, even after maintenance and the end of the claim (L3)."""
    posted = scene.post(3)
    claim = scene.take(ttl=60)
    scene.settle(claim.id, delete=posted[:2])
    for seconds in (0, 60, 400):
        scene.tick(seconds)
        scene.reclaimed()
        assert ids_of(scene.walk(EVERYTHING)) == posted[2:]
        assert scene.get(posted) == scene.get(posted[2:])
    assert scene.claimable() == posted[2:]


def attempt(scene: Scene, claim: str, ids: list[str], back: bool = False) -> SettleResult:
    """Delete all messages, or release them if ``back``. If the claim is unknown, return all as lost."""
    try:
        return scene.settle(claim, delete=[] if back else ids, release=[Release(id, 60) for id in ids if back])
    except ClaimNotFound:
        return SettleResult(lost=ids)


@ONE_OR_TWO_CONNECTIONS
def test_two_settlements_of_one_claim_share_no_message(scene: Scene):
    """Each message is settled by one settlement. The other one returns it as lost or finds no claim."""
    for turn in range(20):
        room = scene.at(f"q{turn}")
        posted = room.post(6)
        claim = room.take()
        settle = partial(attempt, room, claim.id, posted)
        one, two = run_together(settle, partial(settle, back=turn % 2 == 1))
        assert sorted(one.lost + two.lost) == sorted(posted)
        assert one.deleted + two.deleted + two.released == 6
        assert room.counts() == (0, two.released)


@ONE_OR_TWO_CONNECTIONS
def test_a_settlement_races_the_end_of_its_claim(scene: Scene):
    """A holder settles at the last moment while others claim: each message is processed by only one consumer."""
    for turn in range(10):
        room = scene.at(f"q{turn}")
        posted = room.post(8)
        late = room.take(8, ttl=60)
        holder = Scene(room.storage, ManualClock(room.now + 59.999), room.queue)
        room.tick(60)
        told, *taken = run_together(partial(attempt, holder, late.id, posted), *[partial(room.claimable, 2)] * 4)
        claimed = [id for some in taken for id in some] + room.claimable()
        assert sorted(claimed) == sorted(told.lost)
        assert told.deleted == 8 - len(claimed)
        assert ids_of(room.walk()) == [id for id in posted if id in claimed]
        assert room.counts() == (len(claimed), 0)


@ONE_OR_TWO_CONNECTIONS
@pytest.mark.parametrize("rival", ["renew", "release"])
def test_a_settlement_races_its_own_holder(scene: Scene, rival: str):
    """Deleted messages stay deleted, only released messages are lost, and the claim ends."""
    for turn in range(10):
        room = scene.at(f"q{turn}")
        posted = room.post(5)
        claim = room.take()

        def interfere(room: Scene = room, claim: str = claim.id) -> SettleResult:
            with contextlib.suppress(ClaimNotFound):
                getattr(room, rival)(claim)
            return SettleResult()

        told = run_together(partial(attempt, room, claim.id, posted), interfere)[0]
        assert told.deleted + len(told.lost) == 5
        assert room.page() == [id for id in posted if id in told.lost]
        assert told.lost == [] or rival == "release"
        with pytest.raises(ClaimNotFound):
            room.held(claim.id)
