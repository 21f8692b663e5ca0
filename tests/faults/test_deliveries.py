# SPDX-License-Identifier: Apache-2.0
"""Deliveries to a real server of webhooks that fails, hangs, redirects and recovers, by a server that is killed."""

import time
from collections.abc import Iterator

import pytest

from tests.servers import ZqServer, ask, wait_for
from tests.sink import CONFIG, Sink
from zq.client.webhooks import verify

QUICK = {
    "retries_with_no_delay": 1,
    "minimum_delay_retries": 1,
    "minimum_delay": 1,
    "maximum_delay": 11,
    "maximum_delay_retries": 0,
}
"""A policy of four tries: at once, after 0 s, 1 s, and of those that grow, 1 and 6 s."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as started:
        yield started


@pytest.fixture
def server(store_uri: str) -> Iterator[ZqServer]:
    with ZqServer(store_uri, config=CONFIG) as started:
        yield started


def post(server: ZqServer, *bodies: object, queue: str = "jobs") -> None:
    document = {"messages": [{"body": body} for body in bodies]}
    assert ask(server.url, "POST", f"/v2/queues/{queue}/messages", document).status == 201


def test_a_subscriber_gets_what_is_posted_signed(server: ZqServer, sink: Sink) -> None:
    """E5: the library's own check takes it, once."""
    made = sink.subscribe(server.url, "jobs", "/good", options={"post_headers": {"X-Own": "a"}})
    post(server, {"n": 1}, "two")
    wait_for(lambda: len(sink.came("/good")) >= 2, 10, "two deliveries")
    first, second = sorted(sink.came("/good"), key=lambda each: str(each.document["body"]))[::-1]
    assert {verify(made["secret"], each.headers, each.body) for each in (first, second)} == {
        each.headers["webhook-id"] for each in (first, second)
    }
    assert second.document == {
        "ttl": 3600,
        "body": {"n": 1},
        "Message_Type": "Notification",
        "queue_name": "jobs",
    } or first.document["body"] == {"n": 1}
    assert first.headers["X-Own"] == "a"


def test_a_template_carries_the_message(server: ZqServer, sink: Sink) -> None:
    """9.8 [T]."""
    sink.subscribe(server.url, "jobs", "/good", options={"post_data": '{"messages": [{"body": "$zaqar_message$"}]}'})
    post(server, "x")
    [came] = wait_for(lambda: sink.came("/good"), 10, "a delivery")
    assert came.document["messages"][0]["body"]["body"] == "x"


def test_what_fails_is_tried_again_until_it_succeeds(server: ZqServer, sink: Sink) -> None:
    """9.8: under one id."""
    sink.subscribe(server.url, "jobs", "/bad", options={"_retry_policy": QUICK})
    sink.answers["/bad"] = 500
    post(server, "x")
    wait_for(lambda: len(sink.came("/bad")) >= 2, 10, "a second try")
    sink.answers.pop("/bad")
    wait_for(lambda: len(sink.came("/bad")) >= 3, 15, "a third try")
    time.sleep(1.5)
    assert len(sink.came("/bad")) == 3
    assert len({each.headers["webhook-id"] for each in sink.came("/bad")}) == 1


def test_a_redirection_is_not_followed(server: ZqServer, sink: Sink) -> None:
    """E1; and there is no second try."""
    sink.subscribe(server.url, "jobs", "/moved")
    sink.answers["/moved"] = 302
    post(server, "x")
    wait_for(lambda: sink.came("/moved"), 10, "a delivery")
    sink.answers["/moved"] = 200
    post(server, "y")
    wait_for(lambda: "y" in sink.bodies("/moved"), 10, "the next delivery")
    assert sink.bodies("/moved") == ["x", "y"]
    assert sink.came("/elsewhere") == []


def test_who_hangs_holds_up_nobody_else(server: ZqServer, sink: Sink) -> None:
    """E2."""
    for number in range(20):
        sink.subscribe(server.url, "jobs", f"/hangs/{number}")
        sink.answers[f"/hangs/{number}"] = lambda handler: time.sleep(30) or 0  # type: ignore[func-returns-value]
    sink.subscribe(server.url, "jobs", "/good")
    post(server, "x")
    began = time.monotonic()
    [came] = wait_for(lambda: sink.came("/good"), 10, "the good one's delivery")
    assert came.at - began < 3


def test_nothing_goes_to_who_has_not_agreed_or_left(server: ZqServer, sink: Sink) -> None:
    """E4."""
    source = "/v2/queues/jobs/subscriptions"
    assert ask(server.url, "POST", source, {"subscriber": f"{sink.url}/silent"}).status == 201
    gone = sink.subscribe(server.url, "jobs", "/gone")
    assert ask(server.url, "DELETE", f"{source}/{gone['subscription_id']}").status == 204
    sink.subscribe(server.url, "jobs", "/good")
    post(server, "x")
    wait_for(lambda: sink.came("/good"), 10, "a delivery")
    time.sleep(0.5)
    assert sink.came("/silent") == sink.came("/gone") == []
    assert len(sink.came("/silent", "SubscriptionConfirmation")) == 1


def test_a_server_that_is_killed_delivers_all_that_it_accepted(store_uri: str, sink: Sink) -> None:
    """Again and again: at least once, and nothing else."""
    accepted: list[str] = []
    with ZqServer(store_uri, config=CONFIG) as server:
        sink.subscribe(server.url, "jobs", "/good")
        for round in range(3):
            for number in range(40):
                accepted.append(f"{round}-{number}")
                post(server, accepted[-1])
            server.kill()
            server.start()
        wait_for(lambda: set(accepted) <= set(sink.bodies("/good")), 150, "all deliveries")
        assert set(sink.bodies("/good")) == set(accepted)
