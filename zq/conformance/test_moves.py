# SPDX-License-Identifier: Apache-2.0
"""Moves: the owner or the holder moves a message to another queue atomically (extensions, sections 3 and 4, law L7)."""

import json
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from zq.conformance.builders import Scene, drafts, ids_of, near, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import QueueNotFound
from zq.model import Draft, ListFilter, Move, SettleResult, new_ids

pytestmark = pytest.mark.pools


@pytest.fixture(params=["owner", "holder"])
def way(request: pytest.FixtureRequest) -> str:
    """Return the verb that moves: ``messages.move`` takes ready messages, ``claims.settle`` the claim's messages."""
    return request.param


def go(scene: Scene, way: str, moves: list[Move]) -> None:
    """Move the messages in this order. If ``way`` is a settlement, claim the ready messages first."""
    if way == "owner":
        assert scene.storage.messages.move(scene.queue, moves, scene.now) == [move.id for move in moves]
    else:
        claim = scene.take(1000, ttl=60)
        buried = sum(bool(move.reason) for move in moves)
        done = scene.settle(claim.id, move=moves)
        assert (done.moved, done.buried) == (len(moves) - buried, buried)


def posted_with(scene: Scene, checksum: str, ttl: int = 600) -> str:
    [id] = new_ids(1, scene.now)
    scene.storage.messages.post(scene.queue, [Draft(id, b'{"old": 1}', ttl, 0, "bob", checksum)], scene.now)
    return id


def test_a_moved_message_arrives_whole_ready_and_unclaimed(scene: Scene, way: str):
    """Id, body, client and checksum are kept. Age, ttl and claim count restart."""
    id = posted_with(scene, "MD5:x")
    scene.release(scene.take().id)
    scene.tick(100)
    go(scene, way, [Move(id, "next")])
    there = scene.at("next")
    found = there.one(id)
    assert (found.created, found.expires, found.available) == (near(scene.now), near(scene.now + 600), near(scene.now))
    assert (found.body, found.ttl, found.client, found.checksum) == (b'{"old": 1}', 600, "bob", "MD5:x")
    assert (found.claim, found.claim_count, found.origin, found.origin_claim_count, found.reason) == ("", 0, "", 0, "")
    assert there.claimable() == [id]


@pytest.mark.fresh_store
def test_a_moved_message_leaves_nothing_in_its_former_queue(scene: Scene, way: str):
    posted = scene.post(3)
    go(scene, way, [Move(id, "next") for id in posted])
    there = scene.at("next")
    for seconds in (0, 60, 400):
        scene.tick(seconds)
        scene.reclaimed()
        assert scene.get(posted) == []
        assert scene.is_empty()
        assert (scene.claim(), scene.pop()) == (None, [])
        scene.delete(posted[0])
        scene.delete_many(posted)
        assert there.page() == posted
        assert there.counts() == (0, 3)
    scene.storage.queues.purge(scene.queue)
    scene.storage.queues.delete(scene.queue)
    assert there.claimable() == posted


@pytest.mark.fresh_store
@pytest.mark.parametrize(("given", "lives"), [(9999, 9999), (60, 60), (None, 600)])
def test_the_ttl_of_a_moved_message_starts_at_its_move(scene: Scene, way: str, given: int | None, lives: int):
    """The ttl is that of the move, or else the message's own. It restarts, and maintenance uses the new expiry."""
    id = posted_with(scene, "")
    scene.tick(500)
    go(scene, way, [Move(id, "next", given)])
    there = scene.at("next")
    assert (there.one(id).ttl, there.one(id).expires) == (lives, near(scene.now + lives))
    scene.tick(lives - 0.001)
    scene.reclaimed()
    assert there.page() == [id]
    scene.tick(0.001)
    assert there.is_empty()


@pytest.mark.parametrize("body", [None, b"[2]"])
def test_a_move_can_keep_the_age(scene: Scene, way: str, body: bytes | None):
    """A move that keeps the age restarts only the ttl, also if it is repeated. Other moves restart both."""
    id, born = posted_with(scene, ""), scene.now
    source = scene
    for name, reason in (("next", ""), ("dead", "odd"), ("back", "")):
        source.tick(500)
        go(source, way, [Move(id, name, body=body, reason=reason, keeps_age=True)])
        there = scene.at(name)
        found = there.one(id)
        assert (found.created, found.expires, found.reason) == (near(born), near(scene.now + 600), reason)
        assert found.first_claimed == (near(scene.now) if reason and way == "holder" else 0)
        assert [message.created for message in there.walk()] == [near(born)]
        oldest = there.storage.queues.stats(there.queue, scene.now).oldest
        assert oldest is not None
        assert oldest.created == near(born)
        source = there
    source.tick(500)
    go(source, way, [Move(id, "end")])
    assert scene.at("end").one(id).created == near(scene.now)
    scene.tick(600)
    assert scene.at("end").is_empty()


@pytest.mark.parametrize(
    ("body", "given", "shown"), [(None, "", "MD5:x"), (b"[2]", "MD5:y", "MD5:y"), (b"[2]", "", "")]
)
def test_a_move_can_replace_the_body(scene: Scene, way: str, body: bytes | None, given: str, shown: str):
    """A new body has the move's checksum or none. A kept body keeps its own."""
    id = posted_with(scene, "MD5:x")
    go(scene, way, [Move(id, "next", body=body, checksum=given)])
    found = scene.at("next").one(id)
    assert (found.body, found.checksum) == (body or b'{"old": 1}', shown)


def test_a_message_moved_with_a_delay_is_delayed(scene: Scene, way: str):
    """The message is hidden to the last millisecond and does not block messages behind it."""
    posted = scene.post(2)
    go(scene, way, [Move(id, "next", delay=30) for id in posted])
    there = scene.at("next")
    assert there.page(ListFilter(delayed=True)) == posted
    assert there.one(posted[0]).available == near(scene.now + 30)
    fresh = there.post(1)
    assert there.claimable() == fresh
    scene.tick(29.999)
    assert there.claim() is None
    scene.tick(0.001)
    assert there.claimable() == posted


def test_moved_messages_are_ordered_like_new_ones(scene: Scene, way: str):
    """Moved messages come after those of the queue, in the order of the moves, and before later posts (L5)."""
    posted = scene.post(4)
    scene.tick(10)
    there = scene.at("next")
    before = there.post(2)
    go(scene, way, [Move(id, "next") for id in posted[::-1]])
    after = there.post(2)
    assert there.page() == before + posted[::-1] + after
    assert there.claimable() == before + posted[::-1] + after


def test_a_move_by_a_slower_clock_keeps_its_place(scene: Scene, way: str):
    """A moved message is available no earlier than the last fresh message of its new queue."""
    posted = scene.post(1)
    there = scene.at("next")
    ahead = drafts(1, scene.now)
    there.storage.messages.post(there.queue, ahead, scene.now + 0.05)
    go(scene, way, [Move(posted[0], "next")])
    scene.tick(0.05)
    assert there.one(posted[0]).available == near(scene.now)
    assert there.claimable() == ids_of(ahead) + posted


def test_a_moved_message_comes_after_every_issued_marker(scene: Scene, way: str):
    posted = scene.post(2)
    there = scene.at("next")
    seen = there.post(5)
    marker = there.one(seen[-1]).sequence
    go(scene, way, [Move(id, "next") for id in posted])
    assert there.page(marker=marker) == posted
    assert [id for id in ids_of(there.walk(limit=2)) if id in posted] == posted


def test_a_move_into_its_own_queue_gives_a_new_position(scene: Scene, way: str):
    """The message has a new sequence, comes behind all others, and its counts restart."""
    posted = scene.post(3)
    marker = scene.one(posted[-1]).sequence
    scene.tick(10)
    go(scene, way, [Move(posted[0], scene.queue.name, body=b"[1]")])
    scene.tick(60)
    assert scene.page() == posted[1:] + posted[:1]
    assert scene.page(marker=marker) == posted[:1]
    assert scene.counts() == (0, 3)
    assert (scene.one(posted[0]).body, scene.one(posted[0]).created) == (b"[1]", near(scene.now - 60))
    assert scene.pop(1) == (posted[1:2] if way == "owner" else posted[:1])


def test_a_move_creates_a_missing_queue(scene: Scene, way: str):
    """The new queue has no metadata; an existing queue keeps its own. A move of no messages creates no queue."""
    assert scene.move(["unknown"], "next") == []
    assert not scene.at("next").exists()
    posted = scene.post(2)
    go(scene, way, [Move(posted[0], "next")])
    made = scene.storage.queues.get(scene.at("next").queue)
    assert made is not None
    assert json.loads(made.metadata) == {}
    scene.storage.queues.update(made.ref, made.metadata, b'{"a": 1}')
    scene.tick(60)
    go(scene, way, [Move(posted[1], "next")])
    made = scene.storage.queues.get(scene.at("next").queue)
    assert made is not None
    assert made.metadata == b'{"a": 1}'
    assert scene.storage.queues.count(scene.queue.project) == 2


def test_a_move_that_must_not_create_its_target_changes_nothing(scene: Scene, way: str):
    """A call with such a move moves nothing, even to targets that exist. Once the target exists, the move succeeds."""
    posted = scene.post(3)
    scene.at("there").post(1)
    moves = [Move(posted[0], "there", may_create=False), Move(posted[1], "missing", may_create=False)]
    claim = scene.take(2, ttl=60) if way == "holder" else None

    def work() -> Sequence[str] | SettleResult:
        if claim is None:
            return scene.storage.messages.move(scene.queue, moves, scene.now)
        return scene.settle(claim.id, rest=True, move=moves)

    with pytest.raises(QueueNotFound):
        work()
    assert not scene.at("missing").exists()
    assert scene.at("there").stats().free == 1
    assert ids_of(scene.walk()) == posted
    scene.storage.queues.create(scene.at("missing").queue, b"{}")
    assert work()
    assert scene.at("there").stats().free == 2
    assert scene.at("missing").claimable() == [posted[1]]


def test_a_large_move_that_must_not_create_its_last_target_changes_nothing(scene: Scene):
    posted = scene.post(150)
    scene.at("there").post(1)
    moves = [Move(id, "there", may_create=False) for id in posted[1:]]
    with pytest.raises(QueueNotFound):
        scene.storage.messages.move(scene.queue, [*moves, Move(posted[0], "missing", may_create=False)], scene.now)
    assert scene.at("there").stats().free == 1
    assert scene.page() == posted


def test_one_call_moves_into_several_queues(scene: Scene, way: str):
    """Each move has its own terms; every queue gets its messages in the order of the moves."""
    posted = scene.post(5)
    names = ["a", "b", "a", scene.queue.name, "b"]
    go(scene, way, [Move(id, name, ttl=100 + at) for at, (id, name) in enumerate(zip(posted, names, strict=True))])
    assert scene.at("a").page() == [posted[0], posted[2]]
    assert scene.at("b").page() == [posted[1], posted[4]]
    assert [message.ttl for message in scene.at("a").walk() + scene.walk()] == [100, 102, 103]


def test_hundreds_of_messages_are_moved_at_once(scene: Scene, way: str):
    posted = scene.post(700)
    go(scene, way, [Move(id, "next") for id in posted])
    assert scene.is_empty()
    assert scene.at("next").page() == posted
    assert scene.at("next").claimable(1000) == posted


def test_a_move_without_a_claim_moves_only_ready_messages(scene: Scene):
    """Claimed, delayed, expired and unknown messages, and messages of other queues, stay and are not in the result."""
    expired = scene.post(1, ttl=5)
    claimed = scene.post(1)
    scene.tick(5)
    claim = scene.take(1)
    back = scene.post(1)
    scene.release(scene.take(1).id, 60)
    ready = scene.post(2)
    delayed = scene.post(1, delay=60)
    elsewhere = scene.at("elsewhere").post(1)
    rival = scene.rival.post(1)
    asked = [ready[1], *expired, *claimed, *back, *delayed, *elsewhere, *rival, "unknown", ready[0]]
    assert scene.move(asked, "next") == ready[::-1]
    assert scene.at("next").page() == ready[::-1]
    assert scene.held(claim.id) == claimed
    assert ids_of(scene.walk()) == claimed + back + delayed
    assert scene.at("elsewhere").page() == elsewhere


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_moves_in_both_directions_lose_and_duplicate_nothing(scene: Scene):
    """Owners and holders move messages between two queues while consumers claim and delete. No message is lost."""
    other = scene.at("other")
    posted = scene.post(40) + other.post(40)

    def owner(here: Scene, there: Scene) -> list[str]:
        for _ in range(15):
            here.move(here.page(limit=5), there.queue.name)
        return []

    def holder(here: Scene, there: Scene) -> list[str]:
        for _ in range(15):
            claim = here.claim(4)
            if claim is not None:
                ids = ids_of(claim.messages)
                told = here.settle(claim.id, rest=True, move=[Move(id, there.queue.name) for id in ids])
                assert (told.moved, told.deleted, told.lost) == (len(ids), 0, [])
        return []

    def worker(here: Scene) -> list[str]:
        done: list[str] = []
        for _ in range(5):
            claim = here.claim(1)
            if claim is not None:
                assert here.settle(claim.id, rest=True).deleted == 1
                done += ids_of(claim.messages)
        return done

    both = [(scene, other), (other, scene)]
    works = [partial(work, *rooms) for work in (owner, holder) for rooms in both] + [
        partial(worker, r[0]) for r in both
    ]
    done = [id for some in run_together(*works) for id in some]
    left = ids_of(scene.walk()) + ids_of(other.walk())
    assert sorted(left + done) == sorted(posted)
    assert scene.counts()[1] + other.counts()[1] == len(left)
    assert sorted(scene.claimable() + other.claimable()) == sorted(left)


@ONE_OR_TWO_CONNECTIONS
def test_a_moving_message_is_in_exactly_one_queue(scene: Scene, way: str):
    """A read of the source, then of the target, finds the message. The reverse order never finds it twice."""
    posted = scene.post(40)
    there = scene.at("next")
    stop = threading.Event()

    def mover() -> None:
        try:
            for id in posted:
                claim = scene.take(1) if way == "holder" else None
                if claim:
                    scene.settle(claim.id, move=[Move(id, "next")])
                else:
                    scene.move([id], "next")
        finally:
            stop.set()

    def watcher() -> None:
        while not stop.is_set():
            before, after = scene.get(posted), there.get(posted)
            assert len({*ids_of(before), *ids_of(after)}) == 40
            after, before = there.get(posted), scene.get(posted)
            assert not {*ids_of(before)} & {*ids_of(after)}

    run_together(mover, watcher)
    assert there.page() == posted


def test_many_large_messages_move_together(scene: Scene):
    """The move is atomic, although it is larger than a single store command."""
    body = b'"' + b"x" * 250_000 + b'"'
    for _ in range(7):
        drafts = [Draft(id, body, 3600, 0, "alice") for id in new_ids(10, scene.now)]
        scene.storage.messages.post(scene.queue, drafts, scene.now)
    ids = scene.page()
    moves = [Move(id, "other") for id in ids]
    assert list(scene.storage.messages.move(scene.queue, moves, scene.now)) == ids
    assert scene.at("other").page() == ids
    assert scene.is_empty()
