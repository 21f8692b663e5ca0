# SPDX-License-Identifier: Apache-2.0
"""Races of queue creation, update and removal: one caller succeeds, and a removal is atomic (extensions, section 1)."""

import json
import threading
from functools import partial
from typing import Any

import pytest

from zq.conformance.builders import DEADLINE, Scene, ids_of, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import ClaimNotFound

pytestmark = [pytest.mark.every_server, ONE_OR_TWO_CONNECTIONS]


def test_one_of_many_updates_wins(scene: Scene):
    scene.storage.queues.create(scene.queue, b"{}")
    expected = b"{}"
    for turn in range(20):
        offers = [b'{"turn": %d, "by": %d}' % (turn, at) for at in range(8)]
        won = run_together(*(partial(scene.storage.queues.update, scene.queue, expected, offer) for offer in offers))
        assert sorted(won) == [False] * 7 + [True]
        expected = offers[won.index(True)]
        found = scene.storage.queues.get(scene.queue)
        assert found is not None
        assert found.metadata == expected


def test_concurrent_counting_by_compare_and_set_loses_nothing(scene: Scene):
    """Six writers increment a counter by compare-and-set with retries. No increment is lost."""
    scene.storage.queues.create(scene.queue, b'{"n": 0}')

    def count() -> None:
        added = 0
        while added < 25:
            found = scene.storage.queues.get(scene.queue)
            assert found is not None
            more = b'{"n": %d}' % (json.loads(found.metadata)["n"] + 1)
            added += scene.storage.queues.update(scene.queue, found.metadata, more)

    run_together(*[count] * 6)
    found = scene.storage.queues.get(scene.queue)
    assert found is not None
    assert json.loads(found.metadata) == {"n": 150}


def test_one_of_many_creators_creates(scene: Scene):
    """Creates run concurrently with posts that create the queue: at most one create returns True."""
    for turn in range(10):
        room = scene.at(f"q{turn}")
        creators = [partial(room.storage.queues.create, room.queue, b'{"by": %d}' % at) for at in range(4)]
        made = run_together(*creators, room.post, room.post)[:4]
        assert made.count(True) <= 1
        found = room.storage.queues.get(room.queue)
        assert found is not None
        assert json.loads(found.metadata) == ({"by": made.index(True)} if True in made else {})
        assert room.counts() == (0, 2)
    assert scene.storage.queues.count(scene.queue.project) == 10


def stop_after(count: int, left: threading.Semaphore, stop: threading.Event) -> list[Any]:
    """Set ``stop`` after ``count`` workers have finished; return an empty list."""
    for _ in range(count):
        left.acquire(timeout=DEADLINE)
    stop.set()
    return []


@pytest.mark.parametrize("way", ["delete", "purge"])
def test_a_post_racing_the_removal_of_its_queue_is_whole_or_gone(scene: Scene, way: str):
    """Each post has either stored all of its messages or none, and all verbs agree."""
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    stop = threading.Event()
    left = threading.Semaphore(0)

    def producer() -> list[list[str]]:
        try:
            return [scene.post(5) for _ in range(40)]
        finally:
            left.release()

    def remover() -> list[list[str]]:
        while not stop.is_set():
            getattr(scene.storage.queues, way)(scene.queue)
        return []

    results = run_together(*[producer] * 4, remover, partial(stop_after, 4, left, stop))
    last = scene.post(2)
    listed = ids_of(scene.walk())
    assert listed[-2:] == last
    there = set(listed)
    posts = [batch for batches in results[:4] for batch in batches]
    assert {len(there & set(batch)) for batch in posts} <= {0, 5}
    assert set(ids_of(scene.get([id for batch in posts for id in batch] + last))) == there
    assert scene.counts() == (0, len(listed))
    assert scene.exists()
    assert scene.storage.queues.count(scene.queue.project) == 1
    assert scene.claimable() == listed


def test_claims_racing_the_removal_of_their_queue_leave_nothing(scene: Scene):
    """Claims, renewals and deletes race the deletion of the queue: no claim and no message survives it."""
    stop = threading.Event()
    left = threading.Semaphore(0)

    def worker() -> list[str]:
        names = []
        try:
            for _ in range(30):
                scene.post(4)
                claim = scene.claim(3)
                if claim is None:
                    continue
                names.append(claim.id)
                try:
                    scene.renew(claim.id)
                    scene.delete(claim.messages[0].id, claim.id)
                except ClaimNotFound:
                    continue
        finally:
            left.release()
        return names

    def remover() -> list[str]:
        while not stop.is_set():
            scene.storage.queues.delete(scene.queue)
        return []

    ending = partial(stop_after, 3, left, stop)
    claims = [name for names in run_together(*[worker] * 3, remover, ending) for name in names]
    scene.storage.queues.delete(scene.queue)
    assert scene.is_empty()
    assert not scene.exists()
    for claim in claims:
        with pytest.raises(ClaimNotFound):
            scene.held(claim)
    scene.tick(400)
    assert scene.claimable() == []
