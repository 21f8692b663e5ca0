# SPDX-License-Identifier: Apache-2.0
"""Scans and messages of the store in memory; its verbs are the ordered engine's and are tested there."""

import pytest

from tests.servers import ZqServer, ask
from zq.errors import StartRefused
from zq.storage import connect
from zq.storage.memory import MAX_SCAN, MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    opened = MemoryStore()
    opened.write([("f", key.to_bytes(2), b"") for key in range(3 * MAX_SCAN)])
    return opened


def test_scans_stay_within_their_bounds_in_both_directions(store: MemoryStore):
    """The lower bound is inclusive and the upper one exclusive, however many steps a scan takes."""
    lower, upper = (7).to_bytes(2), (2 * MAX_SCAN + 9).to_bytes(2)
    found = [int.from_bytes(key) for key, _ in store.scan("f", lower, upper)]
    assert found == list(range(7, 2 * MAX_SCAN + 9))
    assert [int.from_bytes(key) for key, _ in store.scan("f", lower, upper, backwards=True)] == found[::-1]
    assert list(store.scan("f", upper, lower)) == []


def test_a_scan_continues_during_concurrent_writes(store: MemoryStore):
    """Keys that are added or removed during a scan neither end it nor make it repeat a key."""
    scan = store.scan("f", b"", b"\xff\xff")
    found = [next(scan)[0]]
    store.write([("f", b"\0", b""), ("f", b"\0\1\0", b"")], [("f", (100).to_bytes(2), (MAX_SCAN).to_bytes(2))])
    found += [key for key, _ in scan]
    assert found == sorted(set(found))
    assert found[-1] == (3 * MAX_SCAN - 1).to_bytes(2)


def test_a_store_in_memory_has_no_name():
    """Two URIs would look like two stores that can be opened again."""
    with pytest.raises(StartRefused, match="must be memory:"):
        connect("memory:jobs")


def test_a_server_in_memory_warns_that_it_is_volatile():
    """The server needs no folder, and loses everything when it stops."""
    with ZqServer("memory:") as server:
        body = {"messages": [{"body": 1, "ttl": 60}]}
        assert ask(server.url, "POST", "/v2/queues/q/messages", body).status == 201
        assert "The store is in memory: all messages are lost when this server stops." in server.output
