# SPDX-License-Identifier: Apache-2.0
"""Delayed queues (contract 7.8; design/sources.md C; law L4)."""

from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"
ALL = "echo=true&include_delayed=true&include_claimed=true"


@pytest.fixture
def delayed(api: Api) -> Api:
    """Return a client of a server with queue ``jobs``, whose messages are delayed by 30 seconds."""
    api.put(QUEUE, 201, {"_default_message_delay": 30})
    return api


def claimable(api: Api) -> list[Any]:
    """Return the bodies that a claim gets; release the claim at once."""
    answer = api.post(f"{QUEUE}/claims?limit=20", None, {})
    if answer.status_int == 204:
        return []
    api.delete(answer.headers["Location"], 204)
    return [message["body"] for message in answer.json["messages"]]


def test_a_message_without_delay_takes_the_queues(delayed: Api, clock: ManualClock) -> None:
    """C, S-C1: The message is neither claimed, popped nor listed before its post time + 30."""
    delayed.send("jobs", 1)
    clock.advance(29.999)
    assert (claimable(delayed), delayed.seen("jobs")) == ([], [])
    assert delayed.delete(f"{URL}?pop=1", 200).json == {"messages": []}
    clock.advance(0.001)
    assert (claimable(delayed), delayed.seen("jobs")) == ([1], [1])
    assert len(delayed.delete(f"{URL}?pop=1", 200).json["messages"]) == 1


@pytest.mark.parametrize("delay", [0, 1, 29, 31, 900])
def test_a_message_with_a_delay_keeps_its_own(delayed: Api, clock: ManualClock, delay: int) -> None:
    """C, S-C2: The delay may be shorter, longer or zero."""
    delayed.send("jobs", 1, delay=delay)
    if delay:
        clock.advance(delay - 0.001)
        assert (claimable(delayed), delayed.seen("jobs")) == ([], [])
        clock.advance(0.001)
    assert (claimable(delayed), delayed.seen("jobs")) == ([1], [1])


@pytest.mark.parametrize("metadata", [None, {"_default_message_delay": 0}, {"_default_message_delay": None}])
def test_on_a_normal_queue_a_delay_is_dropped_unseen(api: Api, metadata: Any) -> None:
    """C, S-C3, 7.2 [C]: Whatever the value of the delay, the message is ready at once."""
    api.put(QUEUE, 201, metadata)
    values = [0, 30, 900, 901, -1, 2**63 - 1, None, "x", 1.5, True, [], {"a": 1}]
    for value in values:
        api.send("jobs", "ready", delay=value)
    assert claimable(api) == ["ready"] * len(values)
    assert len(api.seen("jobs")) == len(values)


def test_a_post_whose_delay_is_ignored_is_answered_with_a_warning(delayed: Api) -> None:
    """Posts, repeated posts and staged posts warn if a message has a delay and the queue has none."""
    warning = '299 - "delay is ignored: plain has no _default_message_delay"'
    cases = [
        ("plain", {"delay": 60}, warning),
        ("plain", {"delay": "x"}, warning),
        ("plain", {"delay": 0}, None),
        ("plain", {}, None),
        ("jobs", {"delay": 60}, None),
    ]
    for number, (queue, terms, expected) in enumerate(cases):
        messages = {"messages": [{"body": 1}, {"body": 2, **terms}]}
        for _ in range(2):
            posted, staged = (
                delayed.post(path, status, messages, headers={"Idempotency-Key": path})
                for path, status in (
                    (f"/v2/queues/{queue}/messages?case={number}", 201),
                    (f"/v2/queues/{queue}/messages?stage={number}", 202),
                )
            )
            assert [answer.headers.get("Warning") for answer in (posted, staged)] == [expected, expected]
        assert posted.headers["Idempotency-Replayed"] == "true"


@every_row("delay", [-1, 901, 2**63 - 1, "1", "", 1.0, 1.5, None, [], {}])
def test_on_a_delayed_queue_a_delay_is_0_to_900_whole_seconds(delayed: Api, delay: Any) -> None:
    """7.2: Otherwise the server answers 400, names the delay, and stores nothing."""
    description = delayed.post(URL, 400, {"messages": [{"body": 1}, {"body": 2, "delay": delay}]}).json["description"]
    assert "delay" in description
    assert type(delay) is not int or "900" in description
    assert delayed.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


def test_the_bound_of_a_delay_is_that_of_the_server(compose) -> None:
    """16: The option is max_message_delay."""
    api = compose(max_message_delay=60)
    api.put(QUEUE, 201, {"_default_message_delay": 60})
    api.send("jobs", 1, delay=60)
    assert "60" in api.post(URL, 400, {"messages": [{"body": 1, "delay": 61}]}).json["description"]


def test_a_server_may_delay_every_queue(compose, clock: ManualClock) -> None:
    """6.1, 16: default_message_delay applies to queues that show it; a queue's own delay takes precedence."""
    api = compose(default_message_delay=10)
    assert api.get(QUEUE, 200).json["_default_message_delay"] == 10
    api.put("/v2/queues/slow", 201, {"_default_message_delay": 20})
    api.send("slow", 2)
    api.send("jobs", 1)
    clock.advance(10)
    assert (api.delete("/v2/queues/slow/messages?pop=1", 200).json["messages"], claimable(api)) == ([], [1])


def test_a_delayed_message_is_seen_by_who_asks_for_it(delayed: Api) -> None:
    """7.8: include_delayed, the id and ids return the message; it counts as free."""
    [message] = delayed.send("jobs", 1)
    assert delayed.seen("jobs", "echo=true&include_delayed=true") == [1]
    assert delayed.get(f"{URL}/{message}", 200).json["body"] == 1
    assert len(delayed.get(f"{URL}?ids={message}", 200).json["messages"]) == 1
    assert delayed.get(f"{QUEUE}/stats", 200).json["messages"]["free"] == 1


def test_a_delay_never_appears_in_an_answer(delayed: Api) -> None:
    """7.8: The representation has the members of any message."""
    [message] = delayed.send("jobs", 1, delay=5)
    assert delayed.get(f"{URL}/{message}", 200).json.keys() == {"id", "href", "ttl", "age", "body"}
    [listed] = delayed.get(f"{URL}?{ALL}", 200).json["messages"]
    assert listed.keys() == {"id", "href", "ttl", "age", "body"}


def test_the_link_of_a_delayed_queue_says_what_was_asked(delayed: Api) -> None:
    """7.3: The link includes include_delayed only if the request does; on normal queues it always does."""
    delayed.send("jobs", 1, 2, delay=0)
    [link] = delayed.get(f"{URL}?echo=true&limit=1", 200).json["links"]
    assert "include_delayed=true" not in link["href"]
    [link] = delayed.get(f"{URL}?echo=true&limit=1&include_delayed=true", 200).json["links"]
    assert "include_delayed=true" in link["href"]


def test_a_message_keeps_its_moment_after_the_default_is_cleared(delayed: Api, clock: ManualClock) -> None:
    """7.8, L4: The queue is normal now, so the message is listed, but claimed only when due; new posts are ready."""
    delayed.send("jobs", "old")
    delayed.patch(QUEUE, 200, [{"op": "remove", "path": "/metadata/_default_message_delay"}])
    delayed.send("jobs", "new")
    assert claimable(delayed) == ["new"]
    assert delayed.seen("jobs") == ["old", "new"]
    clock.advance(30)
    assert sorted(claimable(delayed)) == ["new", "old"]
