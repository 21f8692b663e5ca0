# SPDX-License-Identifier: Apache-2.0
"""Purge and deletion of a queue: one step for every observer, however many messages there are (contract 6)."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from zq.conformance.builders import Scene, Shift, ids_of, together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS

MANY = 2000
WAYS = pytest.mark.parametrize("way", ["delete", "purge"])


def fill(scene: Scene, count: int = MANY) -> list[str]:
    return [id for _ in range(0, count, 500) for id in scene.post(500)]


@pytest.mark.every_server
@ONE_OR_TWO_CONNECTIONS
@WAYS
def test_every_total_beside_a_removal_is_all_or_nothing(scene: Scene, way: str):
    """Statistics, depths, listings and reads by id show the whole queue or an empty one, and never one after the other
    in the wrong order."""
    posted = fill(scene)
    some = posted[:: MANY // 50]
    shift = Shift(1)

    def watch(total: Callable[[], int]) -> Sequence[int]:
        seen = [total()]
        while not shift.is_over():
            seen.append(total())
        return [*seen, total()]

    def remove() -> Sequence[int]:
        with shift.at_work():
            getattr(scene.storage.queues, way)(scene.queue)
        return []

    totals = together(
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
def test_a_consumer_beside_a_removal_gets_the_front_of_the_queue_and_then_new_messages_only(
    scene: Scene, way: str, verb: str
):
    """No message comes out of the middle of a queue that is being removed, and none after the answer."""
    posted = fill(scene)
    shift = Shift(1)
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

    taken, new = together(consume, remove)
    front = [id for id in taken if id not in new]
    assert front == posted[: len(front)]
    assert not set(posted) & set(late)
    assert [*taken[len(front) :], *scene.claimable()] == new
