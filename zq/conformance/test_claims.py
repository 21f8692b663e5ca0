# SPDX-License-Identifier: Apache-2.0
"""Claims: one holder per message, the holder's rights, and the end of a claim (contract 8, law L2)."""

import pytest

from zq.conformance.builders import EVERYTHING, Scene, ids_of, near
from zq.errors import ClaimNotFound
from zq.model import HandleOutcome, ListFilter, MessageHandle

pytestmark = pytest.mark.pools


@pytest.mark.parametrize("named", [False, True])
def test_messages_of_a_claim_of_zero_seconds_can_still_be_handled(scene: Scene, named: bool):
    """The holder can delete or hide a message of the claim, unless the message has been claimed again."""
    first, second = scene.post(2)
    taken = scene.take(2, ttl=0, name="c1", named=named)
    assert (taken.id, taken.ttl, ids_of(taken.messages)) == ("c1", 0, [first, second])
    assert [message.claim for message in taken.messages] == ["", ""]
    handles = [MessageHandle(first, taken.id, 1, None), MessageHandle(second, taken.id, 1, 60)]
    assert (
        list(scene.storage.claims.handle(scene.queue, handles, scene.now, accepts_expired=True))
        == [HandleOutcome.DONE] * 2
    )
    assert scene.get([first]) == []
    assert scene.claimable() == []
    scene.tick(61)
    assert scene.claimable() == [second]


def test_a_claim_returns_the_oldest_messages_in_order(scene: Scene):
    """The messages have all fields, and the claim's expiry as their available time."""
    posted = scene.post(5)
    scene.tick(7)
    claim = scene.take(3, ttl=300, name="c1")
    assert (claim.id, claim.ttl, claim.created) == ("c1", 300, near(scene.now))
    assert ids_of(claim.messages) == posted[:3]
    for at, message in enumerate(claim.messages):
        assert message.body == b"%d" % at
        assert (message.claim, message.claim_count) == ("c1", 1)
        assert message.available == near(scene.now + 300)
        assert message.created == near(scene.now - 7)
        assert (message.ttl, message.expires) == (3600, near(scene.now - 7 + 3600))


def test_messages_of_a_claim_equal_those_of_other_verbs(scene: Scene):
    posted = scene.post(3)
    claim = scene.take(2)
    assert scene.get(posted[:2]) == claim.messages
    found = scene.storage.claims.get(scene.queue, claim.id, scene.now)
    assert (found.id, found.ttl, found.created) == (claim.id, claim.ttl, claim.created)
    assert sorted(found.messages, key=lambda message: message.sequence) == claim.messages
    assert scene.walk(ListFilter(claimed=True))[:2] == claim.messages


def test_an_empty_claim_is_not_created(scene: Scene):
    """A claim returns None if the queue is missing or has only claimed messages."""
    assert scene.claim(name="c1") is None
    assert not scene.exists()
    scene.post(2)
    scene.take()
    assert scene.claim(name="c1") is None
    with pytest.raises(ClaimNotFound):
        scene.held("c1")
    with pytest.raises(ClaimNotFound):
        scene.renew("c1")


def test_claims_share_no_message(scene: Scene):
    posted = scene.post(51)
    claims = [scene.take(10) for _ in range(6)]
    assert [len(claim.messages) for claim in claims] == [10, 10, 10, 10, 10, 1]
    assert [id for claim in claims for id in ids_of(claim.messages)] == posted
    assert scene.claim() is None


def test_a_claim_takes_own_messages_too(scene: Scene):
    posted = scene.post(1, client="alice") + scene.post(1, client="bob")
    assert scene.claimable() == posted


def test_a_thousand_messages_are_claimed_at_once(scene: Scene):
    """Get, renewal and release apply to all messages of a large claim."""
    posted = scene.post(1500)
    claim = scene.take(1000, ttl=60)
    assert ids_of(claim.messages) == posted[:1000]
    assert scene.held(claim.id) == sorted(posted[:1000])
    scene.renew(claim.id, ttl=600)
    scene.tick(599)
    assert scene.counts() == (1000, 500)
    assert scene.held(claim.id) == sorted(posted[:1000])
    scene.release(claim.id)
    assert scene.claimable(2000) == posted


@pytest.mark.parametrize(
    ("ttl", "claim_ttl", "grace", "lives"),
    [(120, 777, 0, 777), (120, 777, 23, 800), (120, 121, 22, 143), (120, 60, 30, 120), (120, 120, 60, 120)],
)
def test_a_claim_extends_a_ttl_that_would_end_before_it(scene: Scene, ttl: int, claim_ttl: int, grace: int, lives: int):
    """The cases are those of the table in contract 8.1. Later reads show the extension, and a release keeps it."""
    [id] = scene.post(1, ttl=ttl)
    posted = scene.now
    claim = scene.take(ttl=claim_ttl, grace=grace)
    assert [(message.ttl, message.expires) for message in claim.messages] == [(lives, near(posted + lives))]
    assert (scene.one(id).ttl, scene.one(id).expires) == (lives, near(posted + lives))
    scene.release(claim.id)
    assert (scene.one(id).ttl, scene.one(id).created) == (lives, near(posted))
    scene.tick(lives - 0.001)
    assert scene.page() == [id]
    scene.tick(0.001)
    assert scene.is_empty()


def test_a_claim_extends_a_ttl_from_the_time_of_the_claim(scene: Scene):
    """The message expires at claim time + claim ttl + grace, whatever its age."""
    [id] = scene.post(1, ttl=120)
    scene.tick(100)
    [message] = scene.take(ttl=60, grace=30).messages
    assert (message.ttl, message.expires) == (90, near(scene.now + 90))
    scene.tick(60)
    assert scene.page() == [id]
    scene.tick(29.999)
    assert scene.page() == [id]
    scene.tick(0.001)
    assert scene.is_empty()


def test_a_claim_extends_only_ttls_that_are_too_short(scene: Scene):
    scene.post(1, ttl=100)
    scene.post(1, ttl=1000)
    claim = scene.take(ttl=300, grace=60)
    assert [message.ttl for message in claim.messages] == [360, 1000]


def test_a_renewal_extends_ttls_like_a_claim(scene: Scene):
    """A renewal sets ttl and expiry like a new claim; age and claim count do not restart."""
    [id] = scene.post(1, ttl=120)
    posted = scene.now
    claim = scene.take(ttl=60, grace=0)
    scene.tick(50)
    scene.renew(claim.id, ttl=100, grace=7)
    found = scene.one(id)
    assert (found.ttl, found.expires, found.created) == (107, near(scene.now + 107), near(posted))
    assert found.claim_count == 1
    scene.tick(106.999)
    assert scene.page() == [id]
    scene.tick(0.001)
    assert scene.is_empty()


def test_a_renewal_restarts_the_claim(scene: Scene):
    """Age, ttl and expiry of the claim start at the renewal. The holder keeps the messages past the first expiry."""
    posted = scene.post(2)
    claim = scene.take(ttl=60)
    scene.tick(59)
    scene.renew(claim.id, ttl=100)
    found = scene.storage.claims.get(scene.queue, claim.id, scene.now)
    assert (found.ttl, found.created) == (100, near(scene.now))
    assert [message.available for message in found.messages] == [near(scene.now + 100)] * 2
    scene.tick(99.999)
    assert scene.held(claim.id) == sorted(posted)
    assert scene.claimable() == []
    scene.tick(0.001)
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    assert scene.claimable() == posted


def test_a_shorter_renewal_makes_messages_ready_earlier(scene: Scene):
    """Claims, pops and listings use the new expiry, even after a call that used the first one."""
    posted = scene.post(3)
    claim = scene.take(ttl=3000)
    assert scene.page() == []
    assert scene.claim() is None
    scene.renew(claim.id, ttl=60)
    scene.tick(59.999)
    assert scene.page() == []
    assert scene.claim() is None
    scene.tick(0.001)
    assert scene.page() == posted
    assert scene.pop(1) == posted[:1]
    assert scene.claimable() == posted[1:]
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)


def test_a_renewal_after_deletes_renews_the_rest(scene: Scene):
    posted = scene.post(3)
    claim = scene.take(ttl=60)
    scene.delete(posted[1], claim.id)
    scene.renew(claim.id, ttl=60)
    assert scene.held(claim.id) == sorted([posted[0], posted[2]])
    scene.tick(60)
    assert scene.claimable() == [posted[0], posted[2]]


def test_a_release_returns_all_messages_at_once(scene: Scene):
    """Released messages are listed, claimable and unclaimed; the claim is unknown."""
    posted = scene.post(3)
    claim = scene.take(2)
    scene.release(claim.id)
    assert scene.page() == posted
    assert [(message.claim, message.claim_count) for message in scene.get(posted)] == [("", 1), ("", 1), ("", 0)]
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    with pytest.raises(ClaimNotFound):
        scene.renew(claim.id)
    scene.release(claim.id)
    assert scene.claimable() == posted


def test_releasing_an_unknown_claim_succeeds(scene: Scene):
    """Releasing an unknown claim in a missing queue, in an existing one or of another queue changes nothing."""
    scene.release("unknown")
    posted = scene.post(2)
    claim = scene.take(1)
    scene.release("unknown")
    other = scene.at("other")
    other.post()
    other.release(claim.id)
    assert scene.held(claim.id) == posted[:1]
    assert scene.page() == posted[1:]


def test_a_claim_lapses_at_its_end(scene: Scene):
    """The holder keeps the messages to the last millisecond; then they are ready, without maintenance."""
    posted = scene.post(2)
    claim = scene.take(ttl=60)
    scene.tick(59.999)
    assert scene.held(claim.id) == sorted(posted)
    assert (scene.page(), scene.claim()) == ([], None)
    scene.tick(0.001)
    assert scene.page() == posted
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    with pytest.raises(ClaimNotFound):
        scene.renew(claim.id)
    assert scene.claimable() == posted


@pytest.mark.parametrize("claim", ["unknown", "", "x" * 64, "a/b", "\u00e9"])
def test_an_unknown_claim_is_not_found(scene: Scene, claim: str):
    """Get and renewal refuse an unknown claim in a missing queue and next to a live claim."""
    for _ in range(2):
        with pytest.raises(ClaimNotFound):
            scene.held(claim)
        with pytest.raises(ClaimNotFound):
            scene.renew(claim)
        scene.post(1)
        scene.take(1)


def test_a_claim_is_found_in_its_own_queue_only(scene: Scene):
    posted = scene.post(1)
    claim = scene.take(ttl=60)
    for other in [scene.at("other"), scene.rival]:
        other.post()
        other.take()
        with pytest.raises(ClaimNotFound):
            other.held(claim.id)
        with pytest.raises(ClaimNotFound):
            other.renew(claim.id, ttl=6000)
        other.release(claim.id)
    assert scene.held(claim.id) == posted
    scene.tick(60)
    assert scene.claimable() == posted


def test_claims_with_the_same_id_in_two_queues_are_independent(scene: Scene):
    other = scene.at("other")
    mine, theirs = scene.post(1), other.post(1)
    scene.take(name="c.1")
    other.take(name="c.1")
    scene.release("c.1")
    assert other.held("c.1") == theirs
    assert scene.page() == mine


def test_a_claim_ends_with_its_last_message(scene: Scene):
    posted = scene.post(3)
    first, second = scene.take(2), scene.take(1)
    scene.delete(posted[0], first.id)
    assert scene.held(first.id) == posted[1:2]
    scene.delete(posted[1], first.id)
    scene.delete_many([posted[2]])
    for claim in (first, second):
        with pytest.raises(ClaimNotFound):
            scene.held(claim.id)
        with pytest.raises(ClaimNotFound):
            scene.renew(claim.id)
        scene.release(claim.id)
    assert scene.is_empty()


@pytest.mark.parametrize("end", ["lapse", "release", "empty"])
def test_a_reused_claim_name_holds_only_its_new_messages(scene: Scene, end: str):
    old = scene.post(2)
    scene.take(2, ttl=60, name="etl.1")
    if end == "release":
        scene.release("etl.1")
    if end == "empty":
        scene.delete_many(old)
    new = scene.post(1)
    scene.tick(60)
    left = [] if end == "empty" else old
    if end == "release":
        assert scene.pop(2) == old
        left = []
    claim = scene.take(1, name="etl.1")
    assert ids_of(claim.messages) == new
    assert scene.held("etl.1") == new
    assert scene.page() == left
    assert scene.counts() == (1, len(left))
    scene.release("etl.1")
    assert ids_of(scene.walk()) == left + new


def test_a_claim_count_rises_with_claims_only(scene: Scene):
    """Claims raise the count. Renewals, reads, releases and lapses keep it."""
    [id] = scene.post()
    claim = scene.take(ttl=60)
    scene.renew(claim.id, ttl=60)
    scene.held(claim.id)
    assert scene.one(id).claim_count == 1
    scene.release(claim.id)
    assert scene.one(id).claim_count == 1
    assert [message.claim_count for message in scene.take(ttl=60).messages] == [2]
    scene.tick(60)
    assert scene.one(id).claim_count == 2
    assert [message.claim_count for message in scene.take().messages] == [3]


def test_a_late_holder_changes_nothing(scene: Scene):
    """A lapsed claim cannot renew or release messages that another claim holds (L2)."""
    posted = scene.post(2)
    late = scene.take(ttl=60)
    scene.tick(60)
    new = scene.take(ttl=60)
    scene.release(late.id)
    with pytest.raises(ClaimNotFound):
        scene.renew(late.id, ttl=6000)
    with pytest.raises(ClaimNotFound):
        scene.held(late.id)
    assert scene.held(new.id) == sorted(posted)
    assert scene.claim() is None
    scene.tick(60)
    assert scene.claimable() == posted


def test_a_lapsed_claim_does_not_release_a_live_claim_behind_it(scene: Scene):
    first, second, third = scene.post(3)
    scene.take(1, ttl=60)
    live = scene.take(1, ttl=600)
    scene.tick(60)
    assert scene.claimable() == [third, first]
    assert scene.held(live.id) == [second]
    assert scene.pop() == []
    scene.tick(300)
    assert scene.claimable() == [first, third]
    assert scene.held(live.id) == [second]
    assert scene.one(second).claim_count == 1


def test_a_live_claim_does_not_block_lapsed_messages_behind_it(scene: Scene):
    posted = scene.post(4)
    scene.take(1, ttl=600)
    scene.take(2, ttl=60)
    scene.tick(60)
    assert scene.claimable() == [posted[3], *posted[1:3]]


def test_releasing_every_other_claim_keeps_the_other_claims(scene: Scene):
    posted = scene.post(30)
    claims = [scene.take(3, ttl=600) for _ in range(10)]
    for claim in claims[::2]:
        scene.release(claim.id)
    free = [id for claim in claims[::2] for id in ids_of(claim.messages)]
    assert scene.page() == free
    assert scene.claimable() == free
    for claim in claims[1::2]:
        assert scene.held(claim.id) == sorted(ids_of(claim.messages))
    assert ids_of(scene.walk(EVERYTHING)) == posted
