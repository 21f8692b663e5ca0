# SPDX-License-Identifier: Apache-2.0
"""Redelivery: when a claimed message can be claimed again (extensions 1 "States", 4, laws L4 and L5)."""

import pytest

from zq.conformance.builders import Scene, ids_of, near
from zq.core.redelivery import DeadLetters, Redelivery
from zq.errors import ClaimNotFound
from zq.model import ListFilter, Release

AFTER_30 = Redelivery(30, cap=600)
DOUBLING = Redelivery(10, exponential=True, cap=60)


def test_a_lapsed_message_waits_from_the_end_of_its_claim(scene: Scene):
    """The message is available at claim expiry + delay. Until then it is delayed and has no holder."""
    posted = scene.post(2)
    claim = scene.take(ttl=60, redelivery=AFTER_30)
    assert [message.available for message in claim.messages] == [near(scene.now + 90)] * 2
    scene.tick(60)
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    assert (scene.claim(), scene.pop(), scene.page()) == (None, [], [])
    assert scene.page(ListFilter(claimed=True)) == []
    assert scene.page(ListFilter(delayed=True)) == posted
    assert scene.counts() == (0, 2)
    assert [(message.claim, message.available) for message in scene.get(posted)] == [("", near(scene.now + 30))] * 2
    scene.tick(29.999)
    assert (scene.claim(), scene.pop(), scene.page()) == (None, [], [])
    scene.tick(0.001)
    assert scene.page() == posted
    assert scene.claimable() == posted


@pytest.mark.parametrize("way", ["release", "settle"])
def test_a_release_without_a_delay_starts_the_redelivery_delay(scene: Scene, way: str):
    """With a redelivery delay, the message does not return to its former position."""
    [id] = scene.post(1)
    claim = scene.take(ttl=60, redelivery=AFTER_30)
    scene.tick(10)
    if way == "release":
        scene.release(claim.id)
    else:
        scene.settle(claim.id, release=[Release(id)])
    assert scene.one(id).available == near(scene.now + 30)
    assert scene.counts() == (0, 1)
    scene.tick(29.999)
    assert scene.claim() is None
    scene.tick(0.001)
    assert scene.claimable() == [id]


@pytest.mark.parametrize("redelivery", [Redelivery(), AFTER_30])
@pytest.mark.parametrize("delay", [0, 5, 900])
def test_the_delay_of_a_release_replaces_the_redelivery_delay(scene: Scene, delay: int, redelivery: Redelivery):
    """The message is available at release time + delay, whatever the redelivery delay; 0 means now."""
    posted = scene.post(3)
    claim = scene.take(2, ttl=60, redelivery=redelivery)
    scene.tick(10)
    scene.release(claim.id, delay)
    assert [message.available for message in scene.get(posted[:2])] == [near(scene.now + delay)] * 2
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    assert scene.pop(1) == posted[2:]
    if delay:
        scene.tick(delay - 0.001)
        assert scene.claim() is None
        scene.tick(0.001)
    assert scene.claimable() == posted[:2]


def test_a_release_without_any_delay_restores_the_position(scene: Scene):
    posted = scene.post(1)
    claim = scene.take()
    scene.tick(5)
    later = scene.post(1)
    scene.release(claim.id)
    assert scene.claimable() == posted + later


def test_a_redelivery_delay_grows_with_the_claim_count(scene: Scene):
    """The exponential delay doubles up to its cap, by lapse and by release."""
    [id] = scene.post(1, ttl=100000)
    for turn, wait in enumerate([10, 20, 40, 60, 60]):
        claim = scene.take(ttl=60, redelivery=DOUBLING)
        assert [(m.claim_count, m.available) for m in claim.messages] == [(turn + 1, near(scene.now + 60 + wait))]
        if turn % 2:
            scene.release(claim.id)
        else:
            scene.tick(60)
        scene.tick(wait - 0.001)
        assert scene.claim() is None
        scene.tick(0.001)
        assert scene.page() == [id]


def test_each_message_of_a_claim_is_delayed_by_its_own_count(scene: Scene):
    posted = scene.post(1)
    for _ in range(2):
        scene.release(scene.take(redelivery=Redelivery()).id)
        posted += scene.post(1)
    claim = scene.take(3, ttl=60, redelivery=DOUBLING)
    assert [message.claim_count for message in claim.messages] == [3, 2, 1]
    scene.tick(60 + 10)
    assert scene.page() == posted[2:]
    scene.tick(10)
    assert scene.page() == posted[1:]
    scene.tick(20)
    assert scene.claimable() == posted[::-1]


@pytest.mark.parametrize("ttl", [30, 600])
def test_a_renewal_keeps_the_redelivery_delay(scene: Scene, ttl: int):
    """The message is available at the new expiry + the same delay."""
    posted = scene.post(1)
    claim = scene.take(ttl=60, redelivery=DOUBLING)
    scene.tick(20)
    scene.renew(claim.id, ttl=ttl)
    assert scene.one(posted[0]).available == near(scene.now + ttl + 10)
    scene.tick(ttl)
    assert scene.counts() == (0, 1)
    scene.tick(9.999)
    assert (scene.claim(), scene.page()) == (None, [])
    scene.tick(0.001)
    assert scene.claimable() == posted


def test_a_message_keeps_its_redelivery_time_under_a_later_rule(scene: Scene):
    waiting = scene.post(1)
    scene.release(scene.take(redelivery=AFTER_30).id)
    other = scene.post(1)
    assert scene.claimable() == other
    scene.tick(30)
    claim = scene.take(ttl=60)
    assert ids_of(claim.messages) == waiting
    scene.tick(60)
    assert scene.claimable() == waiting


@pytest.mark.fresh_store
def test_a_claim_extends_a_ttl_to_its_end_and_not_to_the_redelivery(scene: Scene):
    """The ttl covers claim expiry + grace, so a message may expire during its redelivery delay."""
    [id] = scene.post(1, ttl=60)
    scene.take(ttl=100, grace=20, redelivery=AFTER_30)
    found = scene.one(id)
    assert (found.ttl, found.expires, found.available) == (120, near(scene.now + 120), near(scene.now + 130))
    scene.tick(119.999)
    assert scene.page(ListFilter(delayed=True)) == [id]
    scene.tick(0.001)
    assert scene.is_empty()
    scene.tick(10)
    assert scene.claim() is None
    scene.reclaimed()
    assert scene.is_empty()


def test_a_redelivery_delay_beyond_the_ttl_does_not_extend_it(scene: Scene):
    """If the claim expires before the message, ttl and expiry stay unchanged."""
    [id] = scene.post(1, ttl=600)
    scene.take(ttl=590, redelivery=AFTER_30)
    found = scene.one(id)
    assert (found.ttl, found.expires) == (600, near(scene.now + 600))


def test_a_redelivered_message_is_ordered_by_its_available_time(scene: Scene):
    first = scene.post(1)
    scene.take(ttl=60, redelivery=AFTER_30)
    scene.tick(80)
    before = scene.post(1)
    scene.tick(10)
    same = scene.post(1)
    scene.tick(1)
    after = scene.post(1)
    assert scene.pop(2) == before + first
    assert scene.claimable() == same + after


def test_a_used_up_message_is_buried_after_its_redelivery_delay(scene: Scene):
    posted = scene.post(1)
    rule = DeadLetters(scene.at("dead").queue, 1, None)
    assert scene.claim(ttl=60, dead_letters=rule, redelivery=AFTER_30) is not None
    scene.tick(89.999)
    assert scene.claim(dead_letters=rule) is None
    assert scene.page(ListFilter(delayed=True)) == posted
    assert not scene.at("dead").exists()
    scene.tick(0.001)
    assert scene.claim(dead_letters=rule) is None
    assert scene.is_empty()
    assert scene.at("dead").page() == posted


def test_a_release_restores_the_available_time_of_a_delayed_post(scene: Scene):
    """A release without a redelivery delay restores the available time of the post."""
    posted = scene.post(1, delay=20)
    scene.tick(25)
    fresh = scene.post(1)
    claim = scene.take(1)
    scene.release(claim.id)
    assert scene.claimable(1) == posted
    assert scene.claimable(1) == fresh


def test_ready_messages_behind_thousands_of_delayed_ones_are_found(scene: Scene):
    front = scene.post(2500)
    for _ in range(3):
        scene.take(1000, ttl=60, redelivery=AFTER_30)
    behind = scene.post(6)
    for _ in range(2):
        assert scene.page(ListFilter(), 6) == behind
        scene.tick(60)
    assert scene.page(ListFilter(), 4) == front[:4]
    assert scene.counts() == (0, 2506)


def test_a_thousand_messages_are_released_with_a_delay(scene: Scene):
    posted = scene.post(1200)
    claim = scene.take(1200)
    scene.release(claim.id, 60)
    assert scene.counts() == (0, 1200)
    scene.tick(59.999)
    assert scene.claim() is None
    scene.tick(0.001)
    assert scene.claimable(1200) == posted


def test_a_late_release_changes_no_available_time(scene: Scene):
    posted = scene.post(2)
    late = scene.take(1, ttl=60, redelivery=AFTER_30)
    scene.tick(60)
    for delay in (None, 0, 900):
        scene.release(late.id, delay)
    assert scene.one(posted[0]).available == near(scene.now + 30)
    scene.tick(30)
    holder = scene.take(2)
    scene.release(late.id, 900)
    assert scene.held(holder.id) == sorted(posted)
