# SPDX-License-Identifier: Apache-2.0
"""Requests driven by an engine: long scans that begin inline, and the count of waiting requests."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.http.api import Api
from tests.http.driven import Driven
from tests.http.scoped import Scoped
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.rates import Rates
from zq.http.app import create_app
from zq.model.quotas import Quota
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.ordered import scans

JOBS = "/v2/queues/jobs"


@pytest.fixture
def own_store() -> Iterator[Storage]:
    with closing(connect("memory:")) as opened:
        yield opened


def test_a_listing_with_a_long_way_goes_on_in_a_thread(
    own_store: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request begins inline and returns the same page."""
    monkeypatch.setattr(scans, "SHORT_SCAN_BLOCKS", 1)
    edge = Driven(create_app(Broker(own_store, clock)))
    api = Api(edge)
    for _ in range(20):
        api.send("jobs", *range(10))
    for _ in range(19):
        api.claim("jobs", 10)
    assert edge.attempts == 0
    assert len(api.seen("jobs")) == 10
    assert edge.attempts == 1


def test_a_request_that_waits_is_counted_once(own_store: Storage, clock: ManualClock) -> None:
    """A request counts once towards the rate of its project, whether or not it waits."""
    unbounded = dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25}
    broker = Broker(own_store, clock, quota=Quota(**unbounded | {"requests": 1}), rates=Rates(64, clock.now))
    scoped = Scoped(lambda options: create_app(broker, **options), "")
    edge = Driven(scoped.app)

    def passed(project: str, path: str) -> int:
        caller = scoped.api(project=project, app=edge)
        statuses = [caller.call("POST", path, None, {}).status_int for _ in range(10)]
        assert set(statuses) == {204, 429}
        return statuses.index(429)

    assert passed("hurried", f"{JOBS}/claims") == passed("patient", f"{JOBS}/claims?wait=1")
    assert edge.attempts >= 2
