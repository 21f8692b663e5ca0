# SPDX-License-Identifier: Apache-2.0
"""A server on a driver without history, transactions and topics (``zq.storage.api.Defaults``)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.first_driver import FirstStorage
from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock
from zq.core import Broker
from zq.events import Events
from zq.http.app import create_app
from zq.serving.metrics.timed import measure_verbs

COMMIT = {"producer": "job", "batch": 1, "publish": ["s1"]}


@pytest.fixture
def broker() -> Iterator[Broker]:
    storage = FirstStorage()
    built = Broker(measure_verbs(storage, Events()), ManualClock(storage.now()))
    yield built
    built.end_waiting()
    storage.close()


@pytest.fixture
def bare(broker: Broker) -> Api:
    return Api(create_app(broker))


@every_row(
    ("method", "path", "body", "missing"),
    [
        ("GET", "/v2/queues/jobs/history", None, "history"),
        ("GET", "/v2/queues/jobs/history?state=all", None, "history"),
        ("POST", "/v2/queues/jobs/history/replay", {"limit": 1}, "history"),
        ("PUT", "/v2/queues/jobs", {"_history_ttl": 60}, "history"),
        ("POST", "/v2/fences/job", None, "transactions"),
        ("POST", "/v2/queues/jobs/messages?stage=s1", {"messages": [{"body": 1}]}, "transactions"),
        ("DELETE", "/v2/stages/s1", None, "transactions"),
        ("POST", "/v2/commits", COMMIT, "transactions"),
        ("GET", "/v2/commits/job", None, "transactions"),
        *(("GET", f"/v2/{work}", None, "transactions") for work in ("commits", "fences", "stages")),
        ("GET", "/v2/topics", None, "topics"),
        ("PUT", "/v2/topics/news", {}, "topics"),
        ("GET", "/v2/topics/news/stats", None, "topics"),
        ("POST", "/v2/topics/news/purge", None, "topics"),
        ("POST", "/v2/topics/news/messages", {"messages": [{"body": 1}]}, "topics"),
        ("GET", "/v2/topics/news/messages", None, "topics"),
        ("GET", "/v2/topics/news/stream", None, "topics"),
        ("GET", "/v2/stream", None, "topics"),
    ],
)
def test_what_the_store_does_not_have_answers_as_what_is_not_built(
    bare: Api, method: str, path: str, body: Any, missing: str
) -> None:
    """Decision 0046: The server answers 400 and names the missing feature."""
    refused = bare.call(method, path, 400, body)
    assert refused.headers["X-Zq-Error"] == "NotBuilt"
    assert refused.json["title"] == "Not implemented"
    assert refused.json["description"].endswith(f"The store of this server does not support {missing}.")


def test_queues_messages_and_claims_work_without_the_rest(bare: Api) -> None:
    """Posts, claims, settlements and the inherited count of queues work."""
    bare.send("jobs", 1, 2)
    claim, [first, _] = bare.claim("jobs")
    bare.delete(first["href"], 204)
    assert len(bare.get(claim, 200).json["messages"]) == 1
    assert bare.seen("jobs", "echo=true&include_claimed=true") == [2]
    assert bare.get("/v2/queues?with_count=true", 200).json["count"] == 1


def test_upkeep_finds_nothing_to_resume(broker: Broker) -> None:
    """The server searches for interrupted commits every second; here it finds none."""
    broker.transactions.resume()
