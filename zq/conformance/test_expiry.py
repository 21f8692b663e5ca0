# SPDX-License-Identifier: Apache-2.0
"""Expired messages are invisible to every verb (law L3), and their space is reclaimed (law L9)."""

import pytest

from zq.conformance.builders import EVERYTHING, Scene, ids_of
from zq.core.redelivery import DeadLetters
from zq.errors import ClaimNotFound, ClaimNotHeld
from zq.model import Stats

pytestmark = pytest.mark.fresh_store


def test_a_message_lives_to_the_last_millisecond(scene: Scene):
    posted = scene.post(1, ttl=60)
    scene.tick(59.999)
    assert ids_of(scene.get(posted)) == posted
    assert scene.page() == posted
    assert scene.counts() == (0, 1)
    assert scene.pop() == posted


def test_a_message_is_gone_at_its_expiry_time(scene: Scene):
    posted = scene.post(2, ttl=60)
    scene.tick(60)
    assert scene.get(posted) == []
    assert ids_of(scene.walk(EVERYTHING)) == []
    assert scene.stats() == Stats()
    assert scene.claim() is None
    assert scene.pop() == []
    scene.tick(1000)
    assert scene.is_empty()


@pytest.mark.parametrize("verb", ["claim", "pop", "get", "list", "stats"])
def test_each_verb_hides_expired_messages_without_maintenance(scene: Scene, verb: str):
    posted = scene.post(1, ttl=60)
    kept = scene.post(1, ttl=120)
    scene.tick(60)
    found = {
        "claim": lambda: scene.claimable(),
        "pop": lambda: scene.pop(),
        "get": lambda: ids_of(scene.get(posted + kept)),
        "list": lambda: scene.page(),
        "stats": lambda: kept if scene.counts() == (0, 1) else scene.counts(),
    }[verb]()
    assert found == kept


def test_deleting_an_expired_message_succeeds_like_a_missing_one(scene: Scene):
    """The delete succeeds with any claim, alone and in bulk, as contract 7.6 requires for missing messages."""
    [id] = scene.post(1, ttl=60)
    scene.post(1)
    claim = scene.claim(1, ttl=30, grace=0)
    assert claim is not None
    scene.tick(60)
    scene.delete(id)
    scene.delete(id, claim.id)
    scene.delete(id, "unknown")
    scene.delete_many([id])
    scene.delete_many([id], [claim.id])
    assert scene.counts() == (0, 1)


def test_a_bulk_delete_of_expired_and_unclaimed_messages_is_refused(scene: Scene):
    """Expired ids need no claim. A living message that the claims do not hold refuses the call."""
    [gone] = scene.post(1, ttl=60)
    [kept] = scene.post(1)
    scene.tick(60)
    with pytest.raises(ClaimNotHeld):
        scene.delete_many([gone, kept], ["unknown"])
    assert scene.page() == [kept]


def test_a_held_message_lives_as_long_as_its_claim(scene: Scene):
    """With maintenance running, the message outlives its first expiry, until claim expiry + grace."""
    posted = scene.post(2, ttl=60)
    claim = scene.take(ttl=600, grace=30)
    scene.tick(60)
    scene.reclaimed()
    assert scene.held(claim.id) == sorted(posted)
    scene.tick(540)
    scene.reclaimed()
    assert scene.page() == posted
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    scene.tick(29.999)
    scene.reclaimed()
    assert scene.page() == posted
    scene.tick(0.001)
    assert scene.is_empty()
    scene.reclaimed()
    assert scene.claim() is None


def test_a_renewed_message_lives_as_long_as_its_claim(scene: Scene):
    """Maintenance between renewals does not remove the message."""
    posted = scene.post(1, ttl=60)
    claim = scene.take(ttl=60, grace=1)
    for _ in range(5):
        scene.tick(59)
        scene.renew(claim.id, ttl=60, grace=1)
        scene.reclaimed()
        assert scene.held(claim.id) == posted
    scene.tick(60)
    scene.reclaimed()
    assert scene.claimable() == posted


def test_without_grace_message_and_claim_end_together(scene: Scene):
    posted = scene.post(1, ttl=60)
    claim = scene.take(ttl=120, grace=0)
    scene.tick(119.999)
    assert scene.held(claim.id) == posted
    scene.tick(0.001)
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    with pytest.raises(ClaimNotFound):
        scene.renew(claim.id)
    assert scene.is_empty()
    assert scene.claim() is None


def test_expired_messages_do_not_block_living_ones_behind_them(scene: Scene):
    scene.post(1000, ttl=60)
    living = scene.post(4)
    scene.tick(60)
    assert scene.claimable(2) == living[:2]
    assert scene.pop(2) == living[2:]


@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_ten_thousand_expired_messages_are_skipped_in_a_few_calls(scene: Scene, verb: str):
    """Each call may skip a limited number of expired messages (L10)."""
    for _ in range(10):
        scene.post(1000, ttl=60)
    living = scene.post(2)
    scene.tick(60)
    calls = [scene.claimable(2) if verb == "claim" else scene.pop(2) for _ in range(12)]
    assert [id for taken in calls for id in taken] == living


def test_expired_messages_between_living_ones_are_skipped(scene: Scene):
    living: list[str] = []
    for _ in range(20):
        scene.post(2, ttl=60)
        living += scene.post(1)
    scene.tick(60)
    assert scene.claimable(10) == living[:10]
    assert scene.pop(10) == living[10:]


def test_an_expired_message_is_no_dead_letter(scene: Scene):
    scene.post(1, ttl=600)
    scene.release(scene.take(ttl=60).id)
    scene.tick(600)
    grave = scene.at("dead")
    assert scene.claim(dead_letters=DeadLetters(grave.queue, 1, 9999)) is None
    assert not grave.exists()


def test_maintenance_removes_each_expired_message_once(scene: Scene):
    scene.post(30, ttl=60)
    scene.at("other", project="rival").post(12, ttl=60, delay=900)
    kept = scene.post(7, ttl=61)
    assert scene.reclaimed() == 0
    scene.tick(60)
    assert scene.reclaimed() == 42
    assert scene.reclaimed() == 0
    assert scene.page() == kept
    scene.tick(1)
    assert scene.reclaimed() == 7


def test_maintenance_at_the_last_millisecond_removes_nothing(scene: Scene):
    posted = scene.post(3, ttl=60)
    scene.tick(59.999)
    assert scene.reclaimed() == 0
    assert scene.page() == posted
    scene.tick(0.001)
    assert scene.reclaimed() == 3


def test_maintenance_removes_thousands_of_messages(scene: Scene):
    short = [id for _ in range(5) for id in scene.post(1000, ttl=60)]
    living = scene.post(10)
    claim = scene.take(3, ttl=3000)
    scene.tick(60)
    assert scene.reclaimed() == 4997
    assert scene.reclaimed() == 0
    assert scene.held(claim.id) == sorted(short[:3])
    assert ids_of(scene.walk()) == short[:3] + living
    assert scene.counts() == (3, 10)


def test_maintenance_removes_no_living_message(scene: Scene):
    """Ready, delayed, claimed, lapsed and released messages and their claims survive any number of rounds."""
    posted = scene.post(6)
    delayed = scene.post(2, delay=900)
    lapsed = scene.take(1, ttl=60)
    scene.release(scene.take(1).id)
    live = scene.take(2, ttl=900)
    scene.tick(60)
    assert scene.reclaimed() == 0
    assert scene.counts() == (2, 6)
    assert scene.held(live.id) == sorted(ids_of(live.messages))
    assert ids_of(scene.walk()) == posted + delayed
    free = [id for id in posted if id not in ids_of(live.messages + lapsed.messages)]
    assert scene.claimable() == free + ids_of(lapsed.messages)


def test_maintenance_keeps_a_dead_letter_past_its_first_expiry(scene: Scene):
    posted = scene.post(1, ttl=600)
    scene.release(scene.take(ttl=60).id)
    grave = scene.at("dead")
    assert scene.claim(dead_letters=DeadLetters(grave.queue, 1, 1200)) is None
    scene.tick(600)
    assert scene.reclaimed() == 0
    assert grave.page() == posted
    scene.tick(600)
    assert scene.reclaimed() == 1


def test_maintenance_after_deletion_keeps_the_new_queue(scene: Scene):
    scene.post(20, ttl=60)
    scene.take(5, ttl=600)
    scene.storage.queues.delete(scene.queue)
    scene.post(20, ttl=60)
    scene.storage.queues.purge(scene.queue)
    new = scene.post(3, ttl=600)
    scene.reclaimed()
    assert scene.claimable() == new
    scene.tick(61)
    scene.reclaimed()
    assert ids_of(scene.walk()) == new
    assert scene.counts() == (3, 0)
