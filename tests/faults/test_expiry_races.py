# SPDX-License-Identifier: Apache-2.0
"""Sweeps of queues that are deleted and purged meanwhile, and of a crowd that expires at the same moment."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from tests.faults.integrity import whole
from zq.clock import ManualClock
from zq.conformance.builders import RunningWorkers, Scene, configure, ids_of, run_together
from zq.model import ListFilter, QueueRef
from zq.model.expiry import Expiry, Steps
from zq.storage import connect
from zq.storage.api import Storage

ROUNDS = 12
# Messages that expire at the same moment; ``FEW`` on the other stores.
EXPIRED = {"rocksdb": 50_000}
FEW = 5_000
LIVING = 1_000
CLAIMERS = 3


@pytest.fixture
def scene(store_uri: str) -> Iterator[Scene]:
    """An open store that is whole when it is closed."""
    with closing(connect(store_uri)) as storage:
        yield Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
    whole(store_uri)


@pytest.fixture
def sweepers(scene: Scene, store_uri: str) -> Iterator[list[Storage]]:
    """Whoever sweeps the store: each of its servers, and an embedded one has one."""
    if store_uri.startswith("rocksdb:"):
        yield [scene.storage]
    else:
        with closing(connect(store_uri)) as other:
            yield [scene.storage, other]


@pytest.mark.parametrize("both", [False, True], ids=["delete", "delete and purge"])
def test_a_queue_that_goes_while_it_is_swept_comes_back_whole(scene: Scene, sweepers: list[Storage], both: bool):
    """Over and over, with what expires in it, while others sweep and read: the new queue keeps what it was given."""
    shift = RunningWorkers(1)

    def drop(number: int) -> None:
        if both and number % 2:
            scene.storage.queues.purge(scene.queue)
        else:
            scene.storage.queues.delete(scene.queue)

    def meddle() -> None:
        with shift.at_work():
            for number in range(ROUNDS):
                scene.post(40, ttl=60)
                living = scene.post(10)
                scene.take(5, ttl=3600)
                scene.tick(60)
                assert [id for id in ids_of(scene.walk()) if id in living] == living
                drop(number)
                assert scene.is_empty()

    def sweep(storage: Storage) -> None:
        while not shift.is_over():
            storage.maintain(scene.now, None, Steps(5, 200))

    def read() -> None:
        while not shift.is_over():
            now = scene.now
            page = scene.storage.messages.list(scene.queue, 0, 100, ListFilter(), now)
            assert [message for message in page.items if message.expires <= now] == []

    run_together(meddle, read, *(partial(sweep, storage) for storage in sweepers))
    living = scene.post(30)
    scene.reclaimed()
    assert scene.claimable() == living
    assert scene.expired() == 0


@pytest.mark.store_of_the_day
def test_a_crowd_that_expires_at_once_is_in_nobody_s_way(scene: Scene, store_uri: str):
    """While all of it is swept, claims get every living message once and nothing that has expired; then it is gone."""
    crowd = EXPIRED.get(store_uri.split(":")[0], FEW)
    living = list(itertools.chain.from_iterable(fill(scene, crowd)))
    configure(scene.storage, Expiry(delete_queue_size=500))
    scene.tick(60)
    shift = RunningWorkers(CLAIMERS)
    removed = []

    def claim() -> list[str]:
        taken: list[str] = []
        with shift.at_work():
            empty = 0
            while empty < 3:
                found = scene.claimable(10)
                taken += found
                empty = 0 if found else empty + 1
        return taken

    def sweep() -> list[str]:
        while not shift.is_over():
            removed.append(scene.storage.maintain(scene.now, None, Steps(500, 5000)))
        return []

    taken = [id for ids in run_together(*([claim] * CLAIMERS), sweep) for id in ids]
    scene.reclaimed()
    assert scene.expired() == 0
    while more := scene.claimable(100):
        taken += more
    assert sorted(taken) == sorted(living)
    assert scene.counts() == (LIVING, 0)


def fill(scene: Scene, crowd: int) -> Iterator[list[str]]:
    """Messages that expire together, with living ones all along the queue; the ids of these, batch by batch."""
    for start in range(0, crowd, 1000):
        scene.post(min(1000, crowd - start), ttl=60)
        yield scene.post(LIVING * 1000 // crowd)
