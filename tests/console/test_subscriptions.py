# SPDX-License-Identifier: Apache-2.0
"""The subscriptions page: confirmation, failed deliveries, redelivery, pause and deletion."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watching, expect_notice
from tests.rotation import rotated
from tests.servers import ZqServer, wait_for
from tests.sink import CONFIG, Sink
from zq.client import Client, Queue, Topic

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def delivering() -> Iterator[ZqServer]:
    with ZqServer("memory:", config=CONFIG) as started:
        yield started


@pytest.mark.parametrize("kind", rotated(["queue", "topic"], 1))
def test_a_subscriber_is_confirmed_tried_paused_and_deleted(
    delivering: ZqServer, watching: Watching, project: str, kind: str
) -> None:
    """A failed delivery is shown as text and can be redelivered."""
    with Sink() as sink, Client(delivering.url, project) as client:
        source: Queue | Topic = client.queue("news") if kind == "queue" else client.topic("news")
        made = source.subscribe(f"{sink.url}/hook-{kind}")
        wait_for(lambda: sink.asked(f"/hook-{kind}"), 60, "the question")
        watch = watching(delivering.url)
        page = watch.open("subscriptions")
        page.get_by_label("Source").select_option(kind)
        page.get_by_label("Name (empty: all)").fill("news")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("tbody [data-name=State]")).to_have_text("not confirmed")
        page.locator("tbody th a").click()
        test = page.get_by_role("button", name="Test delivery")
        expect(test).to_have_attribute("title", "The subscription is not confirmed.")
        page.get_by_role("button", name="Confirm").click()
        expect(page.locator("tbody [data-name=State]")).to_have_text("active")
        test.click()
        wait_for(lambda: sink.bodies(f"/hook-{kind}") == [{"test": True}], 60, "the test")

        sink.answers[f"/hook-{kind}"] = 302
        test.click()
        given_up = page.get_by_role("region", name="Failed", exact=True)
        expect(given_up.locator("[data-name='Last failure']")).to_have_text("status 302: <img src=x onerror=alert(1)>")
        expect(given_up.locator("[data-name=Body]")).to_have_text('{"test":true}')
        assert page.locator("main img").count() == 0
        watch.check_accessible()
        sink.answers.clear()
        page.get_by_role("button", name="Redeliver…").click()
        page.get_by_role("dialog").get_by_role("button", name="Redeliver").click()
        expect_notice(page, "Retrying 1 delivery. Still failed: 0.")
        wait_for(lambda: len(sink.came(f"/hook-{kind}")) == 3, 60, "it again")
        expect(given_up).to_have_count(0)

        page.get_by_role("button", name="Pause…").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.locator("tbody [data-name=State]").first).to_have_text("not confirmed")
        assert not source.subscription(made.id).confirmed
        page.get_by_role("button", name="Delete…").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_text("No subscriptions")).to_be_visible()
        assert list(source.subscriptions()) == []


def test_subscriptions_of_project_are_listed_and_created(
    delivering: ZqServer, watching: Watching, project: str
) -> None:
    """One list has the subscriptions of queues and topics; the secret of a new subscription is shown once."""
    with Sink() as sink, Client(delivering.url, project) as client:
        for path in ("/one", "/two"):
            client.queue("news").subscribe(f"{sink.url}{path}")
        client.topic("events").subscribe(f"{sink.url}/three")
        client.queue("newsletter").create()
        watch = watching(delivering.url)
        page = watch.open("subscriptions")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.locator("[data-name=Source]")).to_have_text(["queue news", "queue news", "topic events"])
        page.get_by_role("button", name="Create a subscription…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name of the queue or topic").fill("newsl")
        expect(dialog.locator("datalist option")).to_have_attribute("value", "newsletter")
        dialog.get_by_label("Name of the queue or topic").fill("newsletter")
        dialog.get_by_label("Subscriber").fill(f"{sink.url}/four")
        dialog.get_by_label("Expires after seconds").fill("7200")
        watch.check_accessible()
        dialog.get_by_role("button", name="Create").click()
        expect(page.locator(".secret code")).to_contain_text("whsec_")
        page.locator(".secret").get_by_role("button", name="Close").click()
        expect(rows).to_have_count(4)
        [made] = client.queue("newsletter").subscriptions()
        assert (made.subscriber, made.ttl) == (f"{sink.url}/four", 7200)
        assert [one.source for one in client.subscriptions()] == ["news", "news", "newsletter", "events"]
        page.get_by_role("link", name=f"{sink.url}/three").click()
        expect(page.get_by_role("region", name="One subscription")).to_contain_text("/three")
