# SPDX-License-Identifier: Apache-2.0
"""The ttl of a message: its own, its queue's, that of the first pattern that matches the name, or the default."""

from collections.abc import Callable

import pytest

from tests.http.api import Api
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.storage.api import Storage

QUEUE = "/v2/queues/mqtt-in"
TTL = "_default_message_ttl"


@pytest.fixture
def broker(storage: Storage, clock: ManualClock) -> Broker:
    return Broker(storage, clock, queue_ttl=[("mqtt-in*", 700), ("mqtt-*", 800)])


@pytest.fixture
def api(broker: Broker, project_suffix: str) -> Api:
    return Api(create_app(broker), project_suffix)


@pytest.fixture
def posted(api: Api) -> Callable[..., int]:
    """Return a function that posts a message with these fields and returns the message's ttl."""

    def post(queue: str = QUEUE, **fields: int) -> int:
        document = {"messages": [{"body": 1, **fields}]}
        (href,) = api.post(f"{queue}/messages", 201, document).json["resources"]
        ttl: int = api.get(href, 200).json["ttl"]
        return ttl

    return post


def set_ttl(api: Api, value: int) -> int:
    """Patch the queue's ttl and return the ttl in the response."""
    operation = {"op": "add", "path": f"/metadata/{TTL}", "value": value}
    shown: int = api.patch(QUEUE, 200, [operation]).json[TTL]
    return shown


def test_the_most_specific_ttl_applies(api: Api, posted: Callable[..., int]) -> None:
    """The order is: the message's ttl, its queue's, the first matching pattern's, the default."""
    assert posted() == 700
    assert posted("/v2/queues/mqtt-out") == 800
    assert posted("/v2/queues/jobs") == 3600
    assert posted(ttl=100) == 100
    set_ttl(api, 900)
    assert posted() == 900
    assert posted(ttl=100) == 100


def test_a_queue_shows_what_holds_for_it(api: Api) -> None:
    """This holds for reads of the queue, detailed listings, the response to a patch, and a missing queue."""
    assert api.get(QUEUE, 200).json[TTL] == 700
    api.put(QUEUE, 201, {"a": 1})
    api.put("/v2/queues/jobs", 201)
    api.put("/v2/queues/mqtt-out", 201, {TTL: 60})
    listed = api.get("/v2/queues?detailed=true", 200).json["queues"]
    assert {queue["name"]: queue["metadata"][TTL] for queue in listed} == {"jobs": 3600, "mqtt-in": 700, "mqtt-out": 60}
    assert api.patch(QUEUE, 200, [{"op": "replace", "path": "/metadata/a", "value": 2}]).json[TTL] == 700
    assert set_ttl(api, 900) == 900
    assert api.patch(QUEUE, 200, [{"op": "remove", "path": f"/metadata/{TTL}"}]).json[TTL] == 700


def test_a_shown_default_is_not_stored(api: Api, broker: Broker) -> None:
    """A patch of another member does not store the operator's default as the queue's own."""
    api.put(QUEUE, 201, {"a": 1})
    api.patch(QUEUE, 200, [{"op": "replace", "path": "/metadata/a", "value": 2}])
    broker.default_ttls.replace(3600, [])
    assert api.get(QUEUE, 200).json == {**api.get("/v2/queues/other", 200).json, "a": 2}


def test_a_changed_table_holds_from_the_next_post_on(api: Api, broker: Broker, posted: Callable[..., int]) -> None:
    """This holds although the server caches the queue's rules.

    Stored messages keep their ttl; limits show the default.
    """
    assert (posted(), posted("/v2/queues/jobs")) == (700, 3600)
    broker.default_ttls.replace(500, [("mqtt-*", 600)])
    assert (posted(), posted("/v2/queues/jobs")) == (600, 500)
    assert (api.get(QUEUE, 200).json[TTL], api.get("/v2/limits", 200).json["default_message_ttl"]) == (600, 500)
    assert [found["ttl"] for found in api.get(f"{QUEUE}/messages?echo=true", 200).json["messages"]] == [700, 600]


def test_staged_and_replayed_messages_follow_the_same_order(api: Api, broker: Broker) -> None:
    """Staged and replayed messages are posts too; a replay uses the present settings."""
    api.put(QUEUE, 201, {"_history_ttl": 600})
    api.post(f"{QUEUE}/messages?stage=s", 202, {"messages": [{"body": 1}, {"body": 2, "ttl": 60}]})
    api.post("/v2/commits", 200, {"producer": "p", "batch": 1, "publish": ["s"]})
    popped = api.delete(f"{QUEUE}/messages?pop=2", 200).json["messages"]
    assert [message["ttl"] for message in popped] == [700, 60]
    broker.default_ttls.replace(500, [])
    assert api.post(f"{QUEUE}/history/replay", 200, {"limit": 2}).json == {"replayed": 2}
    assert [found["ttl"] for found in api.get(f"{QUEUE}/messages?echo=true", 200).json["messages"]] == [500, 500]
