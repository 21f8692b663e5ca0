# SPDX-License-Identifier: Apache-2.0
"""A thousand subscribers that do not answer, and one that does."""

import pytest

from tests.servers import ZqServer, ask, soon, wait_for
from tests.sink import CONFIG, BlackHoles, Sink
from zq.subscriptions.delivery.senders import TIMEOUT

SUBSCRIBERS = 1000
QUEUES = 10
# Maximum seconds for each step on a busy machine.
PATIENCE = 60


@pytest.mark.one_store
@pytest.mark.timeout(300)
def test_a_thousand_subscribers_that_hang_delay_no_other_delivery(store_uri: str) -> None:
    """The working subscriber gets a message before a hanging delivery fails (E2)."""
    config = f"{CONFIG}require_confirmation = false\n"
    with Sink() as sink, BlackHoles(50) as holes, ZqServer(store_uri, config=config) as server:
        for number in range(SUBSCRIBERS):
            subscribe(server, f"hole-{number % QUEUES}", f"{holes.urls[number % 50]}/{number}")
        subscribe(server, "jobs", f"{sink.url}/good")
        for number in range(QUEUES):
            post(server, f"hole-{number}")
        wait_for(lambda: holes.connections >= SUBSCRIBERS, PATIENCE, "a thousand deliveries hang")
        seen: list[int] = []

        def deliver() -> None:
            seen.append(len(sink.came("/good")))
            post(server, "jobs")
            wait_for(lambda: len(sink.came("/good")) > seen[-1], PATIENCE, "the delivery to the good subscriber")

        soon(TIMEOUT, deliver)
        server.kill()  # a graceful stop would wait for the thousand deliveries


def subscribe(server: ZqServer, queue: str, subscriber: str) -> None:
    answer = ask(server.url, "POST", f"/v2/queues/{queue}/subscriptions", {"subscriber": subscriber})
    assert answer.status == 201, answer


def post(server: ZqServer, queue: str) -> None:
    answer = ask(server.url, "POST", f"/v2/queues/{queue}/messages", {"messages": [{"body": "x"}]})
    assert answer.status == 201, answer
