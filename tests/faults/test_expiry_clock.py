# SPDX-License-Identifier: Apache-2.0
"""Clocks that step back during removal of expired messages: no live message is removed, and no expired one returns."""

import time
from pathlib import Path

import pytest

from tests.faults.integrity import whole
from zq.clock import ManualClock, StoreClock
from zq.conformance.builders import Scene, configure, ids_of
from zq.model import QueueRef
from zq.model.expiry import Expiry, Steps
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.ordered import layout

QUEUE = QueueRef("acme", "jobs")
BATCH = 20


class Machine:
    """A machine with a settable wall clock and a monotonic clock."""

    def __init__(self, start: float) -> None:
        self.ticks = 1000.0
        self.wall = start

    def monotonic(self) -> float:
        return self.ticks

    def read(self) -> float:
        return self.wall

    def run(self, seconds: float) -> None:
        self.ticks += seconds
        self.wall += seconds


@pytest.mark.parametrize("back", [0.5, 86400 * 400])
def test_a_wall_clock_set_back_while_sweeps_run(storage: Storage, back: float):
    """Before, at and after the step the store has exactly the messages that are not expired by the server's clock."""
    configure(storage, Expiry(delete_on_read=False))
    machine = Machine(storage.now())
    clock = StoreClock(machine.read, machine.monotonic)
    lives: dict[str, float] = {}
    removed = 0
    for moment in range(40):
        if moment == 15:
            machine.wall -= back
        if moment == 30:
            machine.wall += back
        machine.run(1)
        clock.refresh()
        scene = Scene(storage, ManualClock(clock.now()), QUEUE)
        for id in scene.post(2, ttl=5) + scene.post(1, ttl=30):
            lives[id] = scene.one(id).expires
        removed += storage.maintain(scene.now, None, Steps(2, 4))
        assert ids_of(scene.walk()) == [id for id, expires in lives.items() if expires > scene.now]
    gone = [id for id, expires in lives.items() if expires <= clock.now()]
    assert len(gone) > BATCH
    assert removed + scene.reclaimed() == len(gone)


@pytest.mark.parametrize("ahead", [1, 59])
def test_a_store_that_was_used_in_the_near_future_waits_for_the_present(tmp_path: Path, monkeypatch, ahead: float):
    """The store's time stands still until the machine's clock has caught up.

    Expired messages stay expired and are removed.
    """
    uri = f"rocksdb://{tmp_path}/store"
    true_time, shift = time.time, ahead
    monkeypatch.setattr(time, "time", lambda: true_time() + shift)
    storage = connect(uri, expiry=Expiry(sweep=False))
    scene = Scene(storage, ManualClock(storage.now() - 60), QUEUE)
    gone = scene.post(BATCH, ttl=60)
    kept = scene.post(BATCH, ttl=61 + BATCH)
    extended = scene.post(BATCH, ttl=60)
    scene.take(2 * BATCH, ttl=1)
    held = scene.take(BATCH, ttl=600)
    assert ids_of(held.messages) == extended
    seen = layout.ms(storage.now())
    storage.maintain(storage.now())  # stores the time
    storage.close()

    shift = 0
    storage = connect(uri, expiry=Expiry(compaction_filter_grace=0))
    assert layout.ms(storage.now()) >= seen
    scene = Scene(storage, ManualClock(storage.now()), QUEUE)
    for _ in range(3):
        assert storage.maintain(storage.now()) in (0, len(gone))
        assert ids_of(scene.walk()) == kept + extended
    assert scene.expired() == 0
    assert scene.held(held.id) == sorted(extended)
    storage.close()
    whole(uri)
