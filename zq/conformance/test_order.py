# SPDX-License-Identifier: Apache-2.0
"""Order of claiming (law L5) and of listing (law L6)."""

import pytest

from zq.conformance.builders import Scene, drafts, ids_of
from zq.model import ListFilter


def test_fresh_posts_are_claimed_in_posting_order(scene: Scene):
    posted = scene.post(3) + scene.post(2)
    scene.tick(0.001)
    posted += scene.post(3)
    assert scene.claimable(4) == posted[:4]
    assert scene.claimable(4) == posted[4:]


def test_a_pop_follows_the_order_of_claims(scene: Scene):
    """Pops sort by (available time, sequence), too: a delayed message is ordered by its available time."""
    late = scene.post(1, delay=10)
    early = scene.post(1)
    scene.tick(20)
    fresh = scene.post(1)
    assert scene.pop() == early + late + fresh


def test_delayed_messages_are_ordered_by_their_available_time(scene: Scene):
    """The available time is post time + delay. At equal times, the lower sequence comes first."""
    delayed = scene.post(1, delay=10)
    longer = scene.post(1, delay=11)
    scene.tick(5)
    before = scene.post(1)
    scene.tick(5)
    same = scene.post(1)
    scene.tick(2)
    after = scene.post(1)
    assert scene.claimable() == before + delayed + same + longer + after


def test_a_post_by_a_slower_clock_keeps_its_place(scene: Scene):
    """If the server's clock is behind, a post without delay is available no earlier than the post before it."""
    ahead = drafts(2, scene.now)
    behind = drafts(2, scene.now)
    scene.storage.messages.post(scene.queue, ahead, scene.now + 0.05)
    scene.storage.messages.post(scene.queue, behind, scene.now)
    scene.tick(0.05)
    expected = ids_of(ahead) + ids_of(behind)
    assert [round(message.available - scene.now, 3) for message in scene.get(expected)] == [0, 0, 0, 0]
    assert scene.claimable() == expected


def test_a_delayed_post_does_not_hold_up_the_next_one(scene: Scene):
    """Only posts without a delay raise the earliest available time of later posts."""
    delayed = scene.post(1, delay=600)
    fresh = scene.post(1)
    assert scene.one(fresh[0]).available == pytest.approx(scene.now, abs=0.0005)
    assert scene.claimable() == fresh
    assert scene.page(ListFilter(delayed=True)) == delayed


def test_a_release_restores_the_former_position(scene: Scene):
    """The message that was claimed first is claimed first again, even after renewals."""
    posted = scene.post(2)
    scene.tick(1)
    posted += scene.post(2)
    claim = scene.take(1, ttl=60)
    scene.tick(30)
    scene.renew(claim.id, ttl=600)
    moment = scene.now
    posted += scene.post(1)
    scene.tick(200)
    scene.release(claim.id)
    assert scene.one(posted[0]).available == pytest.approx(moment - 31, abs=0.0005)
    assert scene.claimable() == posted


def test_releases_in_any_order_restore_the_whole_queue(scene: Scene):
    posted = scene.post(9)
    claims = [scene.take(2).id for _ in range(4)]
    for claim in (claims[2], claims[0], claims[3], claims[1]):
        scene.release(claim)
    assert scene.claimable(5) == posted[:5]
    assert scene.claimable(5) == posted[5:]


def test_a_released_delayed_message_returns_to_its_available_time(scene: Scene):
    delayed = scene.post(1, delay=10)
    before = scene.post(1)
    scene.tick(15)
    after = scene.post(1)
    claim = scene.take(10)
    scene.release(claim.id)
    assert scene.claimable() == before + delayed + after


def test_a_lapsed_message_is_ordered_by_the_end_of_its_claim(scene: Scene):
    """The available time is the claim's expiry. Messages with equal times are ordered by sequence."""
    lapsing, waiting = scene.post(2)
    scene.take(1, ttl=60)
    scene.tick(59)
    before = scene.post(1)
    scene.tick(1)
    same = scene.post(1)
    scene.tick(1)
    after = scene.post(1)
    assert scene.one(lapsing).available == pytest.approx(scene.now - 1, abs=0.0005)
    assert scene.claimable() == [waiting, *before, lapsing, *same, *after]


def test_lapsed_messages_follow_the_ends_of_their_claims(scene: Scene):
    """Messages of the claim that expired first are redelivered first, even if it was created last."""
    first, second, third = scene.post(3)
    scene.take(1, ttl=180)
    scene.take(1, ttl=120)
    scene.take(1, ttl=60)
    scene.tick(200)
    assert scene.claimable() == [third, second, first]


def test_a_renewed_claim_lapses_at_its_new_end(scene: Scene):
    """A lapsed message is ordered by the expiry that the last renewal set, longer or shorter."""
    first, second, third = scene.post(3)
    longer, kept, shorter = scene.take(1, ttl=60), scene.take(1, ttl=90), scene.take(1, ttl=120)
    scene.renew(longer.id, ttl=120)
    scene.renew(shorter.id, ttl=60)
    assert kept.messages[0].id == second
    scene.tick(120)
    assert scene.claimable() == [third, second, first]


def test_a_release_after_a_lapse_returns_to_the_lapse(scene: Scene):
    lapsed, other = scene.post(2)
    scene.take(1, ttl=60)
    scene.tick(60)
    scene.tick(10)
    after = scene.post(1)
    claim = scene.take(10)
    assert ids_of(claim.messages) == [other, lapsed, *after]
    scene.release(claim.id)
    assert scene.claimable() == [other, lapsed, *after]


def test_a_late_release_does_not_restore_the_position(scene: Scene):
    lapsed, other = scene.post(2)
    claim = scene.take(1, ttl=60)
    scene.tick(60)
    scene.release(claim.id)
    assert scene.claimable() == [other, lapsed]


def test_a_listing_is_in_sequence_and_not_by_available_time(scene: Scene):
    """Delay, release and lapse change the order of claims, never that of listings."""
    posted = scene.post(1, delay=10) + scene.post(3)
    scene.take(1, ttl=20)
    scene.release(scene.take(1, ttl=60).id)
    scene.tick(30)
    assert scene.page() == posted
    assert [message.sequence for message in scene.walk()] == sorted(message.sequence for message in scene.get(posted))


@pytest.mark.fresh_store
@pytest.mark.parametrize("removal", ["delete", "pop", "purge", "expire"])
def test_new_posts_sort_after_every_issued_marker(scene: Scene, removal: str):
    """A reader misses no new message, even if the newest or all messages were removed and reclaimed (L6)."""
    old = scene.post(3, ttl=60)
    marker = scene.one(old[2]).sequence
    if removal == "delete":
        scene.delete_many(old)
    elif removal == "pop":
        assert scene.pop() == old
    elif removal == "purge":
        scene.storage.queues.purge(scene.queue)
    else:
        scene.tick(60)
    scene.reclaimed()
    new = scene.post(2)
    assert scene.page(marker=marker) == new
    assert all(message.sequence > marker for message in scene.walk())


def test_a_message_keeps_its_sequence(scene: Scene):
    [id] = scene.post()
    sequence = scene.one(id).sequence
    claim = scene.take(ttl=60)
    scene.renew(claim.id, ttl=60)
    assert scene.one(id).sequence == sequence
    scene.release(claim.id)
    scene.take(ttl=60)
    scene.tick(60)
    assert scene.one(id).sequence == sequence
    assert scene.storage.messages.pop(scene.queue, 1, scene.now)[0].sequence == sequence
