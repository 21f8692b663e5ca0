# SPDX-License-Identifier: Apache-2.0
"""Commits publish stages and settle claims atomically, once per batch (extensions contract, section 9)."""

from functools import partial

import pytest

from zq.conformance.builders import Scene, ids_of
from zq.errors import ClaimLapsed, ClaimNotFound, Fenced, ProducerNotFound, StageNotFound
from zq.model import ClaimRef, CommitResult, Fence, Outcome

pytestmark = pytest.mark.pools

SOURCE = "in"
NAME = "etl.17.0"


@pytest.fixture
def source(scene: Scene) -> Scene:
    return scene.at(SOURCE)


def test_a_commit_publishes_and_deletes(scene: Scene, source: Scene):
    """The staged messages are published, the claimed ones are deleted, and nothing else changes; the counts agree."""
    posted = source.post(5)
    source.named(NAME, 3)
    staged = scene.stage("s1", 2) + scene.stage("s2", 2)
    assert scene.commit(17, ["s1", "s2"], [ClaimRef(source.queue, NAME)]) == CommitResult(17, 4, 3)
    assert scene.claimable() == staged
    assert ids_of(source.walk()) == posted[3:]
    assert source.get(posted[:3]) == []
    assert source.counts() == (0, 2)
    with pytest.raises(ClaimNotFound):
        source.held(NAME)
    with pytest.raises(StageNotFound):
        scene.commit(18, ["s1"])
    assert scene.last() == CommitResult(17, 4, 3)


@pytest.mark.fresh_store
def test_settled_messages_are_never_delivered_again(scene: Scene, source: Scene):
    """The messages stay deleted after the claim's expiry, after maintenance, and for a new claim with its name (L3)."""
    posted = source.post(2)
    source.named(NAME, 2, ttl=60)
    scene.commit(1, [], [ClaimRef(source.queue, NAME)])
    for seconds in (0, 60, 400):
        scene.tick(seconds)
        scene.reclaimed()
        assert source.named(NAME) == ([], False)
        assert source.is_empty()
        source.delete(posted[0], NAME)
        source.release(NAME)


def test_a_commit_settles_only_messages_that_its_claims_still_hold(scene: Scene, source: Scene):
    """Messages that were deleted or settled before are neither counted nor changed."""
    posted = source.post(6)
    source.named("c.1", 3)
    source.named("c.2", 3)
    source.delete(posted[0], "c.1")
    source.settle("c.2", delete=posted[3:4])
    other = scene.at("in2")
    more = other.post(2)
    other.named("c.1", 1)
    held = [
        ClaimRef(source.queue, "c.1"),
        ClaimRef(other.queue, "c.1"),
        ClaimRef(source.queue, "c.2"),
    ]
    assert scene.commit(1, [], held) == CommitResult(1, 0, 5)
    assert source.is_empty()
    assert other.claimable() == more[1:]


def test_a_commit_leaves_history_entries_of_settled_messages(scene: Scene, source: Scene):
    """A settled message has an entry if its queue keeps history. Published messages have none."""
    other = scene.at("in2")
    posted, silent = source.post(2), other.post(2)
    source.named("c.1")
    other.named("c.1")
    scene.tick(1)
    scene.stage("s1", 1)
    scene.commit(1, ["s1"], [ClaimRef(source.queue, "c.1", 600), ClaimRef(other.queue, "c.1")])
    assert sorted(source.finished()) == sorted((id, Outcome.DELETED) for id in posted)
    assert [(one.message.claim, one.message.claim_count) for one in source.history()] == [("", 1)] * 2
    assert {one.finished for one in source.history()} == {scene.now}
    assert ids_of(one.message for one in source.tail()) == posted
    assert other.get(silent) == []
    assert (other.history(), scene.history()) == ([], [])


def test_a_batch_is_committed_once(scene: Scene, source: Scene):
    """A repeated or lower batch number returns the counts of the last batch and publishes and settles nothing."""
    staged = scene.stage("s1", 2)
    assert scene.commit(17, ["s1"]) == CommitResult(17, 2, 0)
    source.post(2)
    source.named(NAME)
    for batch in (17, 17, 16, 0):
        scene.stage("s2", 1)
        assert scene.commit(batch, ["s2"], [ClaimRef(source.queue, NAME)]) == CommitResult(17, 2, 0, replayed=True)
        with pytest.raises(StageNotFound):
            scene.commit(18, ["s2"])
    assert scene.page() == staged
    assert len(source.held(NAME)) == 2
    assert scene.commit(18, [], [ClaimRef(source.queue, NAME)]) == CommitResult(18, 0, 2)
    assert scene.commit(17) == CommitResult(18, 0, 2, replayed=True)


def test_a_replay_drops_its_own_stages_only(scene: Scene):
    """A replay drops the stages that its request names, if they exist; other stages can still be published."""
    kept = scene.stage("kept", 1)
    scene.stage("attempt.1", 1)
    scene.stage("attempt.2", 1)
    scene.commit(1, ["attempt.1"])
    assert scene.commit(1, ["attempt.1", "unknown", "attempt.2"]).replayed
    with pytest.raises(StageNotFound):
        scene.commit(2, ["attempt.2"])
    assert scene.commit(2, ["kept"]).published == 1
    assert scene.page()[1:] == kept


def test_batch_numbers_may_start_anywhere_and_skip(scene: Scene):
    for batch in (0, 1, 5, 1_000_000_007, 2**53 - 1):
        assert scene.commit(batch) == CommitResult(batch, 0, 0)
        assert scene.commit(batch) == CommitResult(batch, 0, 0, replayed=True)


def test_producers_are_independent(scene: Scene):
    with pytest.raises(ProducerNotFound):
        scene.last()
    scene.commit(5)
    rival = scene.rival
    for room, producer in [(scene, "etl2"), (scene, "ETL"), (rival, "etl"), (scene, "x" * 128)]:
        with pytest.raises(ProducerNotFound):
            room.last(producer)
        assert room.commit(1, producer=producer) == CommitResult(1, 0, 0)
        assert room.last(producer).batch == 1
    assert scene.last() == CommitResult(5, 0, 0)


@pytest.mark.fresh_store
def test_a_producer_expires_after_its_last_commit(scene: Scene):
    """A producer expires when its ttl has passed since the last commit. Then any batch number is accepted."""
    scene.commit(5, ttl=60)
    scene.tick(59)
    scene.commit(6, ttl=60)
    scene.tick(59.999)
    scene.reclaimed()
    assert scene.last().batch == 6
    scene.tick(0.001)
    with pytest.raises(ProducerNotFound):
        scene.last()
    scene.reclaimed()
    assert scene.commit(1, ttl=60) == CommitResult(1, 0, 0)
    scene.tick(60)
    scene.reclaimed()
    assert scene.reclaimed() == 0


def lapsed(source: Scene) -> None:
    source.tick(60)


def released(source: Scene) -> None:
    source.release(NAME)


def emptied(source: Scene) -> None:
    source.delete_many(source.held(NAME))


@pytest.mark.parametrize("end", [lapsed, released, emptied], ids=lambda end: end.__name__)
def test_a_claim_that_ended_refuses_the_commit(scene: Scene, source: Scene, end):
    """Nothing is published, no other claim is settled, and the batch number and the stages can still be used."""
    posted = source.post(4)
    source.named(NAME, 2, ttl=60)
    source.named("live.1", 2, ttl=600)
    staged = scene.stage("s1", 2)
    end(source)
    for held in (
        [ClaimRef(source.queue, "live.1"), ClaimRef(source.queue, NAME)],
        [ClaimRef(source.queue, NAME)],
        [ClaimRef(scene.at("no").queue, NAME)],
    ):
        with pytest.raises(ClaimLapsed):
            scene.commit(1, ["s1"], held)
    with pytest.raises(ProducerNotFound):
        scene.last()
    assert not scene.exists()
    assert source.held("live.1") == sorted(posted[2:])
    assert source.page() == ([] if end is emptied else posted[:2])
    assert scene.commit(1, ["s1"], [ClaimRef(source.queue, "live.1")]) == CommitResult(1, 2, 2)
    assert scene.page() == staged


def test_a_claim_settles_to_its_last_millisecond(scene: Scene, source: Scene):
    source.post(2)
    source.named(NAME, 2, ttl=60)
    source.renew(NAME, ttl=100)
    scene.tick(99.999)
    assert scene.commit(1, [], [ClaimRef(source.queue, NAME)]).deleted == 2


def test_an_unknown_stage_refuses_the_commit(scene: Scene, source: Scene):
    """A refused commit changes neither other stages nor the claim nor the batch number."""
    posted = source.post(2)
    source.named(NAME)
    staged = scene.stage("s1", 1)
    for names in (["s1", "unknown"], ["unknown", "s1"]):
        with pytest.raises(StageNotFound):
            scene.commit(1, names, [ClaimRef(source.queue, NAME)])
    assert source.held(NAME) == sorted(posted)
    assert not scene.exists()
    assert scene.commit(1, ["s1"], [ClaimRef(source.queue, NAME)]) == CommitResult(1, 1, 2)
    assert scene.page() == staged


def test_errors_of_a_commit_have_a_fixed_order(scene: Scene):
    """A repeated batch is a replay, whatever else is wrong. Other batches: fence, then stages, then claims."""
    scene.commit(1)
    fence, gone = scene.fence(), [ClaimRef(scene.at(SOURCE).queue, "gone.1")]
    old = Fence(fence.name, fence.epoch + 1)
    assert scene.commit(1, ["unknown"], gone, fence=old).replayed
    for error, verb in [
        (Fenced, partial(scene.commit, 2, ["unknown"], gone, fence=old)),
        (StageNotFound, partial(scene.commit, 2, ["unknown"], gone, fence=fence)),
        (ClaimLapsed, partial(scene.commit, 2, [], gone, fence=fence)),
    ]:
        with pytest.raises(error):
            verb()
    assert scene.last().batch == 1


def test_a_commit_into_the_queue_that_it_settles(scene: Scene):
    """The commit keeps the messages that it publishes there and deletes those that the claim held."""
    posted = scene.post(3)
    scene.named(NAME, 2)
    staged = scene.stage("s1", 2)
    assert scene.commit(1, ["s1"], [ClaimRef(scene.queue, NAME)]) == CommitResult(1, 2, 2)
    assert scene.claimable() == posted[2:] + staged


def test_thousands_are_settled_and_published_at_once(scene: Scene, source: Scene):
    """A commit larger than a store transaction is complete when the call returns."""
    posted = source.post(1400)
    source.named("c.1", 1100)
    source.named("c.2", 200)
    staged = [id for _ in range(3) for id in scene.stage("s1", 400)]
    held = [ClaimRef(source.queue, "c.1", 600), ClaimRef(source.queue, "c.2")]
    assert scene.commit(1, ["s1"], held) == CommitResult(1, 1200, 1300)
    assert scene.page(limit=2000) == staged
    assert scene.counts() == (0, 1200)
    assert source.counts() == (0, 100)
    assert source.claimable() == posted[1300:]
    assert sorted(ids_of(record.message for record in source.history(limit=2000))) == sorted(posted[:1100])
    assert scene.commit(1, ["s1"], held) == CommitResult(1, 1200, 1300, replayed=True)
