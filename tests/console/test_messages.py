# SPDX-License-Identifier: Apache-2.0
"""The tabs of a queue's page, and the message view."""

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch
from zq.client import Client
from zq.wire.extensions import BuryTerms

pytestmark = pytest.mark.slow

MAIL = "queues/mail"


def tab(page: Page, name: str) -> None:
    page.locator(".tabs").get_by_role("link", name=name).click()


def open_first(page: Page) -> None:
    page.locator("tbody th a").first.click()
    expect(page.get_by_role("heading", name="Message")).to_be_visible()


def test_each_tab_shows_its_own_state(client: Client, watch: Watch) -> None:
    """Each tab has a count and pages of rows in claim order; an empty tab names the states that have messages."""
    queue = client.queue("mail")
    queue.create({"_default_message_delay": 300})
    for delay in (200, 100):
        queue.post(f"late {delay}", delay=delay)
    queue.post_batch(list(range(25)), delay=0)
    queue.claim(limit=2)
    page = watch.open(MAIL)
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(20)
    expect(page.locator("tbody td.start").first).to_have_text("2")
    page.get_by_role("button", name="Load more").click()
    expect(rows).to_have_count(23)
    expect(page.get_by_role("button", name="Load more")).to_have_count(0)
    for name, count in (("Ready", "23"), ("Delayed", "2"), ("Claimed", "2")):
        expect(page.locator(".tabs").get_by_role("link", name=f"{name} {count}")).to_be_visible()
    tab(page, "Delayed")
    expect(page.locator("tbody td.start")).to_have_text(['"late 100"', '"late 200"'])
    expect(page.locator("tbody .mark")).to_have_text(["delayed", "delayed"])
    tab(page, "Claimed")
    expect(page.locator("tbody td.start")).to_have_text(["0", "1"])
    expect(page.locator("tbody .mark")).to_have_text(["claimed", "claimed"])
    queue.pop(23)
    tab(page, "Ready")
    expect(page.get_by_text("No ready messages")).to_be_visible()
    expect(page.locator(".state").get_by_role("link", name="2 delayed")).to_be_visible(timeout=60_000)


def test_dead_letters_of_the_queue_stand_first(client: Client, watch: Watch) -> None:
    """The tab lists the whole dead-letter queue; its message view shows origin and reason and can delete."""
    for name in ("other", "mail"):
        queue = client.queue(name)
        queue.create({"_dead_letter_queue": "dead"})
        queue.post_batch([f"{name} 1", f"{name} 2"])
        claim = queue.claim(limit=2)
        queue.settle(claim.id, bury=[BuryTerms(message.id, f"{name} broke") for message in claim.messages])
    page = watch.open(MAIL)
    tab(page, "Dead letters 4")
    expect(page.locator("tbody td.start")).to_have_text(['"mail 1"', '"mail 2"', '"other 1"', '"other 2"'])
    expect(page.get_by_text("2 of the 4 loaded came from mail")).to_be_visible()
    open_first(page)
    expect(page.locator(".facts")).to_contain_text("mail broke")
    expect(page.locator(".timeline")).to_contain_text("moved here from mail after 1 claim: mail broke")
    page.locator(".message").get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    assert client.queue("dead").stats().total == 3
    client.queue("plain").create()
    watch.open("queues/plain?state=dead")
    expect(page.get_by_text("This queue has no dead-letter queue")).to_be_visible()


def test_search_covers_reasons_and_whole_bodies(client: Client, watch: Watch) -> None:
    """The search first covers the start of each body, and the whole body after the bodies are loaded."""
    client.queue("mail").post_batch([{"pad": "x" * 500, "needle": number} for number in range(3)])
    page = watch.open(MAIL)
    search = page.get_by_label("Search the loaded messages")
    search.fill('"needle":1')
    expect(page.get_by_text("0 of 3 loaded messages")).to_contain_text("the start of the body")
    page.get_by_role("button", name="Search full bodies").click()
    expect(page.get_by_text("1 of 3 loaded messages")).to_contain_text("or the body")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_history_is_newest_first_with_filters(client: Client, watch: Watch) -> None:
    """The history filters by outcome and time, loads older entries on demand, and adds new ones on a click."""
    queue = client.queue("mail")
    queue.create({"_history_ttl": 3600, "_dead_letter_queue": "dead"})
    queue.post_batch(list(range(24)))
    claim = queue.claim(limit=1)
    assert claim is not None
    queue.settle(claim.id, bury=[BuryTerms(claim.messages[0].id, "torn")])
    for _ in range(23):
        queue.pop(1)
    page = watch.open(f"{MAIL}?state=history")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(20)
    expect(page.locator("tbody td.start").first).to_have_text("23")
    page.get_by_role("button", name="Load more").click()
    expect(rows).to_have_count(24)
    expect(page.locator("tbody td.start").last).to_have_text("0")
    queue.post(24)
    queue.pop(1)
    page.get_by_role("button", name="1 new entry: show").click()
    expect(page.locator("tbody td.start").first).to_have_text("24")
    page.get_by_label("Finished within").select_option("600")
    expect(rows).to_have_count(20)
    page.get_by_role("button", name="Load more").click()
    page.get_by_label("Outcome").select_option("dead_lettered")
    expect(rows.locator("[data-name=Outcome]")).to_have_text(["dead-lettered"])
    expect(page.get_by_text("1 of 25 entries loaded")).to_be_visible()
    assert "within=600&outcome=dead_lettered" in page.url
