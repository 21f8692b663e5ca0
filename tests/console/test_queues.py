# SPDX-License-Identifier: Apache-2.0
"""The page of queues, and keyboard control."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from zq.client import Client

pytestmark = pytest.mark.slow

QUEUES = "queues"


def test_queues_are_listed_with_their_counts_and_each_once(client: Client, watch: Watch) -> None:
    """Queues are sorted by name or ready messages, searched by a part of the name, and linked to dead letters."""
    names = [f"jobs.{number:02}" for number in range(29)]
    for name in names:
        client.queue(name).create({"_dead_letter_queue": "other", "_max_claim_count": 3})
    client.queue("other").post_batch([1, 2, 3])
    page = watch.open(f"{QUEUES}?sort=name")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(30)
    expect(rows.first.locator("[data-name='Dead letters']").get_by_role("link", name="3")).to_be_visible()
    assert page.locator("tbody th").all_inner_texts() == [*names, "other"]
    expect(rows.last.locator("[data-name=Ready]")).to_have_text("3")
    expect(page.get_by_text("30 queues, counted just now")).to_be_visible()
    page.get_by_role("button", name="Ready").click()
    expect(rows.first.locator("th")).to_have_text("other")
    expect(page.locator("[aria-sort=descending]")).to_contain_text("Ready")
    page.get_by_role("button", name="Ready").click()
    expect(rows.last.locator("th")).to_have_text("other")
    assert "sort=ready&order=asc" in page.url
    page.get_by_label("Search for queues by name").fill("oth")
    expect(rows).to_have_count(1)
    assert page.url.endswith("&name=oth")
    page.reload()
    expect(rows).to_have_count(1)


def test_page_works_with_the_keyboard_only(client: Client, watch: Watch) -> None:
    """Keys select, open and search rows and list the shortcuts, except in a text field (acceptance 19)."""
    for name in ("a", "b"):
        client.queue(name).create()
    page = watch.open(QUEUES)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_label("Select b", exact=True)).to_be_checked()
    page.keyboard.press("/")
    page.keyboard.type("x?")
    expect(page.get_by_label("Search for queues by name")).to_have_value("x?")
    page.get_by_label("Search for queues by name").fill("")
    page.locator("main").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    watch.check_accessible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.keyboard.press("k")
    expect(page.get_by_role("link", name="a", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="a")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
