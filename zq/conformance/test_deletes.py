# SPDX-License-Identifier: Apache-2.0
"""Deleting one or many messages: permissions and claims (contract 7.6, 7.7; law L2)."""

import pytest

from zq.conformance.builders import Scene, ids_of
from zq.errors import ClaimNotFound, ClaimNotHeld, MessageClaimed


def test_a_deleted_message_is_gone_for_every_verb(scene: Scene):
    a, b = scene.post(2)
    scene.delete(a)
    assert scene.get([a]) == []
    assert ids_of(scene.walk()) == [b]
    assert scene.counts() == (0, 1)
    assert scene.claimable() == [b]


@pytest.mark.parametrize("claim", ["", "unknown"])
@pytest.mark.parametrize("message", ["missing", "", "x" * 32])
def test_deleting_a_missing_message_with_any_claim_succeeds(scene: Scene, message: str, claim: str):
    scene.delete(message, claim)
    assert not scene.exists()
    posted = scene.post(2)
    scene.delete(message, claim)
    assert ids_of(scene.walk()) == posted


def test_deleting_a_message_twice_with_a_live_claim_succeeds(scene: Scene):
    """A second delete by the holder succeeds and keeps the rest of the claim."""
    a, b = scene.post(2)
    claim = scene.take()
    scene.delete(a, claim.id)
    scene.delete(a, claim.id)
    assert scene.held(claim.id) == [b]


def test_a_delayed_message_may_be_deleted(scene: Scene):
    [id] = scene.post(1, delay=60)
    scene.delete(id)
    scene.tick(60)
    assert scene.is_empty()
    assert scene.claimable() == []


def test_an_unclaimed_message_is_not_deleted_by_a_claim(scene: Scene):
    """A live claim of other messages and an unknown claim cannot delete the message."""
    held, free = scene.post(2)
    claim = scene.take(1)
    for named in [claim.id, "unknown"]:
        with pytest.raises(ClaimNotHeld):
            scene.delete(free, named)
    assert scene.page() == [free]
    assert scene.held(claim.id) == [held]


def test_a_claimed_message_is_not_deleted_without_its_claim(scene: Scene):
    """A delete without a claim, with an unknown one or with another live one is refused; the message stays."""
    held, other = scene.post(2)
    claim = scene.take(1)
    stranger = scene.take(1)
    for named in ["", "unknown", stranger.id]:
        with pytest.raises(MessageClaimed):
            scene.delete(held, named)
    assert scene.held(claim.id) == [held]
    assert scene.held(stranger.id) == [other]


def test_the_holder_deletes_its_message(scene: Scene):
    """The message leaves the queue and the claim; the claim keeps the rest."""
    a, b = scene.post(2)
    claim = scene.take()
    scene.delete(a, claim.id)
    assert scene.held(claim.id) == [b]
    assert ids_of(scene.walk()) == [b]
    scene.release(claim.id)
    assert scene.claimable() == [b]


def test_a_released_claim_deletes_nothing(scene: Scene):
    [id] = scene.post()
    claim = scene.take()
    scene.release(claim.id)
    with pytest.raises(ClaimNotHeld):
        scene.delete(id, claim.id)
    assert scene.page() == [id]
    scene.delete(id)
    assert scene.is_empty()


def test_a_lapsed_claim_deletes_nothing(scene: Scene):
    """After the end of the claim, its holder cannot delete the message, but a caller without a claim can."""
    [id] = scene.post()
    claim = scene.take(ttl=60)
    scene.tick(59.999)
    with pytest.raises(MessageClaimed):
        scene.delete(id)
    scene.tick(0.001)
    with pytest.raises(ClaimNotHeld):
        scene.delete(id, claim.id)
    assert scene.page() == [id]
    scene.delete(id)
    assert scene.is_empty()


def test_a_lapsed_claim_cannot_delete_a_message_of_a_new_claim(scene: Scene):
    [id] = scene.post()
    late = scene.take(ttl=60)
    scene.tick(60)
    new = scene.take()
    with pytest.raises(MessageClaimed):
        scene.delete(id, late.id)
    assert scene.held(new.id) == [id]


def test_a_claim_of_another_queue_deletes_nothing(scene: Scene):
    [id] = scene.post()
    other = scene.at("other")
    other.post()
    foreign = other.take()
    with pytest.raises(ClaimNotHeld):
        scene.delete(id, foreign.id)
    claim = scene.take()
    with pytest.raises(MessageClaimed):
        scene.delete(id, foreign.id)
    other.delete(id, claim.id)
    assert scene.held(claim.id) == [id]


def test_a_bulk_delete_by_the_owner_ignores_claims(scene: Scene):
    """The owner's bulk delete ignores claims, missing ids and repeated ids, and ends claims that become empty."""
    posted = scene.post(4) + scene.post(1, delay=60)
    claim = scene.take(2)
    emptied = scene.take(1)
    scene.delete_many([posted[0], "missing", posted[2], posted[0], posted[4], ""])
    assert ids_of(scene.walk()) == [posted[1], posted[3]]
    assert scene.held(claim.id) == [posted[1]]
    with pytest.raises(ClaimNotFound):
        scene.held(emptied.id)
    scene.tick(61)
    assert scene.claimable() == [posted[3]]


def test_a_bulk_delete_ignores_ids_of_other_queues(scene: Scene):
    kept = scene.post(2)
    other = scene.at("other")
    other.post()
    other.delete_many(kept)
    scene.at("nowhere").delete_many(kept)
    assert scene.page() == kept


def test_a_bulk_delete_with_claims_removes_messages_that_they_hold(scene: Scene):
    """Repeated ids, repeated claims and a claim that holds none of the messages do no harm."""
    posted = scene.post(4)
    one, two, spare = scene.take(2), scene.take(1), scene.take(1)
    scene.delete_many(posted[:3] + posted[:1], [one.id, two.id, two.id, spare.id, "unknown"])
    assert ids_of(scene.walk()) == posted[3:]
    assert scene.held(spare.id) == posted[3:]
    with pytest.raises(ClaimNotFound):
        scene.held(one.id)


def test_a_bulk_delete_with_claims_is_refused_if_one_message_is_not_held(scene: Scene):
    """Nothing is deleted. The first message that the claims do not hold determines the error."""
    posted = scene.post(3)
    mine, other = scene.take(1), scene.take(1)
    for ids, claims in [
        ([posted[0], posted[1]], [mine.id]),
        ([posted[0], posted[1], posted[2]], [mine.id]),
        ([posted[0]], []),
        ([posted[2], posted[0]], []),
        ([posted[0]], ["unknown"]),
        ([posted[0]], ["unknown", other.id]),
    ]:
        with pytest.raises(MessageClaimed):
            scene.delete_many(ids, claims)
    for ids, claims in [
        ([posted[0], posted[2]], [mine.id]),
        ([posted[2], posted[1]], [mine.id]),
        ([posted[2]], [mine.id, other.id]),
    ]:
        with pytest.raises(ClaimNotHeld):
            scene.delete_many(ids, claims)
    assert ids_of(scene.walk()) == posted
    assert scene.held(mine.id) == posted[:1]
    assert scene.held(other.id) == posted[1:2]


def test_a_bulk_delete_without_claims_removes_unclaimed_messages(scene: Scene):
    """A caller without claims deletes ready, delayed and lapsed messages; missing ids do no harm."""
    posted = scene.post(2) + scene.post(1, delay=60) + scene.post(1)
    scene.take(1, ttl=60)
    scene.tick(60)
    scene.delete_many([*posted[:3], "missing"], [])
    assert ids_of(scene.walk()) == posted[3:]


def test_a_bulk_delete_with_a_lapsed_claim_is_refused(scene: Scene):
    posted = scene.post(2)
    lapsed = scene.take(1, ttl=60)
    released = scene.take(1)
    scene.release(released.id)
    scene.tick(60)
    for claim in [lapsed, released]:
        with pytest.raises(ClaimNotHeld):
            scene.delete_many(ids_of(claim.messages), [claim.id])
    assert ids_of(scene.walk()) == posted


def test_a_bulk_delete_with_claims_ignores_missing_ids(scene: Scene):
    posted = scene.post(2)
    claim = scene.take()
    scene.delete_many(["missing", posted[0]], [claim.id])
    assert scene.held(claim.id) == posted[1:]


def test_a_bulk_delete_removes_a_thousand_messages(scene: Scene):
    posted = scene.post(1100)
    claim = scene.take(600)
    scene.delete_many(posted[:1000])
    assert ids_of(scene.walk()) == posted[1000:]
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
