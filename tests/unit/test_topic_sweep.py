# SPDX-License-Identifier: Apache-2.0
"""Maintenance of topics on the stores whose drivers remove expired batches themselves."""

import pytest

from zq.clock import ManualClock
from zq.conformance.topic_builders import Log
from zq.model.topics import Entry
from zq.storage.api import Storage


@pytest.mark.parametrize("store_name", ["memory", "rocksdb", "redis"], indirect=True)
def test_maintenance_removes_batches_that_have_wholly_expired(storage: Storage, clock: ManualClock) -> None:
    """Other batches stay, whatever their position and project. On MongoDB, the TTL monitor removes batches."""
    log = Log(storage, clock)
    rooms = [log.of(f"p{at}") for at in range(5)]
    kept, last = {}, {}
    mixed = [Entry(b"0", 60), Entry(b"1", 600)]
    for room in rooms:
        for at in range(10):
            room.publish(f"t{at % 3}", 3, ttl=60)
        kept[room.project] = [*room.publish("t1", 2, ttl=600), room.put("t1", mixed) + 1]
        last[room.project] = room.publish("t2", 2, ttl=60)[1]
    log.clock.advance(60)
    log.reclaim()
    for room in rooms:
        told = room.read()
        assert [batch.last for batch in told.batches] == kept[room.project][1:]
        assert room.sequences("t1") == kept[room.project]
        assert told.last == told.position == last[room.project]
