# SPDX-License-Identifier: Apache-2.0
"""``/v2/health``: a test of the store in a queue that no tenant can reach (contract 5)."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.api import Api
from tests.http.stores import down
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.health import ABANDONED_AFTER, PROJECT, Health
from zq.errors import Unavailable
from zq.http.app import create_app
from zq.model import QueueRef, new_ids
from zq.model.limits import PROJECT_ID
from zq.storage.api import Storage

ADMIN = {"X-Roles": "admin"}
OPERATIONS = [
    "create_queue",
    "post_messages",
    "claim_messages",
    "list_messages",
    "delete_messages",
    "delete_claim",
    "bulk_delete_messages",
    "delete_queue",
]


class Failing:
    """A wrapper of a store's controller with one failing verb."""

    def __init__(self, whole: Any, verb: str, error: Exception) -> None:
        self._whole, self._verb, self._error = whole, verb, error

    def __getattr__(self, name: str) -> Any:
        if name == self._verb:
            raise self._error
        return getattr(self._whole, name)


def left(storage: Storage) -> list[str]:
    return [queue.ref.name for queue in storage.queues.list(PROJECT, "", 1000).items]


@pytest.mark.every_store
def test_a_report_has_every_operation_and_leaves_nothing(compose, storage: Storage) -> None:
    """5: The report has all eight operations and the volume; the queue is removed afterwards."""
    api: Api = compose(app={"admin_mode": True, "trusts_network": True})
    api.post("/v2/queues/jobs/messages", 201, {"messages": [{"body": 1}, {"body": 2}]})
    api.claim("jobs", limit=1)
    report = api.get("/v2/health", 200, ADMIN).json
    assert report["storage_reachable"] is True
    assert list(report["operation_status"]) == OPERATIONS
    for status in report["operation_status"].values():
        assert (status["succeeded"], status["ref"]) == (True, None)
        assert status["seconds"] >= 0
    volume = report["message_volume"]
    assert volume["free"] >= 1
    assert volume["claimed"] >= 1
    assert volume["total"] == volume["free"] + volume["claimed"]
    assert left(storage) == []


def test_health_is_for_admins(gate) -> None:
    """1.1, 5: The path exists only in admin mode; the admin header alone grants no access (S8)."""
    gate(admin_mode=True).get("/v2/health", 403, ADMIN)
    gate(admin_mode=False).get("/v2/health", 404, ADMIN)


def test_a_store_that_does_not_answer_is_503(gate) -> None:
    gate(down, admin_mode=True, trusts_network=True).get("/v2/health", 503, ADMIN)


def test_no_header_can_name_the_project_of_the_probe() -> None:
    """1.7: The name is not a valid project id."""
    assert PROJECT_ID.fullmatch(PROJECT) is None


@pytest.mark.parametrize("error", [Unavailable("The store is away."), RuntimeError("a bug")])
def test_a_step_that_fails_is_told_and_the_others_go_on(
    storage: Storage, clock: ManualClock, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    """5 [T]: The server answers 200, ``succeeded`` is false, and the log names ``ref``."""
    broker = Broker(storage, clock)
    monkeypatch.setattr(broker.health._storage, "claims", Failing(storage.claims, "create", error), raising=True)
    api = Api(create_app(broker, admin_mode=True, trusts_network=True), "")
    with caplog.at_level(logging.ERROR):
        status = api.get("/v2/health", 200, ADMIN).json["operation_status"]
    assert [name for name in OPERATIONS if not status[name]["succeeded"]] == ["claim_messages"]
    assert status["claim_messages"]["ref"] in caplog.text


def test_what_a_killed_server_left_goes_with_the_next_probe(storage: Storage, clock: ManualClock) -> None:
    """The queue of a probe in another process stays."""
    now = clock.now()
    (old,), (young,) = new_ids(1, now - ABANDONED_AFTER - 1), new_ids(1, now)
    for name in (old, young):
        storage.queues.create(QueueRef(PROJECT, name), b"{}")
    Health(storage, clock).report()
    assert left(storage) == [young]
    storage.queues.delete(QueueRef(PROJECT, young))


def test_many_who_ask_at_once_share_one_probe(storage: Storage, clock: ManualClock) -> None:
    """Requests share a report for one second; then a request starts another probe."""
    moment = [0.0]
    health = Health(storage, clock, lambda: moment[0])
    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(lambda _: health.report(), range(32)))
    assert len({id(report) for report in reports}) == 1
    moment[0] = 1.0
    assert health.report() is not reports[0]
