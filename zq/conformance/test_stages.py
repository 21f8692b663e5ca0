# SPDX-License-Identifier: Apache-2.0
"""Staged posts: invisible until a commit publishes them as fresh posts (extensions contract, section 9)."""

import contextlib
from functools import partial

import pytest

from zq.conformance.builders import Scene, drafts, ids_of, near, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import StageDiffers, StageFull, StageNotFound
from zq.model import Bounds, Draft, ListFilter, Stats, new_ids

pytestmark = [pytest.mark.every_server, pytest.mark.pools]


def test_staged_messages_are_invisible_to_every_verb(scene: Scene):
    """Staging creates no queue, and no verb shows, counts, claims, pops, moves or deletes the messages."""
    staged = scene.stage("s1", 3)
    assert not scene.exists()
    posted = scene.post(1)
    assert scene.page(ListFilter(claimed=True, delayed=True)) == posted
    assert scene.get(staged) == []
    assert scene.counts() == (0, 1)
    assert scene.pop() == posted
    assert (scene.claim(), scene.stats(), scene.ready(), scene.due()) == (None, Stats(), 0, None)
    assert (scene.history(), scene.tail()) == ([], [])
    scene.delete_many(staged)
    assert scene.move(staged, "next") == []
    scene.storage.queues.purge(scene.queue)
    assert scene.commit(1, ["s1"]).published == 3
    assert scene.page() == staged


@pytest.mark.fresh_store
def test_the_ttl_of_staged_messages_starts_at_their_publication(scene: Scene):
    """Creation time, expiry and delay start at the commit. All other fields are those of the draft."""
    [at_once, later] = new_ids(2, scene.now)
    new = [Draft(at_once, b'{"a": 1}', 60, 0, "bob", "MD5:x"), Draft(later, b"[2]", 600, 30, "alice")]
    scene.storage.transactions.stage(scene.queue.project, "s1", scene.queue, new, scene.now, 3600, 1000)
    scene.tick(100)
    scene.reclaimed()
    assert scene.commit(1, ["s1"]).published == 2
    first, second = scene.walk()
    assert (first.id, first.body, first.client, first.ttl, first.checksum) == (at_once, b'{"a": 1}', "bob", 60, "MD5:x")
    assert (second.id, second.body, second.client, second.ttl, second.checksum) == (later, b"[2]", "alice", 600, "")
    assert [message.created for message in (first, second)] == [near(scene.now)] * 2
    assert [message.expires - scene.now for message in (first, second)] == [near(60), near(600)]
    assert [message.available - scene.now for message in (first, second)] == [near(0), near(30)]
    assert [message.claim_count for message in (first, second)] == [0, 0]
    assert scene.claimable() == [at_once]
    scene.tick(30)
    assert scene.claimable() == [later]
    scene.tick(330)
    assert scene.page() == [later]


def test_published_messages_are_ordered_like_new_ones(scene: Scene):
    """Published messages follow the queue's messages, ordered by stage and by position in the stage (L5, L6)."""
    one = scene.stage("s1", 2)
    before = scene.post(2)
    two = scene.stage("s2", 2)
    one += scene.stage("s1", 1)
    before += scene.post(1)
    marker = scene.one(before[-1]).sequence
    assert scene.commit(1, ["s2", "s1"]).published == 5
    after = scene.post(1)
    assert scene.page(marker=marker) == two + one + after
    assert ids_of(scene.walk(limit=2)) == before + two + one + after
    assert scene.claimable() == before + two + one + after


def test_a_commit_by_a_slower_clock_keeps_its_place(scene: Scene):
    """Published messages are available no earlier than the last fresh message of their queue."""
    staged = scene.stage("s1", 1)
    ahead = drafts(1, scene.now)
    scene.storage.messages.post(scene.queue, ahead, scene.now + 0.05)
    scene.commit(1, ["s1"])
    scene.tick(0.05)
    assert scene.one(staged[0]).available == near(scene.now)
    assert scene.claimable() == ids_of(ahead) + staged


def test_a_stage_may_hold_messages_for_several_queues(scene: Scene):
    """The commit creates missing queues without metadata. Existing queues keep their metadata."""
    other = scene.at("other")
    other.storage.queues.create(other.queue, b'{"a": 1}')
    here, there = scene.stage("s1", 2), other.stage("s1", 1)
    here += scene.stage("s1", 1)
    there += other.stage("s1", 1)
    assert scene.commit(1, ["s1"]).published == 5
    assert (scene.page(), other.page()) == (here, there)
    queues = scene.storage.queues
    assert [queue.metadata for queue in queues.list(scene.queue.project, "", 10).items] == [b"{}", b'{"a": 1}']
    assert queues.count(scene.queue.project) == 2


def test_a_dropped_stage_is_gone(scene: Scene):
    """The stage cannot be published. Another drop succeeds, and the name can be used again."""
    scene.stage("s1", 2)
    kept = scene.stage("s2", 1)
    for name in ("s1", "s1", "unknown"):
        scene.drop_stage(name)
    with pytest.raises(StageNotFound):
        scene.commit(1, ["s1"])
    anew = scene.stage("s1", 1)
    assert scene.commit(1, ["s1", "s2"]).published == 2
    assert scene.page() == anew + kept


def test_a_published_stage_is_gone_and_its_messages_stay(scene: Scene):
    """A drop changes nothing, and the name can be used again."""
    staged = scene.stage("s1", 2)
    scene.commit(1, ["s1"])
    scene.drop_stage("s1")
    assert scene.page() == staged
    with pytest.raises(StageNotFound):
        scene.commit(2, ["s1"])
    more = scene.stage("s1", 1)
    assert scene.commit(2, ["s1"]).published == 1
    assert scene.page() == staged + more


@pytest.mark.fresh_store
def test_a_stage_expires_after_its_first_messages(scene: Scene):
    """The stage can be published to the last millisecond. Later messages do not extend it. Maintenance removes it."""
    scene.stage("s1", 1, lives=60)
    kept = scene.stage("s2", 1, lives=60)
    scene.tick(59)
    scene.stage("s1", 1, lives=9999)
    scene.tick(0.999)
    scene.reclaimed()
    assert scene.commit(1, ["s2"]).published == 1
    scene.tick(0.001)
    with pytest.raises(StageNotFound):
        scene.commit(2, ["s1"])
    anew = scene.stage("s1", 1, lives=60)
    scene.reclaimed()
    assert scene.commit(2, ["s1"]).published == 1
    assert scene.page() == kept + anew
    scene.stage("s3", 5, lives=60)
    scene.tick(60)
    scene.reclaimed()
    assert scene.reclaimed() == 0
    with pytest.raises(StageNotFound):
        scene.commit(3, ["s3"])


def test_a_full_stage_refuses_messages(scene: Scene):
    """Bodies for all queues count. A post that does not fit is refused as a whole and leaves the stage unchanged."""
    staged = scene.stage("s1", 4, max_bytes=10)
    other = scene.at("other")
    others = other.stage("s1", 5, max_bytes=10)
    for room in (scene, other):
        with pytest.raises(StageFull):
            room.stage("s1", 2, max_bytes=10)
    staged += scene.stage("s1", 1, max_bytes=10)
    with pytest.raises(StageFull):
        scene.stage("s1", 1, max_bytes=10)
    with pytest.raises(StageFull):
        scene.stage("s2", 3, max_bytes=2)
    with pytest.raises(StageNotFound):
        scene.commit(1, ["s2"])
    assert scene.commit(1, ["s1"]).published == 10
    assert (scene.page(), other.page()) == (staged, others)


def test_a_stage_with_the_largest_number_of_messages_refuses_more(scene: Scene):
    """Messages for all queues count. A post that does not fit is refused and leaves the stage unchanged (S4)."""
    staged = scene.stage("s1", 4, max_messages=5)
    other = scene.at("other")
    with pytest.raises(StageFull):
        other.stage("s1", 2, max_messages=5)
    others = other.stage("s1", 1, max_messages=5)
    with pytest.raises(StageFull):
        scene.stage("s1", 1, max_messages=5)
    with pytest.raises(StageFull):
        scene.stage("s2", 6, max_messages=5)
    assert scene.commit(1, ["s1"]).published == 5
    assert (scene.page(), other.page()) == (staged, others)


def test_stage_names_that_differ_in_a_character_are_distinct(scene: Scene):
    names = ["s", "S", "s.1", "s.", "s.10", "s-1", "x" * 128]
    staged = {name: scene.stage(name, 1) for name in names}
    rival = scene.rival
    theirs = rival.stage("s", 2)
    scene.drop_stage("s.1")
    rival.drop_stage("S")
    assert scene.commit(1, ["S", "s"]).published == 2
    assert scene.page() == staged["S"] + staged["s"]
    assert rival.commit(1, ["s"]).published == 2
    assert rival.page() == theirs
    assert scene.commit(2, ["s-1", "s.", "s.10", "x" * 128]).published == 4


def test_thousands_of_messages_are_published_in_their_order(scene: Scene):
    other = scene.at("other")
    here, there = [], []
    for at in range(4):
        here += scene.stage(f"s{at % 2}", 300)
        there += other.stage(f"s{at % 2}", 50)
    assert scene.commit(1, ["s0", "s1"]).published == 1400
    assert scene.page(limit=2000) == here[:300] + here[600:900] + here[300:600] + here[900:]
    assert other.claimable(2000) == there[:50] + there[100:150] + there[50:100] + there[150:]


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_staging_keeps_every_message(scene: Scene):
    """Eight threads stage for two queues. Each message exists once, and messages of one call are adjacent."""
    rooms = [scene, scene.at("other")]

    def some(room: Scene) -> list[list[str]]:
        return [room.stage("s1", 3) for _ in range(5)]

    made = run_together(*[partial(some, rooms[at % 2]) for at in range(8)])
    assert scene.commit(1, ["s1"]).published == 8 * 15
    for at, room in enumerate(rooms):
        batches = [batch for batches in made[at::2] for batch in batches]
        place = {id: index for index, id in enumerate(room.page())}
        assert sorted(place) == sorted(id for batch in batches for id in batch)
        assert all([place[id] - place[batch[0]] for id in batch] == [0, 1, 2] for batch in batches)


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_staging_cannot_overfill_a_stage(scene: Scene):
    """The check and the write are one atomic change."""

    def some() -> int:
        with contextlib.suppress(StageFull):
            return len(scene.stage("s1", 3, max_bytes=10))
        return 0

    stored = sum(run_together(*[some] * 8))
    assert stored == 9
    assert scene.commit(1, ["s1"]).published == 9


@ONE_OR_TWO_CONNECTIONS
def test_staging_during_a_commit_loses_and_duplicates_nothing(scene: Scene):
    """Messages staged too late for the commit form a new stage with the same name. Each call is published whole."""
    for turn in range(8):
        room = Scene(scene.storage, scene.clock, scene.at(f"q{turn}").queue)
        first = room.stage("s1", 3)
        works = [partial(room.stage, "s1", 3)] * 3
        *staged, told = run_together(*works, partial(room.commit, turn * 2, ["s1"]))
        published = len(room.page())
        assert (told.published, published % 3) == (published, 0)
        with contextlib.suppress(StageNotFound):
            room.commit(turn * 2 + 1, ["s1"])
        assert room.page()[:3] == first
        assert sorted(room.page()) == sorted(first + [id for some in staged for id in some])


@pytest.mark.parametrize("step", [1000, 1])
def test_side_stages_are_published_but_not_counted(scene: Scene, step: int):
    """A commit publishes its side stages together with its other stages. A missing side stage is ignored."""
    other = scene.at("copies")
    main, copies = [scene.stage(name, 3) for name in ("s1", "s2")], other.stage("~s1", 5)
    committed = scene.commit(1, ["s1", "s2"], beside=["~s1", "~s2"], expected={"s1": 3}, bounds=Bounds(step, 1_000_000))
    assert (committed.published, committed.deleted) == (6, 0)
    assert (scene.page(), other.page()) == ([*main[0], *main[1]], copies)
    assert scene.last().published == 6
    assert other.stage("~s1", 1)  # The name is free again.
    assert scene.commit(1, ["s1"], beside=["~s1"]).replayed
    with pytest.raises(StageNotFound):
        scene.commit(2, ["~s1"])


def test_a_refused_commit_publishes_no_side_stages(scene: Scene):
    """A missing or different named stage refuses the commit. The next commit can still publish the side stage."""
    other = scene.at("copies")
    copies = other.stage("~s1", 2)
    with pytest.raises(StageNotFound):
        scene.commit(1, ["s1"], beside=["~s1"])
    scene.stage("s1", 1)
    with pytest.raises(StageDiffers):
        scene.commit(1, ["s1"], beside=["~s1"], expected={"s1": 3})
    assert (scene.page(), other.page()) == ([], [])
    assert scene.commit(1, ["s1"], beside=["~s1"]).published == 1
    assert other.page() == copies
