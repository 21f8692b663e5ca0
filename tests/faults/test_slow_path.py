# SPDX-License-Identifier: Apache-2.0
"""Two servers on a store, one with slow responses from the store: both have the same time."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import pytest

from tests.campaign.histories.wire import Wire
from tests.servers import Answer, Lost, ZqServer, ask, wait_for
from zq.clock import StoreClock
from zq.model import ClaimRequest, Draft, Lease, QueueRef, new_ids
from zq.storage import connect
from zq.storage.api import Storage

pytestmark = pytest.mark.shared
TOLERANCE = 0.05
LATE = 0.4
# At its start, a server queries the store a dozen times in a row.
LATE_OVER_HTTP = 0.2
MESSAGES = "/v2/queues/jobs/messages"
JOBS = QueueRef("acme", "jobs")


@contextmanager
def slow_path(store_uri: str, late: float) -> Iterator[str]:
    """Open a slow path to the store and yield the URI that uses it."""
    place = urlsplit(store_uri)
    assert place.port is not None
    with Wire(place.port) as path, path.slowed(late):
        slow = place._replace(netloc=f"127.0.0.1:{path.port}")
        # A replica-set client would learn the real port.
        yield slow._replace(query="directConnection=true").geturl() if place.scheme == "mongodb" else slow.geturl()


def healthy(server: ZqServer) -> bool:
    try:
        return ask(server.url, "GET", "/healthz").status == 200
    except Lost:
        return False


@contextmanager
def launched(uri: str) -> Iterator[ZqServer]:
    """Start a server that serves but need not be ready."""
    with closing(ZqServer(uri).launch()) as server:
        wait_for(lambda: healthy(server), 60, "the server serves")
        yield server


def post(server: ZqServer, **fields: int) -> Answer:
    return ask(server.url, "POST", MESSAGES, {"messages": [{"body": "x", "ttl": 600, **fields}]})


def test_a_server_whose_answers_come_late_is_not_ready_and_gives_nothing_away_early(store_uri: str):
    """``/readyz`` reports the uncertainty.

    The other server delivers no delayed message of it early, and it sees the other server's messages.
    """
    with ZqServer(store_uri) as near, slow_path(store_uri, LATE_OVER_HTTP) as slow, launched(slow) as far:
        assert ask(near.url, "PUT", "/v2/queues/jobs", {"_default_message_delay": 1}).status == 201
        assert post(far, delay=0).status == 201  # opens the far server's connections
        assert ask(near.url, "DELETE", MESSAGES + "?pop=1").status == 200

        asked = time.monotonic()
        assert post(far, delay=2).status == 201
        wait_for(lambda: ask(near.url, "DELETE", MESSAGES + "?pop=1").document["messages"], 60, "the message is due")
        assert time.monotonic() - asked >= 2 - TOLERANCE

        assert post(near, delay=0).status == 201
        assert ask(far.url, "DELETE", MESSAGES + "?pop=1").document["messages"]

        answer = ask(far.url, "GET", "/readyz")
        assert answer.status == 503
        assert "known only to within" in answer.document["description"]


def by(storage: Storage) -> tuple[Storage, StoreClock]:
    return storage, StoreClock(storage.now)


def test_a_claim_made_on_a_slow_path_is_not_cut_short(store_uri: str):
    """The other server delivers the message only after the claim's ttl has passed since the request."""
    with slow_path(store_uri, LATE) as slow, ExitStack() as opened:
        near, there = by(connect(store_uri))
        opened.callback(near.close)
        far, here = by(connect(slow))
        opened.callback(far.close)
        assert LATE / 2 <= here.uncertainty() < 5
        now = there.now()
        near.queues.create(JOBS, b"{}")
        near.messages.post(JOBS, [Draft(new_ids(1, now)[0], b"1", 600, 0, "alice")], now)
        taken = None
        while taken is None:  # clocks differ by some milliseconds
            asked = time.monotonic()
            taken = far.claims.create(JOBS, ClaimRequest(Lease("a.far", 2, 0), 1), here.now()).claim
        wait_for(
            lambda: near.claims.create(JOBS, ClaimRequest(Lease("a.near", 60, 0), 1), there.now()).claim,
            60,
            "the claim has lapsed",
        )
        assert time.monotonic() - asked >= 2 - TOLERANCE
