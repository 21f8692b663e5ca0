# SPDX-License-Identifier: Apache-2.0
"""History: an entry for each finished message, kept for the queue's history time (extensions, section 5, law L6)."""

from collections.abc import Callable

import pytest
from msgspec import structs

from zq.conformance.builders import Scene, ids_of, near
from zq.core.redelivery import DeadLetters
from zq.errors import ClaimNotHeld, MessageClaimed
from zq.model import HistoryEntry, ListFilter, Message, Move, Outcome, Release, Stats

KEPT = 600
GRAVE = "dead"


def by_delete(scene: Scene, id: str, history: int) -> None:
    scene.delete(id, history=history)


def by_holder(scene: Scene, id: str, history: int) -> None:
    scene.delete(id, scene.take().id, history)


def by_bulk(scene: Scene, id: str, history: int) -> None:
    scene.delete_many([id, "unknown"], history=history)


def by_bulk_of_a_holder(scene: Scene, id: str, history: int) -> None:
    scene.delete_many([id], [scene.take().id], history)


def by_pop(scene: Scene, id: str, history: int) -> None:
    assert scene.pop(history=history) == [id]


def by_settlement(scene: Scene, id: str, history: int) -> None:
    scene.settle(scene.take().id, delete=[id], history=history)


def by_the_rest(scene: Scene, id: str, history: int) -> None:
    scene.settle(scene.take().id, rest=True, history=history)


def by_move(scene: Scene, id: str, history: int) -> None:
    assert scene.move([id], "next", history=history) == [id]


def by_settled_move(scene: Scene, id: str, history: int) -> None:
    scene.settle(scene.take().id, move=[Move(id, "next", body=b"[1]", ttl=5)], history=history)


def by_burying(scene: Scene, id: str, history: int) -> None:
    assert scene.move([id], "next", history=history, reason="odd") == [id]


def by_settled_burying(scene: Scene, id: str, history: int) -> None:
    scene.settle(scene.take().id, move=[Move(id, "next", reason="odd")], history=history)


def by_claims(scene: Scene, id: str, history: int) -> None:
    assert scene.claim(dead_letters=DeadLetters(scene.at(GRAVE).queue, 0, None, history)) is None


WAYS: dict[Callable[[Scene, str, int], None], Outcome] = {
    by_delete: Outcome.DELETED,
    by_holder: Outcome.DELETED,
    by_bulk: Outcome.DELETED,
    by_bulk_of_a_holder: Outcome.DELETED,
    by_settlement: Outcome.DELETED,
    by_the_rest: Outcome.DELETED,
    by_pop: Outcome.POPPED,
    by_move: Outcome.MOVED,
    by_settled_move: Outcome.MOVED,
    by_burying: Outcome.DEAD_LETTERED,
    by_settled_burying: Outcome.DEAD_LETTERED,
    by_claims: Outcome.DEAD_LETTERED,
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_way_to_finish_leaves_a_history_entry(scene: Scene, way: Callable[[Scene, str, int], None]):
    """The entry has the message's last state without the claim id. A queue without history keeps no entry."""
    [id] = scene.post(1, ttl=600, client="bob")
    scene.release(scene.take(ttl=60).id)
    scene.tick(5)
    fresh = scene.one(id)
    way(scene, id, KEPT)
    assert scene.get([id]) == []
    [record] = scene.history()
    assert (record.outcome, record.finished) == (WAYS[way], near(scene.now))
    claimed = record.message.claim_count == 2
    expected = structs.replace(fresh, claim_count=2, available=record.message.available) if claimed else fresh
    assert record.message == expected
    assert record.message.available == near(scene.now + 300 if claimed else scene.now - 5)
    assert scene.storage.history.get(scene.queue, [id], scene.now) == [record]
    silent = scene.at("silent")
    way(silent, silent.post(1)[0], 0)
    assert silent.walk() == []
    assert silent.history() == []
    assert silent.tail() == []


@pytest.mark.fresh_store
def test_only_finishing_leaves_a_history_entry(scene: Scene):
    """Posts, claims, renewals, releases, lapses, expiries, purges and refused deletes leave no entry."""
    posted = scene.post(3, ttl=600)
    claim = scene.take(2)
    scene.renew(claim.id, ttl=60)
    scene.delete("unknown", history=KEPT)
    scene.delete_many(["unknown"], history=KEPT)
    with pytest.raises(MessageClaimed):
        scene.delete(posted[0], history=KEPT)
    with pytest.raises(ClaimNotHeld):
        scene.delete_many(posted, [claim.id], KEPT)
    scene.settle(claim.id, delete=posted[2:], release=[Release(posted[0])], history=KEPT)
    scene.tick(60)
    assert scene.move(["unknown"], "next", history=KEPT) == []
    scene.at("other").pop(history=KEPT)
    scene.tick(540)
    scene.delete_many(posted, history=KEPT)
    assert scene.pop(history=KEPT) == []
    scene.reclaimed()
    scene.post(2)
    scene.storage.queues.purge(scene.queue)
    assert scene.history() == []
    assert scene.tail() == []


def test_the_target_of_a_move_has_no_history_entry_of_it(scene: Scene):
    posted = scene.post(2)
    scene.move(posted, "next", history=KEPT)
    there = scene.at("next")
    assert there.history() == []
    assert [(one.message.id, one.outcome) for one in there.tail()] == [(id, None) for id in posted]
    assert [one.outcome for one in scene.tail()] == [Outcome.MOVED] * 2


@pytest.mark.fresh_store
def test_a_history_entry_expires_after_its_retention(scene: Scene):
    """The entry stays until its retention has passed since the finish, whatever the message's own expiry."""
    short, long = scene.post(1, ttl=60)[0], scene.post(1, ttl=9999)[0]
    scene.delete_many([short], history=KEPT)
    scene.delete_many([long], history=KEPT // 2)
    scene.tick(KEPT // 2 - 0.001)
    scene.reclaimed()
    assert ids_of(record.message for record in scene.history()) == [short, long]
    scene.tick(0.001)
    assert ids_of(record.message for record in scene.history()) == [short]
    assert ids_of(one.message for one in scene.tail()) == [short]
    assert scene.storage.history.get(scene.queue, [long], scene.now) == []
    scene.tick(KEPT // 2 - 0.001)
    scene.reclaimed()
    assert scene.finished() == [(short, "deleted")]
    scene.tick(0.001)
    assert (scene.history(), scene.tail()) == ([], [])
    scene.reclaimed()
    assert scene.reclaimed() == 0
    assert (scene.history(), scene.tail()) == ([], [])


def test_history_entries_are_not_messages(scene: Scene):
    """Other verbs do not show, count, claim, pop, move, delete or extend history entries (L3, L10)."""
    posted = scene.post(3)
    scene.pop(history=KEPT)
    assert scene.is_empty()
    assert scene.stats() == Stats()
    assert scene.get(posted) == []
    assert (scene.claim(), scene.pop(), scene.page(ListFilter(claimed=True, delayed=True))) == (None, [], [])
    assert (scene.ready(), scene.due()) == (0, None)
    assert scene.move(posted, "next") == []
    scene.delete(posted[0])
    scene.delete_many(posted, history=KEPT)
    assert scene.finished() == [(id, "popped") for id in posted]


def test_a_claim_among_many_history_entries_finds_living_messages(scene: Scene):
    scene.post(1500)
    assert len(scene.pop(1500, KEPT)) == 1500
    living = scene.post(4)
    assert scene.page(limit=10) == living
    assert scene.counts() == (0, 4)
    assert scene.claimable(2) == living[:2]
    assert scene.pop(10) == living[2:]


def test_get_returns_the_latest_history_entry_of_a_message(scene: Scene):
    """Get returns the latest entry of each id once, in the requested order. It ignores other queues."""
    posted = scene.post(3)
    scene.move(posted[:1], "next", history=KEPT)
    scene.at("next").move(posted[:1], "jobs", history=KEPT)
    scene.tick(1)
    scene.delete(posted[0], history=KEPT)
    scene.delete(posted[2], history=KEPT)
    get = scene.storage.history.get
    asked = [posted[2], "unknown", posted[0], posted[1], posted[2]]
    found = get(scene.queue, asked, scene.now)
    assert [(one.message.id, one.outcome) for one in found] == [(posted[2], "deleted"), (posted[0], "deleted")]
    assert [one.outcome for one in get(scene.at("next").queue, posted, scene.now)] == [Outcome.MOVED]
    assert [one.outcome for one in scene.history()] == [Outcome.MOVED, Outcome.DELETED, Outcome.DELETED]
    assert list(get(scene.queue, [], scene.now)) == []


@pytest.mark.fresh_store
def test_purge_keeps_history_entries_and_deletion_drops_them(scene: Scene):
    """A queue that is created again has no history, also after maintenance."""
    posted = scene.post(3)
    scene.delete(posted[0], history=KEPT)
    scene.storage.queues.purge(scene.queue)
    scene.reclaimed()
    assert scene.finished() == [(posted[0], "deleted")]
    assert scene.tail() == scene.history()
    scene.storage.queues.delete(scene.queue)
    assert (scene.history(), scene.tail()) == ([], [])
    new = scene.post(1)
    scene.reclaimed()
    assert scene.storage.history.get(scene.queue, posted, scene.now) == []
    assert ids_of(one.message for one in scene.tail()) == new
    scene.delete(new[0], history=KEPT)
    assert scene.finished() == [(new[0], "deleted")]


def test_the_tail_shows_living_messages_like_get(scene: Scene):
    """Ready, claimed, lapsed and delayed messages have neither outcome nor position."""
    posted = scene.post(4) + scene.post(1, delay=900)
    scene.take(1, ttl=60)
    scene.release(scene.take(1).id, 900)
    scene.take(1, ttl=900)
    scene.tick(60)
    living: list[Message] = scene.get(posted)
    assert scene.tail() == [HistoryEntry(message) for message in living]
