# SPDX-License-Identifier: Apache-2.0
"""Tenants: a project never sees, counts or changes data of another one (law L8)."""

import itertools

import pytest

from zq.conformance.builders import Scene, ids_of, make_key
from zq.core.redelivery import DeadLetters
from zq.errors import ClaimLapsed, ClaimNotFound, ClaimNotHeld, Fenced, ProducerNotFound, Repeated, StageNotFound
from zq.model import ClaimRef, CommitResult, Draft, Fence, Move, QueueRef, Stats, new_ids

pytestmark = [pytest.mark.fresh_store, pytest.mark.pools]

PROJECTS = [
    "a",
    "aa",
    "a/b",
    "a b",
    "a\x00",
    "a\x00b",
    "a\x00\x00b",
    "a\x01",
    "a\xff",
    "a:b",
    "a.b",
    "a|b",
    "a%2Fb",
    "{a}",
    "$a",
    "*",
    "\u00e9",
    "e\u0301",
    "\U0001f600",
    "\uffff",
    "x" * 256,
    "x" * 255,
    "\U0001f600" * 256,
    "None",
    "0",
]
NAMES = ["b", "b.b", "bb", ".", "..", "_", "x" * 64]

LOOKALIKES = [
    (QueueRef("a", "b"), QueueRef("a", "bb")),
    (QueueRef("a", "b.c"), QueueRef("a.b", "c")),
    (QueueRef("a", "b"), QueueRef("ab", "b")),
    (QueueRef("ab", "c"), QueueRef("a", "bc")),
    (QueueRef("a/b", "c"), QueueRef("a", "b/c")),
    (QueueRef("a\x00b", "c"), QueueRef("a", "b\x00c")),
    (QueueRef("a\x00", "b"), QueueRef("a", "b")),
    (QueueRef("a", "b"), QueueRef("A", "b")),
    (QueueRef("a", "b"), QueueRef("a", "B")),
    (QueueRef("a", "1"), QueueRef("a1", "1")),
    (QueueRef("a", "11"), QueueRef("a1", "1")),
    (QueueRef("\u00e9", "b"), QueueRef("e\u0301", "b")),
    (QueueRef("a", "b"), QueueRef("b", "a")),
]


@pytest.mark.parametrize("pair", LOOKALIKES, ids=repr)
def test_lookalike_queue_names_are_distinct(scene: Scene, pair: tuple[QueueRef, QueueRef]):
    for mine, theirs in (pair, pair[::-1]):
        here = scene.at(mine.name, project=mine.project)
        there = scene.at(theirs.name, project=theirs.project)
        kept = there.post(4)
        there.take(1, name="same")
        here.post(3)
        here.take(1, name="same")
        here.delete_many(kept)
        here.pop(1)
        here.release("same")
        scene.storage.queues.purge(mine)
        scene.storage.queues.update(mine, b"{}", b'{"mine": 1}')
        scene.storage.queues.delete(mine)
        scene.tick(1)
        scene.reclaimed()
        assert there.held("same") == kept[:1]
        assert there.counts() == (1, 3)
        assert ids_of(there.walk()) == kept
        assert there.claimable() == kept[1:]
        found = scene.storage.queues.get(theirs)
        assert found is not None
        assert b"mine" not in found.metadata
        scene.storage.queues.delete(theirs)


def test_every_project_sees_its_own_queues_only(scene: Scene):
    assert len(set(PROJECTS)) == len(PROJECTS)
    for at, project in enumerate(PROJECTS):
        for name in NAMES[: 1 + at % len(NAMES)]:
            scene.storage.queues.create(QueueRef(project, name), b'{"at": %d}' % at)
    for at, project in enumerate(PROJECTS):
        expected = sorted(NAMES[: 1 + at % len(NAMES)])
        page = scene.storage.queues.list(project, "", 100)
        assert [queue.ref for queue in page.items] == [QueueRef(project, name) for name in expected]
        assert {queue.metadata for queue in page.items} == {b'{"at": %d}' % at}
        assert scene.storage.queues.count(project) == len(expected)
    for name in NAMES:
        scene.storage.queues.delete(QueueRef("a", name))
        scene.storage.queues.delete(QueueRef("x" * 255, name))
    for at, project in enumerate(PROJECTS):
        left = 0 if project in ("a", "x" * 255) else 1 + at % len(NAMES)
        assert scene.storage.queues.count(project) == left
        assert len(scene.storage.queues.list(project, "", 100).items) == left


def test_a_listing_of_queues_stops_at_the_project(scene: Scene):
    for project, name in itertools.product(["a", "a\x00", "a/", "b", "aa"], ["q1", "q2"]):
        scene.storage.queues.create(QueueRef(project, name), b"{}")
    for after, expected in [("", ["q1", "q2"]), ("q1", ["q2"]), ("q2", []), ("~", []), ("\U0010ffff", [])]:
        page = scene.storage.queues.list("a", after, 100)
        assert [queue.ref for queue in page.items] == [QueueRef("a", name) for name in expected]


def test_every_project_has_its_own_messages(scene: Scene):
    rooms = [scene.at("jobs", project=project) for project in PROJECTS]
    posted = [room.post(2 + at % 3) for at, room in enumerate(rooms)]
    for room, ids in zip(rooms, posted, strict=True):
        assert ids_of(room.walk()) == ids
        assert room.counts() == (0, len(ids))
        assert ids_of(room.get([id for some in posted for id in some])) == ids
    for room, ids in zip(rooms, posted, strict=True):
        assert room.claimable(1) == ids[:1]
    for room, ids in zip(rooms, posted, strict=True):
        assert room.counts() == (1, len(ids) - 1)
        assert room.pop() == ids[1:]


def test_ids_of_another_project_are_unknown(scene: Scene):
    """Get, delete and claim verbs do not reach another project, even with the right ids."""
    rival = scene.rival
    posted = scene.post(3)
    claim = scene.take(1)
    rival.post(1)
    assert rival.get(posted) == []
    rival.delete(posted[0], claim.id)
    rival.delete(posted[1])
    rival.delete_many(posted)
    rival.delete_many(posted, [claim.id])
    rival.release(claim.id)
    with pytest.raises(ClaimNotFound):
        rival.held(claim.id)
    with pytest.raises(ClaimNotFound):
        rival.renew(claim.id)
    with pytest.raises(ClaimNotHeld):
        rival.delete(rival.page()[0], claim.id)
    assert scene.held(claim.id) == posted[:1]
    assert ids_of(scene.walk()) == posted
    assert rival.counts() == (0, 1)


def test_equal_ids_in_two_projects_are_two_messages(scene: Scene):
    """Changes in one project do not affect the message with the same id in another project."""
    rival = scene.rival
    ids = new_ids(3, scene.now)
    for room, body in [(scene, b'"mine"'), (rival, b'"theirs"')]:
        room.storage.messages.post(room.queue, [Draft(id, body, 600, 0, "alice") for id in ids], room.now)
    assert {message.body for message in scene.walk()} == {b'"mine"'}
    assert {message.body for message in rival.get(ids)} == {b'"theirs"'}
    claim = scene.take(1)
    assert rival.page() == ids
    scene.delete(ids[0], claim.id)
    scene.delete_many(ids[1:2])
    assert scene.pop() == ids[2:]
    assert ids_of(rival.get(ids)) == ids
    rival.storage.queues.delete(rival.queue)
    assert rival.get(ids) == []


def test_hostile_ids_find_nothing(scene: Scene):
    posted = scene.post(2)
    claim = scene.take(1)
    odd = ["", "/", "\x00", posted[0][:-1], posted[0] + "\x00", posted[0].upper() + "g", "\U0001f600", "*", "x" * 5000]
    assert scene.get(odd) == []
    scene.delete_many(odd)
    for id in odd:
        scene.delete(id)
        scene.delete(id, claim.id)
        scene.release(id)
        with pytest.raises(ClaimNotFound):
            scene.held(id)
    assert ids_of(scene.walk()) == posted
    assert scene.held(claim.id) == posted[:1]


def test_dead_letters_stay_in_their_project(scene: Scene):
    rival = scene.rival
    for room in (scene, rival):
        room.post(1)
        room.release(room.take().id)
    moved = scene.page()
    assert scene.claim(dead_letters=DeadLetters(QueueRef("acme", "dead"), 1, None)) is None
    assert scene.at("dead").page() == moved
    assert not rival.at("dead").exists()
    assert rival.counts() == (0, 1)


@pytest.mark.parametrize("neighbour", ["a", "z"])
def test_statistics_of_an_empty_queue_have_nothing_of_other_projects(scene: Scene, neighbour: str):
    rival = scene.at("jobs", project=neighbour)
    rival.post(5)
    scene.post(2)
    rival.post(5)
    assert len(scene.pop()) == 2
    assert scene.stats() == Stats()
    scene.post(1, ttl=60)
    scene.tick(60)
    assert scene.stats() == Stats()


def test_every_project_has_its_own_history_keys_and_stages(scene: Scene):
    rooms = [scene.at("jobs", project=project) for project in PROJECTS]
    posted = [room.post(3, once=make_key()) for room in rooms]
    staged = [room.stage("s1", 1 + at % 3) for at, room in enumerate(rooms)]
    for room, ids in zip(rooms, posted, strict=True):
        assert room.named("etl.0", 2) == (ids[:2], False)
        assert room.settle("etl.0", delete=ids[:1], move=[Move(ids[1], "next")], history=600).moved == 1
        assert room.fence() == Fence("job", 1)
    for at, room in enumerate(rooms):
        assert room.finished() == [(posted[at][0], "deleted"), (posted[at][1], "moved")]
        assert ids_of(one.message for one in room.tail()) == posted[at]
        assert room.at("next").page() == posted[at][1:2]
        with pytest.raises(Repeated) as told:
            room.post(3, once=make_key())
        assert told.value.answer == posted[at]
        with pytest.raises(ProducerNotFound):
            room.last()
        assert room.commit(at, ["s1"], fence=Fence("job", 1)) == CommitResult(at, len(staged[at]), 0)
        assert room.page() == posted[at][2:] + staged[at]
    assert [room.last().batch for room in rooms] == list(range(len(rooms)))


def test_settlements_moves_and_commits_do_not_reach_another_project(scene: Scene):
    rival = scene.rival
    posted = scene.post(4)
    scene.named("etl.0", 2)
    scene.delete(posted[3], history=600)
    staged = scene.stage("s1", 2)
    own = rival.post(1)
    assert rival.move(posted, "jobs") == []
    with pytest.raises(ClaimNotFound):
        rival.settle("etl.0", rest=True)
    assert rival.named("etl.0") == (own, False)
    assert rival.settle("etl.0", delete=posted[:2], move=[Move(posted[2], "jobs")]).lost == posted[:3]
    assert (rival.history(), rival.storage.history.get(rival.queue, posted, rival.now)) == ([], [])
    rival.drop_stage("s1")
    with pytest.raises(StageNotFound):
        rival.commit(1, ["s1"])
    for _ in range(2):
        rival.fence()
    with pytest.raises(ClaimLapsed):
        rival.commit(1, [], [ClaimRef(QueueRef("rival", "other"), "etl.0")])
    assert scene.commit(1, ["s1"], [ClaimRef(scene.queue, "etl.0")], fence=scene.fence()) == CommitResult(1, 2, 2)
    assert scene.page() == posted[2:3] + staged
    with pytest.raises(Fenced):
        rival.renew("etl.0", fence=Fence("job", 1))
    assert rival.held("etl.0") == own
