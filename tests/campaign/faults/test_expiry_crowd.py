# SPDX-License-Identifier: Apache-2.0
"""Messages that expire at the same moment while consumers claim."""

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.faults.integrity import whole
from zq.clock import ManualClock
from zq.conformance.builders import Scene, Shift, configure, together
from zq.model import QueueRef
from zq.model.expiry import Expiry, Steps
from zq.storage import connect

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


def test_a_crowd_that_expires_at_once_is_in_nobody_s_way(scene: Scene, store_uri: str):
    """While all of it is swept, claims get every living message once and nothing that has expired; then it is gone."""
    crowd = EXPIRED.get(store_uri.split(":")[0], FEW)
    living = list(itertools.chain.from_iterable(fill(scene, crowd)))
    configure(scene.storage, Expiry(delete_queue_size=500))
    scene.tick(60)
    shift = Shift(CLAIMERS)
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

    taken = [id for ids in together(*([claim] * CLAIMERS), sweep) for id in ids]
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
