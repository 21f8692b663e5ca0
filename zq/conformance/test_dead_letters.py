# SPDX-License-Identifier: Apache-2.0
"""Dead letters: a message that was delivered too often moves to another queue, complete and once (contract 8.6)."""

import json
from itertools import pairwise

import pytest

from zq.conformance.builders import Scene, ids_of
from zq.core.redelivery import DeadLetters

GRAVE = "dead.letters"


def after(grave: Scene, claims: int, ttl: int | None = None) -> DeadLetters:
    return DeadLetters(grave.queue, claims, ttl)


def handed_out(scene: Scene, times: int, limit: int = 10) -> None:
    """Claim and release the ready messages ``times`` times."""
    for _ in range(times):
        scene.release(scene.take(limit).id)


@pytest.fixture
def grave(scene: Scene) -> Scene:
    return scene.at(GRAVE)


def test_a_message_moves_when_its_claims_are_used_up(scene: Scene, grave: Scene):
    """With two claims allowed, the third attempt moves a message that was delivered twice, and returns nothing."""
    posted = scene.post(1)
    for count in (1, 2):
        claim = scene.claim(ttl=60, dead_letters=after(grave, 2))
        assert claim is not None
        assert [(m.id, m.claim_count) for m in claim.messages] == [(posted[0], count)]
        assert grave.is_empty()
        scene.tick(60)
    assert scene.claim(name="third", dead_letters=after(grave, 2)) is None
    assert scene.is_empty()
    assert scene.get(posted) == []
    assert grave.page() == posted


def test_a_dead_letter_arrives_whole_ready_and_unclaimed(scene: Scene, grave: Scene):
    """Id, body and client are kept. The claim count restarts. The message can be claimed immediately."""
    [id] = scene.post(1, client="bob")
    handed_out(scene, 2)
    scene.tick(5)
    assert scene.claim(dead_letters=after(grave, 2)) is None
    found = grave.one(id)
    assert (found.body, found.client, found.claim, found.claim_count) == (b"0", "bob", "", 0)
    assert found.available <= scene.now
    claim = grave.take()
    assert [(message.id, message.claim_count) for message in claim.messages] == [(id, 1)]
    assert grave.held(claim.id) == [id]


@pytest.mark.fresh_store
@pytest.mark.parametrize(("given", "lives"), [(9999, 9999), (60, 60), (None, 600)])
def test_the_ttl_of_a_dead_letter_starts_at_its_move(scene: Scene, grave: Scene, given: int | None, lives: int):
    """The ttl is the given one, or else the message's own. It starts at the move."""
    [id] = scene.post(1, ttl=600)
    handed_out(scene, 1)
    scene.tick(500)
    assert scene.claim(dead_letters=after(grave, 1, given)) is None
    found = grave.one(id)
    assert (found.ttl, found.expires) == (lives, pytest.approx(scene.now + lives, abs=0.0005))
    scene.tick(lives - 0.001)
    grave.reclaimed()
    assert grave.page() == [id]
    scene.tick(0.001)
    assert grave.is_empty()
    assert grave.claimable() == []


def test_the_dead_letter_queue_is_created_by_the_first_dead_letter(scene: Scene, grave: Scene):
    """The new queue has no metadata."""
    scene.post(1)
    claim = scene.claim(dead_letters=after(grave, 1))
    assert claim is not None
    scene.release(claim.id)
    assert not grave.exists()
    assert scene.claim(dead_letters=after(grave, 1)) is None
    made = scene.storage.queues.get(scene.at(GRAVE).queue)
    assert made is not None
    assert json.loads(made.metadata) == {}
    assert scene.storage.queues.count(scene.queue.project) == 2


def test_an_existing_dead_letter_queue_keeps_metadata_and_messages(scene: Scene, grave: Scene):
    scene.storage.queues.create(scene.at(GRAVE).queue, b'{"a": 1}')
    waiting = grave.post(2)
    moved = scene.post(2)
    handed_out(scene, 1)
    scene.tick(1)
    assert scene.claim(dead_letters=after(grave, 1)) is None
    made = scene.storage.queues.get(scene.at(GRAVE).queue)
    assert made is not None
    assert made.metadata == b'{"a": 1}'
    assert grave.claimable() == waiting + moved


def test_a_dead_letter_comes_after_every_issued_marker(scene: Scene, grave: Scene):
    """The dead letter gets a new sequence, so a reader of the dead-letter queue does not miss it (L6)."""
    moved = scene.post(1)
    seen = grave.post(5)
    marker = grave.one(seen[-1]).sequence
    handed_out(scene, 1)
    assert scene.claim(dead_letters=after(grave, 1)) is None
    assert grave.page(marker=marker) == moved


def test_the_source_cannot_reach_a_moved_message(scene: Scene, grave: Scene):
    [id] = scene.post(1)
    handed_out(scene, 1)
    assert scene.claim(dead_letters=after(grave, 1)) is None
    scene.delete(id)
    scene.delete_many([id])
    scene.storage.queues.purge(scene.queue)
    assert grave.page() == [id]
    scene.storage.queues.delete(scene.queue)
    assert grave.claimable() == [id]
    grave.delete_many([id])
    assert grave.is_empty()


def test_a_claim_returns_fresh_messages_and_buries_used_up_ones(scene: Scene, grave: Scene):
    old = scene.post(2)
    handed_out(scene, 1)
    fresh = scene.post(2)
    claim = scene.claim(10, dead_letters=after(grave, 1))
    assert claim is not None
    assert ids_of(claim.messages) == fresh
    assert scene.held(claim.id) == sorted(fresh)
    assert grave.page() == old


def test_a_claim_continues_behind_messages_that_it_buried(scene: Scene, grave: Scene):
    old = scene.post(100)
    handed_out(scene, 1, limit=100)
    fresh = scene.post(3)
    claim = scene.claim(2, dead_letters=after(grave, 1))
    assert claim is not None
    assert ids_of(claim.messages) == fresh[: len(claim.messages)]
    assert grave.page() == old
    assert scene.page() == fresh[len(claim.messages) :]


def test_a_claim_that_buries_all_messages_is_not_created(scene: Scene, grave: Scene):
    old = scene.post(250)
    handed_out(scene, 1, limit=250)
    assert scene.claim(10, dead_letters=after(grave, 1)) is None
    assert scene.is_empty()
    assert grave.page() == old
    assert grave.claimable() == old


def test_renewal_and_lapse_do_not_save_a_message(scene: Scene, grave: Scene):
    """Lapse, renewal and release do not reset the claim count, and a renewal does not raise it."""
    posted = scene.post(1)
    claim = scene.take(ttl=60)
    for _ in range(3):
        scene.renew(claim.id, ttl=60)
    scene.tick(60)
    assert scene.one(posted[0]).claim_count == 1
    second = scene.claim(ttl=60, dead_letters=after(grave, 2))
    assert second is not None
    scene.release(second.id)
    assert scene.claim(dead_letters=after(grave, 2)) is None
    assert grave.page() == posted


def test_claims_before_the_rule_count_towards_it(scene: Scene, grave: Scene):
    """A message that was claimed more often than a new rule allows is moved, too."""
    posted = scene.post(1)
    handed_out(scene, 5)
    assert scene.claim(dead_letters=after(grave, 3)) is None
    assert grave.page() == posted


def test_a_maximum_of_zero_claims_buries_at_the_first_attempt(scene: Scene, grave: Scene):
    posted = scene.post(2)
    assert scene.claim(dead_letters=after(grave, 0)) is None
    assert grave.page() == posted


def test_a_claim_without_a_dead_letter_queue_buries_nothing(scene: Scene, grave: Scene):
    posted = scene.post(1)
    handed_out(scene, 7)
    assert scene.claimable() == posted
    assert not grave.exists()


def test_a_pop_takes_messages_that_a_claim_would_bury(scene: Scene, grave: Scene):
    """Pops ignore the claim count."""
    posted = scene.post(1)
    handed_out(scene, 3)
    assert scene.pop() == posted
    assert not grave.exists()


def test_only_ready_messages_move(scene: Scene, grave: Scene):
    held = scene.post(1)
    handed_out(scene, 1)
    claim = scene.take()
    scene.post(1, delay=60)
    assert scene.claim(dead_letters=after(grave, 1)) is None
    assert scene.claim(dead_letters=after(grave, 0)) is None
    assert scene.held(claim.id) == held
    assert scene.counts() == (1, 1)
    assert not grave.exists()


def test_a_dead_letter_can_be_buried_again(scene: Scene, grave: Scene):
    """Two queues are each other's dead-letter queue. After each burial, the message is in exactly one of them."""
    posted = scene.post(1)
    places = [scene, grave, scene]
    for here, there in pairwise(places):
        handed_out(here, 1)
        assert here.claim(dead_letters=after(there, 1)) is None
        assert here.is_empty()
        assert there.page() == posted
        assert there.counts() == (0, 1)
    assert scene.claimable() == posted
