# SPDX-License-Identifier: Apache-2.0
"""Reading history: order, markers, time ranges, and living messages together with finished ones (L6)."""

import contextlib
import time
from collections.abc import Callable
from functools import partial

import pytest

from zq.conformance.builders import DEADLINE, FAR, RunningWorkers, Scene, ids_of, near, run_together
from zq.errors import ClaimNotFound
from zq.model import HistoryEntry, Move, Outcome, Page, Span

KEPT = 6000


def finished_ids(records: list[HistoryEntry]) -> list[str]:
    return ids_of(record.message for record in records)


def finish_each(scene: Scene, ids: list[str]) -> None:
    """Finish the messages one after the other, a second apart."""
    for id in ids:
        scene.tick(1)
        scene.delete(id, history=KEPT)


def test_history_entries_are_in_the_order_of_finishing(scene: Scene):
    """Entries follow the order of finishing, not of posting; positions rise and finish times never fall."""
    posted = scene.post(6)
    claim = scene.take(2)
    scene.move(posted[5:], "next", history=KEPT)
    scene.tick(1)
    scene.settle(claim.id, delete=[posted[1]], history=KEPT)
    scene.delete(posted[4], history=KEPT)
    scene.tick(1)
    assert scene.pop(2, KEPT) == posted[2:4]
    scene.settle(claim.id, move=[Move(posted[0], "next", reason="odd")], history=KEPT)
    records = scene.history()
    assert finished_ids(records)[:3] == [posted[5], posted[1], posted[4]]
    assert sorted(finished_ids(records)[3:5]) == sorted(posted[2:4])
    assert finished_ids(records)[5:] == posted[:1]
    positions = [record.position for record in records]
    assert positions == sorted(set(positions))
    assert [record.finished - scene.now for record in records] == [near(at) for at in (-2, -1, -1, 0, 0, 0)]


def test_finish_times_never_fall_under_a_slower_clock(scene: Scene):
    """A server whose clock is behind uses the last finish time."""
    posted = scene.post(3)
    delete = scene.storage.messages.delete
    delete(scene.queue, [posted[2]], scene.now + 0.05, history=KEPT)
    delete(scene.queue, [posted[1]], scene.now, history=KEPT)
    scene.tick(0.05)
    delete(scene.queue, [posted[0]], scene.now, history=KEPT)
    records = scene.history()
    assert finished_ids(records) == posted[::-1]
    assert [record.finished for record in records] == [near(scene.now)] * 3


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_of_history_show_every_entry_once(scene: Scene, limit: int):
    """Pages are full while there are enough entries. ``next`` is the last position, or None for an empty page."""
    posted = scene.post(7)
    finish_each(scene, posted[::-1])
    seen: list[HistoryEntry] = []
    page: Page[HistoryEntry] = Page([], "0")
    while page.next is not None:
        page = scene.storage.history.list(scene.queue, int(page.next), limit, Span(0.0, FAR), scene.now)
        assert page.next == (str(page.items[-1].position) if page.items else None)
        assert len(page.items) == min(limit, 7 - len(seen))
        seen += page.items
    assert finished_ids(seen) == posted[::-1]
    assert scene.history(marker=2**63 - 1) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_newest_first_shows_every_entry_once_in_reverse(scene: Scene, limit: int):
    """Pages continue below the marker. A range and a marker combine. Entries that finish later are not shown."""
    posted = scene.post(7)
    start = scene.now
    finish_each(scene, posted)

    def page_below(marker: int, since: float = 0.0, until: float = FAR) -> Page[HistoryEntry]:
        span = Span(since, until)
        return scene.storage.history.list(scene.queue, marker, limit, span, scene.now, newest_first=True)

    seen: list[HistoryEntry] = []
    page = page_below(0)
    while page.items:
        assert page.next == str(page.items[-1].position)
        assert len(page.items) == min(limit, 7 - len(seen))
        seen += page.items
        finish_each(scene, scene.post(1))
        page = page_below(int(page.next))
    assert page.next is None
    assert finished_ids(seen) == posted[::-1]
    assert finished_ids(list(page_below(0, start + 2, start + 4).items)) == posted[2:0:-1][:limit]
    assert finished_ids(list(page_below(seen[4].position, start + 2).items)) == posted[1:2]
    assert page_below(0, until=start + 1).items == []
    assert page_below(1).items == []


def test_newest_first_skips_entries_that_expired(scene: Scene):
    """There are more expired entries than a page can have."""
    old = scene.post(3)
    for id in old:
        scene.delete(id, history=60)
    scene.tick(30)
    [young] = scene.post(1)
    scene.delete(young, history=60)
    scene.tick(40)
    found = scene.storage.history.list(scene.queue, 0, 2, Span(0.0, FAR), scene.now, newest_first=True)
    assert finished_ids(list(found.items)) == [young]


def test_a_time_range_includes_its_start_but_not_its_end(scene: Scene):
    """The range is since <= finished < until, and combines with marker and limit."""
    posted = scene.post(5)
    start = scene.now
    finish_each(scene, posted)
    every = scene.history()
    assert finished_ids(scene.history(since=start + 2, until=start + 4)) == posted[1:3]
    assert finished_ids(scene.history(since=start + 2.001, until=start + 4.001)) == posted[2:4]
    assert finished_ids(scene.history(until=start + 1)) == []
    assert finished_ids(scene.history(since=start + 5)) == posted[4:]
    assert finished_ids(scene.history(since=start + 5.001)) == []
    assert finished_ids(scene.history(limit=2, since=start + 2)) == posted[1:3]
    assert finished_ids(scene.history(marker=every[2].position, since=start + 2)) == posted[3:]
    assert finished_ids(scene.history(marker=every[0].position, since=start + 3, until=start + 5)) == posted[2:4]


@pytest.mark.fresh_store
def test_a_marker_outlives_its_history_entry(scene: Scene):
    """An expired entry does not move the marker; new entries come after every issued marker."""
    posted = scene.post(3)
    scene.delete(posted[0], history=60)
    marker = scene.history()[0].position
    scene.tick(60)
    scene.reclaimed()
    assert scene.history() == []
    for id in posted[1:]:
        scene.delete(id, history=60)
        [record] = scene.history(marker=marker)
        assert record.message.id == id
        marker = record.position
        scene.tick(60)
        scene.reclaimed()


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_living_and_finished_messages_are_listed_together_in_sequence(scene: Scene, limit: int):
    posted = scene.post(4) + scene.post(2, delay=900) + scene.post(3)
    claim = scene.take(3)
    scene.settle(claim.id, delete=posted[1:2], move=[Move(posted[2], "next")], history=KEPT)
    scene.pop(1, KEPT)
    scene.delete(posted[8], history=KEPT)
    tail = scene.tail(limit)
    assert finished_ids(tail) == posted
    outcomes = [None, Outcome.DELETED, Outcome.MOVED, Outcome.POPPED, None, None, None, None, Outcome.DELETED]
    assert [one.outcome for one in tail] == outcomes
    records = {record.message.id: record for record in scene.history()}
    assert [one for one in tail if one.outcome] == [records[id] for id in posted if id in records]
    sequences = [one.message.sequence for one in tail]
    assert sequences == sorted(set(sequences))


def test_a_message_moved_into_its_own_queue_is_listed_at_both_positions(scene: Scene):
    """The history entry has the old sequence, the living message the new one."""
    posted = scene.post(2)
    scene.move(posted[:1], scene.queue.name, history=KEPT)
    assert [(one.message.id, one.outcome) for one in scene.tail()] == [
        (posted[0], Outcome.MOVED),
        (posted[1], None),
        (posted[0], None),
    ]


def test_messages_and_history_entries_that_expired_are_not_in_the_tail(scene: Scene):
    """A thousand expired messages and entries do not shorten a page."""
    scene.post(1000, ttl=60)
    scene.pop(500, history=60)
    kept = scene.post(3)
    scene.delete(kept[1], history=KEPT)
    scene.tick(60)
    page = scene.storage.history.list(scene.queue, 0, 3, None, scene.now)
    assert finished_ids(page.items) == kept


def follow(
    read: Callable[[int], Page[HistoryEntry]], shift: RunningWorkers, marker_of: Callable[[HistoryEntry], int]
) -> list[HistoryEntry]:
    """Read by marker until the workers have finished and there are no more entries."""
    seen: list[HistoryEntry] = []
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        last = shift.is_over()
        page = read(marker_of(seen[-1]) if seen else 0)
        seen += page.items
        if last and not page.items:
            return seen
    raise AssertionError("The reader did not come to an end.")


def test_readers_miss_nothing_while_messages_are_posted_and_finished(scene: Scene):
    """A reader of history and a reader of the whole queue each see every message exactly once, in rising order."""
    shift = RunningWorkers(4)
    history = scene.storage.history

    def worker(at: int) -> list[str]:
        posted: list[str] = []
        with shift.at_work():
            for _ in range(10):
                posted += scene.post(3)
                if at % 2:
                    scene.pop(3, KEPT)
                else:
                    claim = scene.claim(3)
                    if claim is not None:
                        scene.settle(claim.id, rest=True, history=KEPT)
        return posted

    def records(marker: int) -> Page[HistoryEntry]:
        return history.list(scene.queue, marker, 5, Span(0.0, FAR), scene.now)

    def everything(marker: int) -> Page[HistoryEntry]:
        return history.list(scene.queue, marker, 5, None, scene.now)

    results = run_together(
        partial(follow, records, shift, lambda record: record.position),
        partial(follow, everything, shift, lambda one: one.message.sequence),
        *(partial(worker, at) for at in range(4)),
    )
    posted = sorted(id for ids in results[2:] for id in ids)
    living = ids_of(scene.walk())
    assert sorted(finished_ids(results[0]) + living) == posted
    assert sorted(finished_ids(results[1])) == posted
    assert finished_ids(scene.history()) == finished_ids(results[0])
    assert [one.finished for one in results[0]] == sorted(one.finished for one in results[0])


def test_concurrent_finishes_of_a_message_leave_one_history_entry(scene: Scene):
    """Pops, holders and owners race for the same messages: each message has one history entry."""
    posted = scene.post(60)

    def popper() -> None:
        for _ in range(20):
            scene.pop(1, KEPT)

    def holder() -> None:
        for _ in range(20):
            claim = scene.claim(1)
            with contextlib.suppress(ClaimNotFound):  # The owner's bulk delete ignores claims.
                scene.settle(claim.id if claim else "none", rest=True, history=KEPT)

    def owner() -> None:
        for start in range(0, 60, 5):
            scene.delete_many(posted[start : start + 5], history=KEPT)

    def mover() -> None:
        for start in range(59, 0, -3):
            scene.move(posted[start - 2 : start + 1], "next", history=KEPT)

    run_together(popper, holder, owner, mover)
    scene.delete_many(posted, history=KEPT)
    assert sorted(finished_ids(scene.history())) == sorted(posted)
    moved = [id for id, outcome in scene.finished() if outcome == Outcome.MOVED]
    assert sorted(scene.at("next").page()) == sorted(moved)
