# SPDX-License-Identifier: Apache-2.0
"""kill -9 during sweeps of the embedded store: index and record are removed together (S-B2, L3)."""

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.faults.integrity import whole
from tests.servers import PROJECT, ZqServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, ids_of
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.storage import connect

QUEUES = [QueueRef(PROJECT, name) for name in ("one", "two")]
# Number of messages per queue that are expired when the server starts, at the first attempt.
CROWD = 5_000
# Each attempt has a store of its own and twice the messages: a fast machine sweeps the first before the kill.
ATTEMPTS = 6
# Rounds begin at once; with batches of this size, most of the time of a sweep is spent within a batch.
SWEEP = "[expiry]\nsweep_interval = 0.1\nsweep_batch_size = 200\ndelete_on_read = false\n"
KILLS = 3
UNSWEPT = Expiry(sweep=False, delete_on_read=False, compaction_filter=False)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"rocksdb://{tmp_path}/store"


@contextmanager
def looked_at(uri: str, queue: QueueRef) -> Iterator[Scene]:
    """Open the queue of a store that no server has open, without sweeping it."""
    with closing(connect(uri, expiry=UNSWEPT)) as storage:
        yield Scene(storage, ManualClock(storage.now()), queue)


def prepare(uri: str, crowd: int) -> dict[QueueRef, list[str]]:
    """Create expired messages among live ones, whose ttl or claim keeps them. Return the live ones in order."""
    living = {}
    with closing(connect(uri, expiry=UNSWEPT)) as storage:
        for queue in QUEUES:
            scene = Scene(storage, ManualClock(storage.now() - 70), queue)
            extended = scene.post(10, ttl=60)
            scene.take(10, ttl=3600)
            living[queue] = extended
            for _ in range(crowd // 1000):
                scene.post(1000, ttl=60)
                living[queue] += scene.post(10)
    return living


def test_kills_in_the_middle_of_sweeps_leave_a_whole_store(uri: str) -> None:
    """After each kill records and indexes agree, all live messages exist, and removed messages stay removed."""
    for attempt in range(ATTEMPTS):
        store, crowd = f"{uri}-{attempt}", CROWD << attempt
        living = prepare(store, crowd)
        left = kill_in_sweeps(store, living, 2 * crowd)
        assert left == sorted(left, reverse=True), "something that was removed has returned"
        if set(left) - {0, 2 * crowd}:
            break
    else:
        pytest.fail(f"no kill came amid a sweep: {left}")
    with closing(connect(store)) as storage:
        Scene(storage, ManualClock(storage.now()), QUEUES[0]).reclaimed()
    assert whole_and_alive(store, living) == 0


def kill_in_sweeps(uri: str, living: dict[QueueRef, list[str]], expired: int) -> list[int]:
    """Start and kill until ``KILLS`` kills hit a sweep or all is swept.

    Return the number of expired messages after each.
    """
    left = [expired]
    patience = 0.25
    with closing(ZqServer(uri, config=SWEEP)) as server:
        while len(set(left) - {0}) <= KILLS and left[-1]:
            server.start()
            time.sleep(random.uniform(0.0, patience))
            server.kill()
            left.append(whole_and_alive(uri, living))
            patience += 0.1 if left[-1] == left[-2] else 0.0
    return left


def whole_and_alive(uri: str, living: dict[QueueRef, list[str]]) -> int:
    """Assert that the store is consistent and has exactly the live messages. Return the number of expired ones."""
    whole(uri)
    expired = 0
    for queue, ids in living.items():
        with looked_at(uri, queue) as scene:
            assert ids_of(scene.walk()) == ids
            assert scene.counts() == (10, len(ids) - 10)
            expired += scene.depth(4 * CROWD << ATTEMPTS).expired
    return expired
