# SPDX-License-Identifier: Apache-2.0
"""The queue list: creation, purge, deletion and search."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from zq.client import Client

pytestmark = pytest.mark.slow

QUEUES = "queues"


def test_an_empty_project_says_how_a_queue_begins(client: Client, watch: Watch) -> None:
    """The button creates a queue and opens its page."""
    page = watch.open(QUEUES)
    expect(page.get_by_text("This project has no queues")).to_be_visible()
    page.get_by_role("button", name="Create a queue").first.click()
    page.get_by_role("dialog").get_by_role("textbox").fill("mail.new")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="mail.new", level=1)).to_be_visible()
    assert [queue.name for queue in client.queues()] == ["mail.new"]


def test_a_purge_counts_what_is_there_now(client: Client, watch: Watch) -> None:
    """The dialog shows the current count, although the counts of a paused page may be old."""
    client.queue("mail").post_batch(list(range(7)))
    page = watch.open(f"{QUEUES}/mail")
    expect(page.get_by_label("Figures", exact=True)).to_contain_text("7")
    page.get_by_role("button", name="Live").click()
    client.queue("mail").post_batch(list(range(3)))
    page.get_by_role("button", name="Purge…").click()
    expect(page.get_by_role("dialog")).to_contain_text("All messages (10)")


def test_selected_queues_are_deleted_each_of_them_named(client: Client, watch: Watch) -> None:
    for name in ("a", "b", "c"):
        client.queue(name).create()
    page = watch.open(QUEUES)
    page.get_by_label("Select a", exact=True).check()
    page.get_by_label("Select c", exact=True).check()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem")).to_have_count(2)
    dialog.get_by_role("textbox").fill("2 queues")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [queue.name for queue in client.queues()] == ["b"]


def test_who_opens_a_row_while_a_search_is_typed_stays_there(client: Client, watch: Watch) -> None:
    """The search updates the address only on the queue list, and does not leave a page that was opened since."""
    client.queue("a").create()
    page = watch.open(QUEUES)
    expect(page.locator("tbody th")).to_have_text(["a"])  # and no deleted queue that is still counted
    page.evaluate("""() => {
        const field = document.querySelector("[data-search]");
        field.value = "a";
        field.dispatchEvent(new Event("input", {bubbles: true}));
        setTimeout(() => document.querySelector("tbody th a").click(), 298);
    }""")
    expect(page.get_by_role("heading", level=1, name="a", exact=True)).to_be_visible()
    page.wait_for_timeout(600)  # the search would have left the page by now
    expect(page.get_by_role("heading", level=1, name="a", exact=True)).to_be_visible()
