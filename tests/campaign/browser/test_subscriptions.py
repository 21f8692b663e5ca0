# SPDX-License-Identifier: Apache-2.0
"""The subscriptions page: deletion of failed deliveries."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watching
from tests.servers import ZqServer, wait_for
from tests.sink import CONFIG, Sink
from zq.client import Client

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def delivering() -> Iterator[ZqServer]:
    with ZqServer("memory:", config=CONFIG) as started:
        yield started


def test_failed_deliveries_are_deleted_once_confirmed(delivering: ZqServer, watching: Watching, project: str) -> None:
    """Bodies keep their digits, and the queue's page links to the subscriptions."""
    with Sink() as sink, Client(delivering.url, project) as client:
        queue = client.queue("mail")
        made = queue.subscribe(f"{sink.url}/dead")
        wait_for(lambda: sink.asked("/dead"), 60, "the question")
        queue.confirm_subscription(made.id)
        sink.answers["/dead"] = 302
        queue.post({"n": 9007199254740993})
        page = watching(delivering.url).open("queues/mail")
        page.locator(".tabs").get_by_role("link", name="Subscriptions").click()
        page.locator("tbody th a").click()
        expect(page.get_by_role("region", name="Failed", exact=True).locator("[data-name=Body]")).to_have_text(
            '{"n":9007199254740993}'
        )
        page.get_by_role("button", name="Delete all…").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("delete")
        page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
        expect(page.get_by_text("No failed deliveries.", exact=True)).to_be_visible()
        assert list(queue.dead_deliveries(made.id)) == []
