# SPDX-License-Identifier: Apache-2.0
"""Expired messages that are not removed yet are invisible to every verb, to the millisecond (S-A2, L3)."""

import pytest

from zq.conformance.builders import EVERYTHING, Scene, near
from zq.errors import ClaimLapsed, ClaimNotFound
from zq.model import ClaimRef, ListFilter, Release, SettleResult, Stats
from zq.model.limits import MAX_LIFE, MIN_TTL

pytestmark = pytest.mark.fresh_store


def test_an_expired_message_is_hidden_from_other_verbs(scene: Scene):
    posted = scene.post(3, ttl=60)
    scene.post(2, ttl=60, delay=59)
    scene.tick(59.999)
    assert len(scene.walk()) == len(scene.tail()) == 5
    scene.tick(0.001)
    for view in (
        ListFilter(),
        ListFilter(claimed=True),
        ListFilter(delayed=True),
        EVERYTHING,
        ListFilter("bob", claimed=True, delayed=True),
    ):
        assert scene.page(view) == []
    assert scene.tail() == []
    assert scene.history() == []
    assert list(scene.storage.history.get(scene.queue, posted, scene.now)) == []
    assert (scene.ready(), scene.due()) == (0, None)
    assert scene.move(posted, "next") == []
    assert not scene.at("next").exists()
    assert scene.stats() == Stats()


def test_a_message_that_expired_with_its_claim_is_hidden_from_claim_verbs(scene: Scene):
    """Get, renew, settle and commit do not find the claim. A release succeeds."""
    [id] = scene.post(1, ttl=60)
    claim = scene.take(ttl=60, grace=0).id
    scene.tick(60)
    for verb in (scene.held, scene.renew, lambda name: scene.settle(name, delete=[id], history=600)):
        with pytest.raises(ClaimNotFound):
            verb(claim)
    with pytest.raises(ClaimLapsed):
        scene.commit(1, settle=[ClaimRef(scene.queue, claim)])
    scene.release(claim)
    assert scene.finished() == []
    assert scene.is_empty()


def test_a_settlement_applies_to_messages_that_only_the_claim_keeps_alive(scene: Scene):
    """After their first expiry, claimed messages can be deleted, released and kept."""
    first, second, third = scene.post(3, ttl=60)
    claim = scene.take(ttl=600, grace=60)
    scene.tick(60)
    scene.reclaimed()
    settled = scene.settle(claim.id, delete=[first], release=[Release(second)], history=600)
    assert settled == SettleResult(deleted=1, released=1)
    assert [finished[0] for finished in scene.finished()] == [first]
    assert scene.claimable() == [second]
    assert scene.held(claim.id) == [third]


@pytest.mark.needs_part("depths")
@pytest.mark.parametrize("ttl", [1, MIN_TTL, MAX_LIFE])
def test_the_shortest_and_the_longest_ttl_end_at_the_millisecond(scene: Scene, ttl: int):
    """The message expires exactly at created + ttl. A maintenance round then removes it, but not before."""
    posted = scene.post(2, ttl=ttl)
    scene.reclaimed()
    scene.tick(ttl - 0.001)
    assert scene.reclaimed() == 0
    assert scene.page() == posted
    assert scene.one(posted[0]).expires == near(scene.now + 0.001)
    scene.tick(0.001)
    assert scene.expired() == 2
    assert scene.reclaimed() == 2
    assert scene.is_empty()


def test_the_longest_claim_with_the_longest_grace_keeps_its_messages(scene: Scene):
    """Expiry times beyond 32 bits are kept unchanged."""
    posted = scene.post(1, ttl=MIN_TTL)
    claim = scene.take(ttl=MAX_LIFE, grace=MAX_LIFE)
    scene.tick(MAX_LIFE - 1)
    scene.reclaimed()
    assert scene.held(claim.id) == posted
    scene.tick(MAX_LIFE)
    assert scene.claimable() == posted
    assert scene.one(posted[0]).claim_count == 2
