# SPDX-License-Identifier: Apache-2.0
"""Two servers on a store: a change of a queue's rules on one server applies to the next post on the other."""

import pytest

from tests.http.api import Api

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"


@pytest.fixture
def servers(compose) -> tuple[Api, Api]:
    """Return two servers that have both cached the queue's rules."""
    one, other = compose(), compose()
    one.put(QUEUE, 201, {"_default_message_ttl": 300, "_default_message_delay": 30, "_max_messages_post_size": 500})
    for api in (one, other):
        api.post(URL, 201, {"messages": [{"body": 1}]})
    return one, other


def patch(api: Api, **changes: object) -> None:
    operations = [
        {"op": "replace", "path": f"/metadata/{key}", "value": value}
        if value is not None
        else {"op": "remove", "path": f"/metadata/{key}"}
        for key, value in changes.items()
    ]
    api.patch(QUEUE, 200, operations)


def last_ttl(api: Api) -> int:
    found = api.get(f"{URL}?echo=true&include_delayed=true&include_claimed=true&limit=20", 200)
    return found.json["messages"][-1]["ttl"]


def test_a_new_default_holds_for_the_next_post_of_the_other_server(servers: tuple[Api, Api]) -> None:
    """The server repeats the post with the rules in the store."""
    one, other = servers
    patch(other, _default_message_ttl=900)
    one.post(URL, 201, {"messages": [{"body": 2}]})
    assert last_ttl(one) == 900


def test_a_lower_bound_refuses_the_next_post_of_the_other_server(servers: tuple[Api, Api]) -> None:
    """The body was read under the higher limit; nothing is stored."""
    one, other = servers
    patch(other, _max_messages_post_size=50)
    answer = one.post(URL, 400, {"messages": [{"body": "x" * 100}]})
    assert "50 bytes" in answer.json["description"]
    assert one.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 2


def test_a_higher_bound_takes_the_next_post_of_the_other_server(servers: tuple[Api, Api]) -> None:
    """If cached rules refuse a post, the server checks the rules in the store."""
    one, other = servers
    patch(other, _max_messages_post_size=5000)
    one.post(URL, 201, {"messages": [{"body": "x" * 1000}]})


def test_a_delay_that_means_nothing_any_more_is_no_reason_to_refuse(servers: tuple[Api, Api]) -> None:
    """On a queue without delay, a delay has no effect, whatever its value (contract 7.8)."""
    one, other = servers
    one.post(URL, 400, {"messages": [{"body": 2, "delay": 1000000}]})
    patch(other, _default_message_delay=None)
    one.post(URL, 201, {"messages": [{"body": 2, "delay": 1000000}]})


def test_a_queue_that_the_other_server_deleted_begins_anew(servers: tuple[Api, Api]) -> None:
    """The post creates the queue again with the server's defaults."""
    one, other = servers
    other.delete(QUEUE, 204)
    one.post(URL, 201, {"messages": [{"body": 2}]})
    assert last_ttl(one) == 3600
    assert one.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 1


def test_a_queue_without_delays_shows_all_messages_in_the_next_listing_of_the_other_server(
    servers: tuple[Api, Api],
) -> None:
    """The store refuses a listing by outdated rules."""
    one, other = servers
    assert one.get(f"{URL}?echo=true", 200).json["messages"] == []
    patch(other, _default_message_delay=None)
    assert len(one.get(f"{URL}?echo=true", 200).json["messages"]) == 2
