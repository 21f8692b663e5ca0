# SPDX-License-Identifier: Apache-2.0
"""Sweeps concurrent with deletions and purges of queues, and of many messages that expire together."""

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
# Number of messages that expire together; other stores have ``FEW``.
EXPIRED = {"rocksdb": 50_000}
FEW = 5_000
LIVING = 1_000
CLAIMERS = 3


@pytest.fixture
def scene(store_uri: str) -> Iterator[Scene]:
    """Return an open store, and check its integrity after it is closed."""
    with closing(connect(store_uri)) as storage:
        yield Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
    whole(store_uri)


@pytest.fixture
def sweepers(scene: Scene, store_uri: str) -> Iterator[list[Storage]]:
    """Return the storages that sweep the store: one for each of two servers, or a single one for an embedded store."""
    if store_uri.startswith("rocksdb:"):
        yield [scene.storage]
    else:
        with closing(connect(store_uri)) as other:
            yield [scene.storage, other]


@pytest.mark.parametrize("both", [False, True], ids=["delete", "delete and purge"])
def test_a_queue_that_goes_while_it_is_swept_comes_back_whole(scene: Scene, sweepers: list[Storage], both: bool):
    """The queue is dropped repeatedly during sweeps and reads: the new queue keeps all its messages."""
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
    """During the sweep, claims return every live message once and no expired one; afterwards no expired one is left."""
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
    """Post messages that expire together, with live messages in between; yield the ids of the live ones by batch."""
    for start in range(0, crowd, 1000):
        scene.post(min(1000, crowd - start), ttl=60)
        yield scene.post(LIVING * 1000 // crowd)
