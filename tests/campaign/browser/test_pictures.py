# SPDX-License-Identifier: Apache-2.0
"""The screenshots of ``api-ref/console.md``: made with ``ZQ_SHOTS=1``, never compared."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Guarded, Watch, Watching
from tests.servers import ZqServer, ask, wait_for
from tests.sink import CONFIG, Sink
from zq.client import Client
from zq.errors import InvalidBody

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("ZQ_SHOTS") != "1", reason="Pictures are made with ZQ_SHOTS=1 only."),
]

FOLDER = Path(__file__).parents[3] / "api-ref" / "console"
MAIL = "queues/mail"
QUEUES = {
    "audit": 4,
    "billing.invoices": 31,
    "images.resize": 12,
    "mail.dead": 3,
    "orders": 148,
    "orders.priority": 2,
    "search-index": 0,
}


@pytest.fixture
def project() -> str:
    return "acme"


@pytest.fixture
def client(server: ZqServer, project: str) -> Iterator[Client]:
    """Open a client for the emptied project."""
    with Client(server.url, project) as opened:
        for queue in list(opened.queues()):
            opened.queue(queue.name).delete()
        yield opened


def fill(client: Client) -> None:
    mail = client.queue("mail")
    mail.create({"_dead_letter_queue": "mail.dead", "_max_claim_count": 5, "_history_ttl": 86400, "owner": "shop"})
    for number in range(26):
        mail.post({"to": f"user{number}@example.org", "template": "receipt", "order": 90071992547409930 + number})
    mail.claim(limit=3, ttl=300)
    for name, count in QUEUES.items():
        client.queue(name).create({"_dead_letter_queue": "mail.dead"} if name.startswith("orders") else {})
        if count:
            client.queue(name).post_batch([{"n": number} for number in range(count)])


def go_on(client: Client) -> None:
    """Post and pop for two minutes, so that the charts have data."""
    mail, orders = client.queue("mail"), client.queue("orders")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        mail.post({"to": "user@example.org", "template": "receipt"})
        orders.post_batch([1] * (3 + int(until - time.monotonic()) % 7))
        orders.pop(6)
        time.sleep(0.2)


def test_pictures(client: Client, watch: Watch) -> None:
    """The screenshots are light, dark, and 390 px wide."""
    fill(client)
    FOLDER.mkdir(exist_ok=True)
    go_on(client)
    page = watch.page
    page.set_viewport_size({"width": 1280, "height": 720})
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        watch.open("")
        expect(page.locator(".plot canvas")).to_be_visible()
        page.screenshot(path=FOLDER / f"overview-{theme}.png")
        watch.open("queues")
        expect(page.locator("tbody tr").first).to_be_visible()
        page.screenshot(path=FOLDER / f"queues-{theme}.png")
        watch.open(MAIL)
        page.locator("tbody th a").nth(2).click()
        expect(page.locator(".tree")).to_be_visible()
        page.set_viewport_size({"width": 1280, "height": 1160})
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=FOLDER / f"queue-{theme}.png")
        page.set_viewport_size({"width": 1280, "height": 720})
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    watch.open(MAIL)
    expect(page.locator("tbody tr").first).to_be_visible()
    page.screenshot(path=FOLDER / "queue-390.png")


def test_pictures_of_a_tail(client: Client, watch: Watch) -> None:
    """The screenshot shows the tail of a topic with an open message."""
    orders, page = client.topic("orders.paid"), watch.page
    page.set_viewport_size({"width": 1280, "height": 720})
    watch.open("topics/orders.paid?tab=tail")
    expect(page.get_by_text("Live.")).to_be_visible()
    for number in range(60):
        orders.publish({"order": 90071992547409930 + number, "user": f"user{number % 7}", "total": 12.5 + number})
    expect(page.locator(".line .id").last).to_have_text("60")
    page.locator(".line a").nth(-4).click()
    expect(page.locator(".tree")).to_be_visible()
    expect(page.locator(".figure").first).to_have_text("60")
    page.evaluate("scrollTo(0, 0)")
    page.emulate_media(color_scheme="light")
    page.screenshot(path=FOLDER / "tail-light.png")


def test_picture_of_the_audit(tokened: Guarded, watching: Watching) -> None:
    """The screenshot shows two users with tokens and a rejected request."""
    token = tokened.token()
    with tokened.client() as client, tokened.client() as other:
        fill(client)
        client.queue("orders").update({"owner": "shop"})
        other.queue("mail.dead").redrive("mail", limit=2)
        client.queue("search-index").delete()
        with pytest.raises(InvalidBody):
            other.queue("mail").update({"_default_message_ttl": -1})
        client.queue("orders").purge()
        wait_for(lambda: len(list(client.audit())) >= 5, 60, "the entries")
    watch = watching(tokened.server.url)
    watch.page.set_viewport_size({"width": 1280, "height": 560})
    page = watch.sign_in(token, "audit")
    expect(page.get_by_role("row", name="purge")).to_be_visible()
    page.emulate_media(color_scheme="light")
    page.screenshot(path=FOLDER / "audit-light.png")


def test_pictures_of_claims(client: Client, server: ZqServer, watch: Watch) -> None:
    """The screenshot shows several consumers, one of which has held its claim for long."""
    workers = [
        ("mail", "mailer/2.4 (pod mailer-7c9f)", 3600),
        ("orders", "checkout/1.9", 300),
        ("images", "resize/0.3", 90),
    ]
    for name, agent, ttl in workers:
        client.queue(name).post_batch(range(6))
        for limit in (4, 2):
            headers = {"User-Agent": agent}
            ask(server.url, "POST", f"/v2/queues/{name}/claims?limit={limit}", {"ttl": ttl}, headers=headers)
    watch.page.set_viewport_size({"width": 1280, "height": 720})
    page = watch.open("claims?sort=ends")
    expect(page.locator("tbody tr")).to_have_count(6)
    page.emulate_media(color_scheme="light")
    page.screenshot(path=FOLDER / "claims-light.png")


def test_pictures_of_subscriptions(watching: Watching) -> None:
    """The screenshot shows a failing and an unconfirmed subscriber."""
    with ZqServer("memory:", config=CONFIG) as server, Sink() as sink, Client(server.url, "acme") as client:
        queue = client.queue("orders")
        sink.answers["/invoices"] = 302
        one, _ = (queue.subscribe(f"{sink.url}{path}", ttl=86400) for path in ("/invoices", "/stock"))
        queue.confirm_subscription(one.id)
        queue.post_batch([{"order": number} for number in range(3)])
        wait_for(lambda: len(list(queue.dead_deliveries(one.id))) >= 3, 60, "dead deliveries")
        watch = watching(server.url)
        watch.expected.add(0)  # the server ends before the page
        watch.page.set_viewport_size({"width": 1280, "height": 720})
        page = watch.open(f"subscriptions?queue=orders&s={one.id}")
        expect(page.get_by_role("region", name="Failed", exact=True)).to_be_visible()
        page.emulate_media(color_scheme="light")
        page.screenshot(path=FOLDER / "subscriptions-light.png")


def test_pictures_of_administration(tokened: Guarded, watching: Watching) -> None:
    """The screenshot shows a new token's secret."""
    watch = watching(tokened.server.url)
    watch.expected.add(401)
    watch.page.set_viewport_size({"width": 1280, "height": 720})
    page = watch.sign_in(tokened.token(), "admin?part=tokens")
    page.get_by_role("button", name="Create a token…").click()
    page.get_by_role("dialog").get_by_label("Name").fill("nightly report")
    page.get_by_role("dialog").get_by_label("Scopes").fill("observe:**")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.locator(".secret")).to_be_visible()
    expect(page.get_by_role("row", name="nightly report")).to_be_visible()
    page.emulate_media(color_scheme="light")
    page.screenshot(path=FOLDER / "admin-light.png")


def test_pictures_of_jobs(client: Client, watch: Watch) -> None:
    """The screenshot shows two producers, a fence, and the stage of the next run."""
    out = client.queue("reports")
    for job, batch, count in (("etl.nightly", 412, 12), ("invoices", 20261124, 4)):
        client.fence(job)
        out.stage(f"{job}.{batch}", [{"row": number} for number in range(count)])
        client.commit(job, batch, publish=[(f"{job}.{batch}", count)])
    out.stage("etl.nightly.413.try1", [{"row": number, "total": number * 17} for number in range(340)])
    watch.page.set_viewport_size({"width": 1280, "height": 720})
    page = watch.open("jobs")
    expect(page.get_by_role("button", name="Delete etl.nightly.413.try1…")).to_be_visible()
    page.emulate_media(color_scheme="light")
    page.screenshot(path=FOLDER / "jobs-light.png")
