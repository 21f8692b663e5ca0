# SPDX-License-Identifier: Apache-2.0
"""Rounds of the sweeper on a real store: limits, events, and options that change between rounds."""

import time
from collections.abc import Iterator

import pytest

from tests.servers import wait_for
from zq.clock import StoreClock
from zq.events import Events
from zq.model import Draft, QueueRef, new_ids
from zq.model.expiry import Expiry
from zq.serving.maintenance import Upkeep
from zq.serving.maintenance.throttle import LatencyMonitor
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect

QUEUE = QueueRef("acme", "jobs")
COUNT = 250


class Heard(Events):
    """A listener that records all events of an upkeep."""

    def __init__(self) -> None:
        self.gone = 0
        self.rounds: list[tuple[int, bool]] = []
        self.shares: list[float] = []

    def expired(self, count: int, queue: QueueRef) -> None:
        assert queue == QUEUE
        self.gone += count

    def swept(self, seconds: float, removed: int, exhausted: bool, paused: float) -> None:
        assert seconds >= paused >= 0
        self.rounds.append((removed, exhausted))

    def throttled(self, ratio: float, share: float) -> None:
        assert ratio > 0
        self.shares.append(share)


@pytest.fixture
def storage(tmp_path) -> Iterator[OrderedStorage]:
    """Yield a store with messages that have expired."""
    storage, then = connect(f"rocksdb://{tmp_path}/store", sync="never"), time.time() - 100
    for start in range(0, COUNT, 50):
        storage.messages.post(QUEUE, [Draft(id, b"1", 60, 0, "alice") for id in new_ids(50, then)], then + start / 1000)
    yield storage
    storage.close()


def upkeep(storage: OrderedStorage, interval: float = 3600, **options: int) -> tuple[Upkeep, Heard]:
    heard = Heard()
    expiry = Expiry(sweep_interval=interval, **options)
    return Upkeep(storage, StoreClock(storage.now), expiry, LatencyMonitor(), heard), heard


def test_a_round_ends_at_its_bound_and_says_so(storage: OrderedStorage) -> None:
    """With 250 messages and rounds of 100, two rounds reach the limit and the third completes."""
    kept, heard = upkeep(storage, sweep_batch_size=30, sweep_max_deletes=100)
    assert [kept.run_round(), kept.run_round(), kept.run_round()] == [True, True, False]
    assert heard.rounds == [(100, True), (100, True), (50, False)]
    assert heard.gone == COUNT
    assert len(heard.shares) == 3


def test_a_round_that_had_to_end_is_followed_by_the_next_at_once(storage: OrderedStorage) -> None:
    """The next round does not wait for the interval of an hour."""
    kept, heard = upkeep(storage, 0.1, sweep_batch_size=10, sweep_max_deletes=10)
    kept.start()
    wait_for(lambda: heard.rounds, 60, "the first round")
    kept.configure(Expiry(sweep_interval=3600, sweep_batch_size=10, sweep_max_deletes=10))
    wait_for(lambda: heard.gone == COUNT, 60, "every message is gone")
    kept.stop()
    assert len(heard.rounds) >= COUNT / 10


def test_options_that_change_count_from_the_next_round_on(storage: OrderedStorage) -> None:
    """The option here is the limit of a round."""
    kept, heard = upkeep(storage, sweep_max_deletes=10)
    kept.run_round()
    kept.configure(Expiry(sweep_interval=3600, sweep_max_deletes=1000))
    kept.run_round()
    assert heard.rounds == [(10, True), (COUNT - 10, False)]


def test_a_shorter_interval_counts_at_once(storage: OrderedStorage) -> None:
    """The upkeep does not wait for the end of the former interval."""
    kept, heard = upkeep(storage)
    kept.start()
    kept.configure(Expiry(sweep_interval=0.1))
    wait_for(lambda: len(heard.rounds) >= 3, 60, "rounds of the new interval")
    kept.stop()
    assert heard.gone == COUNT
