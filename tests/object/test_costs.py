# SPDX-License-Identifier: Apache-2.0
"""Costs: requests to the object store, according to the store's metrics."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.object.between import Between
from tests.object.conftest import Open
from tests.object.work import QUEUE, bodies, post
from tests.servers import CLIENT
from zq.errors import Unavailable
from zq.model import Draft, new_ids
from zq.storage.api import Storage

pytestmark = pytest.mark.slow
SWIFT = pytest.mark.parametrize("uri", ["swift"], indirect=True)


def figures(storage: Storage) -> dict[str, float]:
    """Return all measures of the store, by name and labels."""
    told = storage.measures(storage.now())
    return {"/".join([each.name, *(value for _, value in each.labels)]): each.value for each in told}


@pytest.mark.parametrize(("uri", "stored"), [("swift", 201), ("s3", 200)], indirect=["uri"])
def test_a_change_costs_one_put_and_one_look(machine: Open, stored: int) -> None:
    """The costs are the same if the message is delayed, or skips a delayed message (S-C5). A read costs nothing."""
    storage = machine("first", lease=600, owner_timeout=600)
    post(storage, "the first, which makes the queue")
    assert figures(storage)["object_restore_seconds"] > 0

    def post_late() -> None:
        now = storage.now()
        storage.messages.post(QUEUE, [Draft(*new_ids(1, now), b'"late"', 3600, 600, CLIENT)], now)

    def pop() -> None:
        assert storage.messages.pop(QUEUE, 1, storage.now())

    for change, changes in ((lambda: post(storage, "x"), 1), (post_late, 1), (pop, 1), (lambda: bodies(storage), 0)):
        before = figures(storage)
        change()
        after = figures(storage)
        for name in ("object_position", "object_uploads_total/stored", "object_commits_total"):
            assert after[name] - before[name] == changes, name
        made = {name: number - before.get(name, 0) for name, number in after.items() if "object_requests" in name}
        assert made.pop(f"object_requests_total/PUT/{stored}") == changes
        assert made.pop("object_requests_total/HEAD/404") == changes
        assert not any(made.values())


@SWIFT
def test_a_slow_object_store_makes_groups(machine: Open, between: Between) -> None:
    """Concurrent posts share an upload."""
    storage = machine("first", lease=600, owner_timeout=600, patience=60)

    def slow(method: str, path: str) -> int:
        time.sleep(0.1 if method == "PUT" and "/log/" in path else 0)
        return 0

    post(storage, "the first, which makes the queue")
    before = figures(storage)
    with between.doing(slow), ThreadPoolExecutor(16) as clients:
        list(clients.map(lambda number: post(storage, f"{number}"), range(80)))
    after = figures(storage)
    made = {name: after[name] - before[name] for name in ("object_commits_total", "object_uploads_total/stored")}
    assert made["object_commits_total"] == 80
    assert made["object_uploads_total/stored"] < 40
    assert (after["object_upload_seconds_total"] - before["object_upload_seconds_total"]) >= 0.1
    assert len(bodies(storage)) == 81


@SWIFT
def test_uploads_that_fail_are_counted(machine: Open, between: Between) -> None:
    """Refused uploads are counted separately, and reported with their statuses."""
    storage = machine("first", patience=1)
    for status in (503, 507):

        def failing(method: str, path: str, status: int = status) -> int:
            return status if method == "PUT" and "/log/" in path else 0

        with between.doing(failing), pytest.raises(Unavailable):
            post(storage, "refused")
    told = figures(storage)
    for name in ("object_uploads_total/failed", "object_uploads_total/refused"):
        assert told[name] > 0
    for status in (503, 507):
        assert told[f"object_requests_total/PUT/{status}"] > 0
