# SPDX-License-Identifier: Apache-2.0
"""Idempotent requests: a repeat within the window returns the first result and does nothing (extensions, section 6)."""

from collections.abc import Callable
from functools import partial

import pytest
from msgspec import structs

from zq.conformance.builders import Scene, drafts, ids_of, make_key, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import (
    ClaimNotFound,
    DraftsRepeated,
    KeyReused,
    QueueNotFound,
    Repeated,
    StageFull,
    StageNotFound,
    ZqError,
)
from zq.model import Copies, Draft, IdempotencyKey, Move, SettleResult


def answer_of(verb: Callable[[], object]) -> object:
    """Return the result of a request. If it is a repeat, return the first result."""
    with pytest.raises(Repeated) as told:
        verb()
    return told.value.answer


def test_a_repeated_post_stores_nothing_and_gets_the_first_ids(scene: Scene):
    posted = scene.post(3, once=make_key())
    for count in (3, 1, 5):
        assert answer_of(partial(scene.post, count, once=make_key())) == posted
    assert scene.page() == posted
    assert scene.counts() == (0, 3)


def test_a_repeat_returns_the_last_sequence(scene: Scene):
    """The result has the sequence of the first request's last message, even if it is delayed or removed."""
    scene.post(2)
    posted = scene.post(3, delay=60, once=make_key())
    scene.post(2)
    last = scene.one(posted[-1]).sequence
    for _ in range(2):
        with pytest.raises(Repeated) as told:
            scene.post(1, once=make_key())
        assert (told.value.answer, told.value.last) == (posted, last)
        scene.storage.queues.purge(scene.queue)
    own, copies = drafts(2, scene.now), Copies(scene.at("beside").queue, drafts(3, scene.now))
    post = partial(scene.storage.messages.post, scene.queue, own, scene.now, None, make_key("post:copied"), copies)
    post()
    with pytest.raises(Repeated) as told:
        post()
    assert (told.value.answer, told.value.last) == (ids_of(own), scene.one(own[-1].id).sequence)


def keyed(scene: Scene, *names: str, **terms: int) -> list[Draft]:
    """Return a draft for each name, with the name as its idempotency key; "" = no key."""
    made = drafts(len(names), scene.now, **terms)
    return [structs.replace(one, once=make_key(name)) if name else one for one, name in zip(made, names, strict=True)]


def repeats(scene: Scene, some: list[Draft], **more: object) -> dict[str, tuple[list[str], int]]:
    """Post drafts. Return the first ids and the sequence of each repeated draft, by draft id."""
    with pytest.raises(DraftsRepeated) as told:
        scene.storage.messages.post(scene.queue, some, scene.now, **more)  # type: ignore[arg-type]
    return {id: (one.answer, one.last) for id, one in told.value.first.items()}


def test_a_repeated_draft_refuses_the_whole_post(scene: Scene):
    """Nothing is stored. The error has the repeated drafts, so the caller can post the others."""
    first = keyed(scene, "a", "", "b")
    scene.storage.messages.post(scene.queue, first, scene.now)
    places = [scene.one(id).sequence for id in ids_of(first)]
    again = keyed(scene, "c", "b", "", "a")
    expected = {again[1].id: ([first[2].id], places[2]), again[3].id: ([first[0].id], places[0])}
    assert repeats(scene, again) == expected
    scene.storage.queues.purge(scene.queue)
    assert repeats(scene, again) == expected
    assert scene.is_empty()
    rest = [again[0], again[2]]
    scene.storage.messages.post(scene.queue, rest, scene.now)
    assert scene.page() == ids_of(rest)
    assert repeats(scene, again[:1]) == {again[0].id: ([again[0].id], scene.one(again[0].id).sequence)}


@pytest.mark.fresh_store
def test_keys_of_drafts_have_separate_windows(scene: Scene):
    """Each key expires after its own window. Then a draft with this key is stored again."""
    some = keyed(scene, "a", "b")
    some[1] = structs.replace(some[1], once=make_key("b", window=60))
    scene.storage.messages.post(scene.queue, some, scene.now)
    scene.tick(60)
    scene.reclaimed()
    again = keyed(scene, "a", "b")
    assert list(repeats(scene, again)) == [again[0].id]
    scene.storage.messages.post(scene.queue, again[1:], scene.now)
    assert scene.page() == [*ids_of(some), again[1].id]
    scene.storage.queues.delete(scene.queue)
    anew = keyed(scene, "a", "b")
    scene.storage.messages.post(scene.queue, anew, scene.now)
    assert scene.page() == ids_of(anew)


def test_keys_of_drafts_combine_with_copies_and_other_keys(scene: Scene):
    """Keys of drafts combine with copies, the key of the post and expected metadata.

    If a draft is a repeat, copies are not stored either. The key of the post is checked first, and expected metadata
    last. A known key with another digest refuses the whole post.
    """
    beside = scene.at("beside")
    copies = Copies(beside.queue, drafts(2, scene.now))
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    some = keyed(scene, "a", "b")
    post = partial(scene.storage.messages.post, scene.queue)
    post(some, scene.now, None, make_key("whole"), copies, create=False)
    assert beside.counts() == (0, 2)
    again = keyed(scene, "b", "c")
    assert answer_of(partial(post, again, scene.now, None, make_key("whole"))) == ids_of(some)
    copies = Copies(beside.queue, drafts(2, scene.now))
    assert list(repeats(scene, again, copies=copies, expected=b"{}", create=False)) == [again[0].id]
    assert post(again[1:], scene.now, b"{}") == b'{"a": 1}'
    assert beside.counts() == (0, 2)
    other = structs.replace(again[1], once=make_key("a", b"other"))
    for refused in ([again[0], other], [other, again[0]]):
        with pytest.raises(KeyReused):
            post(refused, scene.now)
    assert scene.page() == ids_of(some)
    with pytest.raises(QueueNotFound):
        scene.storage.messages.post(scene.at("none").queue, again, scene.now, create=False)


@ONE_OR_TWO_CONNECTIONS
def test_each_of_many_drafts_is_stored_once(scene: Scene):
    """Eight threads post overlapping drafts: every key has one message."""

    def work(number: int) -> dict[str, str]:
        names = [f"k{(number + at) % 6}" for at in range(3)]
        some = keyed(scene, *names)
        stored: dict[str, str] = {}
        while some:
            try:
                scene.storage.messages.post(scene.queue, some, scene.now)
                told = {one.id: one.id for one in some}
            except DraftsRepeated as first:
                told = {id: one.answer[0] for id, one in first.first.items()}
            stored |= {one.once.key: told[one.id] for one in some if one.once and one.id in told}
            some = [one for one in some if one.id not in told]
        return stored

    found = run_together(*(partial(work, number) for number in range(8)))
    merged: dict[str, set[str]] = {}
    for one in found:
        for key, id in one.items():
            merged.setdefault(key, set()).add(id)
    assert {len(ids) for ids in merged.values()} == {1}
    assert sorted(scene.page()) == sorted(id for ids in merged.values() for id in ids)


@pytest.mark.fresh_store
def test_a_key_outlives_its_messages(scene: Scene):
    posted = scene.post(2, ttl=60, once=make_key())
    assert scene.pop(1) == posted[:1]
    assert answer_of(partial(scene.post, once=make_key())) == posted
    scene.storage.queues.purge(scene.queue)
    assert answer_of(partial(scene.post, once=make_key())) == posted
    scene.tick(60)
    scene.reclaimed()
    assert answer_of(partial(scene.post, once=make_key())) == posted
    assert scene.is_empty()


def test_a_key_for_another_request_is_refused(scene: Scene):
    """A known key with another digest stores nothing. The first request can still be repeated."""
    posted = scene.post(1, once=make_key(digest=b"one"))
    with pytest.raises(KeyReused):
        scene.post(1, once=make_key(digest=b"two"))
    assert answer_of(partial(scene.post, once=make_key(digest=b"one"))) == posted
    assert scene.page() == posted


@pytest.mark.fresh_store
def test_a_key_is_forgotten_after_its_window(scene: Scene):
    """The key is kept to the last millisecond of its window. Then it is free for any digest."""
    first = scene.post(1, once=make_key(window=60))
    scene.tick(59.999)
    scene.reclaimed()
    assert answer_of(partial(scene.post, once=make_key(window=9999))) == first
    scene.tick(0.001)
    second = scene.post(2, once=make_key(digest=b"other", window=600))
    assert scene.page() == first + second
    scene.tick(599)
    scene.reclaimed()
    assert answer_of(partial(scene.post, once=make_key(digest=b"other"))) == second
    scene.tick(1)
    assert scene.reclaimed() == 0
    assert len(scene.post(1, once=make_key())) == 1


def test_keys_that_differ_in_a_character_are_distinct(scene: Scene):
    keys = ["post:a", "post:A", "post:a ", "post:", "settle:a", "post:" + "x" * 255, "post:a/b", "post:a:", "a"]
    rooms = [scene, scene.at("other"), scene.rival]
    made = {(room.queue, key): room.post(1, once=make_key(key)) for room in rooms for key in keys}
    for room in rooms:
        assert room.page() == [made[room.queue, key][0] for key in keys]
        for key in keys:
            assert answer_of(partial(room.post, once=make_key(key))) == made[room.queue, key]


def test_a_post_that_was_not_stored_is_not_remembered(scene: Scene):
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    new = drafts(1, scene.now)
    post = partial(scene.storage.messages.post, scene.queue, new, scene.now)
    assert post(b"{}", make_key()) == b'{"a": 1}'
    assert post(b'{"a": 1}', make_key()) is None
    assert scene.page() == ids_of(new)


def test_a_repeat_is_recognized_before_expected_metadata(scene: Scene):
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    posted = scene.post(1, once=make_key())
    post = scene.storage.messages.post
    assert answer_of(partial(post, scene.queue, drafts(1, scene.now), scene.now, b"{}", make_key())) == posted
    with pytest.raises(KeyReused):
        post(scene.queue, drafts(1, scene.now), scene.now, b"{}", make_key(digest=b"other"))


def test_keys_are_deleted_with_their_queue(scene: Scene):
    scene.post(1, once=make_key())
    other = scene.at("jobs2")
    kept = other.post(1, once=make_key())
    scene.storage.queues.delete(scene.queue)
    posted = scene.post(1, once=make_key())
    assert scene.page() == posted
    assert answer_of(partial(other.post, once=make_key())) == kept


def test_a_repeated_settlement_gets_the_first_answer(scene: Scene):
    """The repeat does nothing, while the claim is live and after its end."""
    posted = scene.post(4)
    claim = scene.take(4, name="c1")
    settlement = {"delete": [posted[0], "unknown"], "move": [Move(posted[1], "next")], "once": make_key("settle:k")}
    first = scene.settle(claim.id, **settlement)
    assert first == SettleResult(1, 0, 1, 0, ["unknown"])
    assert answer_of(partial(scene.settle, claim.id, **settlement)) == first
    assert answer_of(partial(scene.settle, claim.id, rest=True, once=make_key("settle:k"))) == first
    assert scene.held(claim.id) == sorted(posted[2:])
    scene.settle(claim.id, rest=True)
    assert answer_of(partial(scene.settle, claim.id, **settlement)) == first
    with pytest.raises(KeyReused):
        scene.settle(claim.id, rest=True, once=make_key("settle:k", b"other"))
    assert scene.at("next").page() == posted[1:2]


def test_a_settlement_that_found_no_claim_is_not_remembered(scene: Scene):
    """A later settlement with this key succeeds when there is a claim."""
    with pytest.raises(ClaimNotFound):
        scene.settle("c1", rest=True, once=make_key("settle:k"))
    scene.post(2)
    scene.take(2, name="c1")
    assert scene.settle("c1", rest=True, once=make_key("settle:k")) == SettleResult(2)


def test_a_settlement_with_only_lost_messages_is_remembered(scene: Scene):
    """The settlement counts as executed, because the claim existed."""
    posted = scene.post(1)
    claim = scene.take()
    told = scene.settle(claim.id, delete=["unknown"], once=make_key("settle:k"))
    assert answer_of(partial(scene.settle, claim.id, delete=["unknown"], once=make_key("settle:k"))) == told
    assert scene.held(claim.id) == posted


def test_a_repeated_staging_stages_nothing(scene: Scene):
    """The repeat returns the first ids and stores nothing. Another digest is refused."""
    staged = scene.stage("s1", 2, once=make_key())
    assert answer_of(partial(scene.stage, "s1", 2, once=make_key())) == staged
    with pytest.raises(KeyReused):
        scene.stage("s1", 2, once=make_key(digest=b"other"))
    assert scene.commit(1, ["s1"]).published == 2
    assert scene.page() == staged
    assert answer_of(partial(scene.stage, "s1", 2, once=make_key())) == staged
    with pytest.raises(StageNotFound):
        scene.commit(2, ["s1"])


def test_a_key_of_a_staging_creates_no_queue(scene: Scene):
    """Deleting the queue deletes the key, even if the queue does not exist."""
    staged = scene.stage("s1", 1, once=make_key())
    assert not scene.exists()
    assert scene.storage.queues.count(scene.queue.project) == 0
    assert answer_of(partial(scene.post, once=make_key())) == staged
    scene.storage.queues.delete(scene.queue)
    posted = scene.post(1, once=make_key())
    assert scene.page() == posted


def test_a_staging_that_found_no_room_is_not_remembered(scene: Scene):
    with pytest.raises(StageFull):
        scene.stage("s1", 3, max_bytes=2, once=make_key())
    staged = scene.stage("s1", 3, max_bytes=3, once=make_key())
    assert scene.commit(1, ["s1"]).published == 3
    assert scene.page() == staged


def tried(work: Callable[[], object]) -> object:
    """Return the result, the first result of a repeat, or the class of a refusal."""
    try:
        return work()
    except Repeated as told:
        return told.answer
    except ZqError as refusal:
        return type(refusal)


@ONE_OR_TWO_CONNECTIONS
def test_one_of_many_posts_with_one_key_is_stored(scene: Scene):
    """Eight threads share a key and compete with posts without keys: one request stores, and all get its ids."""
    for turn in range(8):
        room = scene.at(f"q{turn % 4}")
        before = len(room.walk())
        keyed = [partial(tried, partial(room.post, 2, once=make_key(f"post:{turn}")))] * 8
        told = run_together(*keyed, room.post, room.post)
        assert told[:8] == [told[0]] * 8
        assert len(room.get(told[0])) == 2
        assert len(room.walk()) == before + 4


@ONE_OR_TWO_CONNECTIONS
def test_one_of_two_requests_under_one_key_is_carried_out(scene: Scene):
    """Eight threads use one key with two digests. The first digest is stored once; the other one is refused."""
    for turn in range(5):
        room = scene.at(f"q{turn}")
        works = [partial(room.post, once=make_key(digest=b"%d" % (at % 2))) for at in range(8)]
        told = run_together(*(partial(tried, work) for work in works))
        stored = room.page()
        assert len(stored) == 1
        assert {told.count(stored), told.count(KeyReused)} == {4}
        assert told[::2] in ([stored] * 4, [KeyReused] * 4)


@ONE_OR_TWO_CONNECTIONS
def test_one_of_many_settlements_with_one_key_is_carried_out(scene: Scene):
    """All callers get the result of the settlement, although the claim ends with it."""
    for turn in range(8):
        room = scene.at(f"q{turn}")
        posted = room.post(4)
        claim = room.take()
        key: IdempotencyKey = make_key("settle:k")
        work = partial(room.settle, claim.id, rest=True, move=[Move(posted[0], "next")], once=key)
        assert run_together(*[partial(tried, work)] * 6) == [SettleResult(3, 0, 1)] * 6
        assert room.is_empty()
    assert scene.at("next").counts() == (0, 8)
