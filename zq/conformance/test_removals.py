# SPDX-License-Identifier: Apache-2.0
"""Purge and deletion of a queue, atomic for every observer and for any number of messages (contract 6)."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from zq.conformance.builders import RunningWorkers, Scene, ids_of, make_key, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import ClaimLapsed, ClaimNotFound, Repeated
from zq.model import ClaimRef, Grouping, HandleOutcome, Move, Release

MANY = 2000
WAYS = pytest.mark.parametrize("way", ["delete", "purge"])


def fill(scene: Scene, count: int = MANY) -> list[str]:
    return [id for _ in range(0, count, 500) for id in scene.post(500)]


@pytest.mark.every_server
@ONE_OR_TWO_CONNECTIONS
@WAYS
def test_totals_during_a_removal_show_all_messages_or_none(scene: Scene, way: str):
    """Statistics, depths, listings and reads by id show the whole queue or an empty one.

    After an empty result, no later result shows the whole queue.
    """
    posted = fill(scene)
    some = posted[:: MANY // 50]
    shift = RunningWorkers(1)

    def watch(total: Callable[[], int]) -> Sequence[int]:
        seen = [total()]
        while not shift.is_over():
            seen.append(total())
        return [*seen, total()]

    def remove() -> Sequence[int]:
        with shift.at_work():
            getattr(scene.storage.queues, way)(scene.queue)
        return []

    totals = run_together(
        partial(watch, lambda: sum(scene.counts())),
        partial(watch, lambda: scene.storage.depth(scene.queue, scene.now, 2 * MANY).ready),
        partial(watch, lambda: 2 * len(scene.page(limit=MANY // 2))),
        partial(watch, lambda: MANY * len(scene.get(some)) // len(some)),
        remove,
    )
    for seen in totals[:-1]:
        assert set(seen) <= {0, MANY}
        assert list(seen) == sorted(seen, reverse=True)
        assert seen[-1] == 0


@pytest.mark.every_server
@ONE_OR_TWO_CONNECTIONS
@WAYS
@pytest.mark.parametrize("verb", ["claim", "pop"])
def test_a_consumer_during_a_removal_gets_only_the_queue_front_and_new_messages(scene: Scene, way: str, verb: str):
    """No message comes from the middle of the removed queue, and none after the removal has returned."""
    posted = fill(scene)
    shift = RunningWorkers(1)
    removed = threading.Event()
    late: list[str] = []

    def take() -> list[str]:
        if verb == "pop":
            return scene.pop(3)
        claim = scene.claim(3)
        return ids_of(claim.messages) if claim else []

    def consume() -> list[str]:
        taken = take()
        while not shift.is_over():
            is_late = removed.is_set()
            some = take()
            taken += some
            late.extend(some if is_late else ())
        return taken

    def remove() -> list[str]:
        with shift.at_work():
            getattr(scene.storage.queues, way)(scene.queue)
            removed.set()
            return [id for _ in range(10) for id in scene.post(2)]

    taken, new = run_together(consume, remove)
    front = [id for id in taken if id not in new]
    assert front == posted[: len(front)]
    assert not set(posted) & set(late)
    assert [*taken[len(front) :], *scene.claimable()] == new


@WAYS
@pytest.mark.parametrize("grouping", [Grouping.NONE, Grouping.ORDERED])
def test_no_verb_shows_a_removed_message(scene: Scene, way: str, grouping: Grouping):
    """Before any maintenance, claims and ids are unknown, and names and groups can be reused."""
    scene.storage.queues.create(scene.queue, b"{}", grouping)
    posted = scene.post(8)
    held = scene.take(2)
    assert (scene.claim_named("job.1", 2) is None) == (grouping is Grouping.ORDERED)
    getattr(scene.storage.queues, way)(scene.queue)
    for refused in (
        partial(scene.held, held.id),
        partial(scene.renew, held.id),
        partial(scene.settle, held.id, rest=True),
        partial(scene.settle, held.id, delete=[held.messages[0].id]),
        partial(scene.settle, held.id, release=[Release(held.messages[0].id)], move=[Move(held.messages[1].id, "b")]),
    ):
        with pytest.raises(ClaimNotFound):
            refused()
    with pytest.raises(ClaimLapsed):
        scene.commit(1, settle=[ClaimRef(scene.queue, held.id)])
    scene.release(held.id)
    assert scene.handle(held.messages) == [HandleOutcome.GONE, HandleOutcome.GONE]
    assert scene.handle(held.messages, hold=60) == [HandleOutcome.GONE, HandleOutcome.GONE]
    scene.delete(posted[0], history=60)
    scene.delete(held.messages[0].id, "other")
    assert scene.move(posted, "b") == []
    assert scene.history() == []
    assert scene.storage.locate(scene.queue.project, posted[-1], scene.now) is None
    assert list(scene.storage.claims.list(scene.queue.project, "", 10, scene.now).items) == []
    assert (scene.ready(), scene.due()) == (0, None)
    assert scene.is_empty()
    new = scene.post(3)
    assert scene.named("job.1", 1) == (new[:1], False)
    assert scene.storage.locate(scene.queue.project, new[0], scene.now) is not None


def test_a_deletion_removes_history_and_keys_and_a_purge_keeps_them(scene: Scene):
    """A deletion is a single step. A queue that is created again has its own history and keys."""
    scene.post(2, once=make_key())
    assert len(scene.pop(1, history=600)) == 1
    scene.storage.queues.purge(scene.queue)
    assert len(scene.history()) == 1
    with pytest.raises(Repeated):
        scene.post(1, once=make_key())
    scene.storage.queues.delete(scene.queue)
    assert scene.history() == []
    assert scene.tail() == []
    posted = scene.post(2, once=make_key())
    assert scene.pop(1, history=600) == posted[:1]
    assert [entry.message.id for entry in scene.tail()] == posted
    scene.storage.maintain(scene.now)
    assert [entry.message.id for entry in scene.tail()] == posted
    with pytest.raises(Repeated):
        scene.post(1, once=make_key())
