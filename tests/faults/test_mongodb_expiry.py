# SPDX-License-Identifier: Apache-2.0
"""S-A1: MongoDB's own TTL monitor removes what has expired, with nobody's help, and nothing else."""

import pytest

from tests.conformance.builders import Scene, ids_of
from tests.servers import wait_for
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.model import QueueRef
from zq.storage.mongodb import connect


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("interval", "within"), [(1, 20.0), (60, 120.0)], ids=["every second", "as it comes"])
def test_the_ttl_monitor_removes_what_has_expired(interval: int, within: float):
    """Documents go within two rounds of the monitor; the living and what a claim keeps alive stay (L9)."""
    with MongoServer(ttl_seconds=interval) as server, server.client() as client:
        storage = connect(server.uri)
        scene = Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
        extended = scene.post(1, ttl=5)
        scene.take(1, ttl=600)
        scene.post(20, ttl=5)
        kept = scene.post(3, ttl=600)
        messages = client["zq"]["messages"]
        wait_for(lambda: messages.count_documents({"k": {"$gt": 0}}) == 4, within, "expired documents are gone")
        scene.tick(5)  # a listing shows what a majority has, which may be a moment behind
        assert ids_of(scene.walk()) == extended + kept
        assert scene.exists()
        storage.close()


def test_the_expiry_index_is_what_the_monitor_needs():
    """A date in ``e``, and ``expireAfterSeconds`` 0."""
    with MongoServer() as server, server.client() as client:
        storage = connect(server.uri)
        Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs")).post(1)
        storage.close()
        index = client["zq"]["messages"].index_information()["expiry"]
        assert (index["key"], index["expireAfterSeconds"]) == ([("e", 1)], 0)
        document = client["zq"]["messages"].find_one({"k": 1})
        assert document is not None
        assert document["e"].timestamp() * 1000 == pytest.approx(document["a"] + 3600_000, abs=1)
