# SPDX-License-Identifier: Apache-2.0
"""The page of queues, and what is done to whole queues."""

import time

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from zq.client import Client

pytestmark = pytest.mark.slow

QUEUES = "#/p/acme/queues"


def test_an_empty_project_says_how_a_queue_begins(client: Client, watch: Watch) -> None:
    """And makes one by its button, whose page is shown then."""
    page = watch.open(QUEUES)
    expect(page.get_by_text("This project has no queues")).to_be_visible()
    page.get_by_role("button", name="Create a queue").first.click()
    page.get_by_role("dialog").get_by_role("textbox").fill("mail.new")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="mail.new", level=1)).to_be_visible()
    assert [queue.name for queue in client.queues()] == ["mail.new"]


def test_queues_are_listed_with_their_counts_and_each_once(client: Client, watch: Watch) -> None:
    """Thirty, by name and by what waits longest; a search by a part of the name; a link to the dead letters."""
    names = [f"jobs.{number:02}" for number in range(29)]
    for name in names:
        client.queue(name).create({"_dead_letter_queue": "other", "_max_claim_count": 3})
    client.queue("other").post_batch([1, 2, 3])
    page = watch.open(f"{QUEUES}?sort=name")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(30)
    expect(rows.first.locator("[data-name=Dead]").get_by_role("link", name="3")).to_be_visible()
    assert page.locator("tbody th").all_inner_texts() == [*names, "other"]
    expect(rows.last.locator("[data-name=Ready]")).to_have_text("3")
    expect(page.get_by_text("30 queues, counted now")).to_be_visible()
    page.get_by_role("button", name="Ready").click()
    expect(rows.first.locator("th")).to_have_text("other")
    expect(page.locator("[aria-sort=descending]")).to_contain_text("Ready")
    page.get_by_role("button", name="Ready").click()
    expect(rows.last.locator("th")).to_have_text("other")
    assert "sort=ready&order=asc" in page.url
    page.get_by_label("Part of a queue's name").fill("oth")
    expect(rows).to_have_count(1)
    assert page.url.endswith("&name=oth")
    page.reload()
    expect(rows).to_have_count(1)


def test_at_rest_it_asks_once_a_second_at_most(client: Client, watch: Watch) -> None:
    """And nothing while it is hidden, or paused."""
    for number in range(5):
        client.queue(f"q{number}").create()
    hide = "Object.defineProperty(document, 'hidden', {get: () => window.away === true})"
    watch.page.add_init_script(hide)
    page = watch.open(QUEUES)
    expect(page.locator("[data-name=Ready]").last).to_have_text("0")
    began = time.monotonic()
    asked = count(watch, 6)
    assert 1 <= asked <= time.monotonic() - began + 1
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    assert count(watch, 2.5) <= 1  # one may be under way
    assert count(watch, 1.5) == 0
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_role("button", name="Live").click()
    count(watch, 1)
    assert count(watch, 2.5) == 0
    expect(page.get_by_role("button", name="Paused")).to_be_visible()


def count(watch: Watch, seconds: float) -> int:
    """Requests that the page makes within that time."""
    before = len(watch.requests)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watch.page.wait_for_timeout(100)
    return len(watch.requests) - before


def test_a_purge_wants_the_name_and_says_what_goes(client: Client, watch: Watch) -> None:
    """Acceptance 12: Enter in an empty field does nothing; other queues keep what they have."""
    client.queue("mail").post_batch(list(range(7)))
    client.queue("other").post(1)
    page = watch.open(f"{QUEUES}/mail")
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("7 messages as counted now")
    dialog.get_by_role("textbox").press("Enter")
    dialog.get_by_role("textbox").fill("mai")
    dialog.get_by_role("button", name="Purge").click(force=True)
    expect(dialog).to_be_visible()
    assert client.queue("mail").stats().total == 7
    dialog.get_by_role("textbox").fill("mail")
    watch.check_accessible()
    dialog.get_by_role("textbox").press("Enter")
    expect(page.locator(".announcer")).to_contain_text("7 messages of mail were purged.")
    expect(dialog).to_have_count(0)
    assert (client.queue("mail").stats().total, client.queue("other").stats().total) == (0, 1)
    expect(page.get_by_role("button", name="Purge…")).to_be_focused()


def test_a_purge_counts_what_is_there_now(client: Client, watch: Watch) -> None:
    """What the page shows may be old, as where it is paused: the dialog tells what will go."""
    client.queue("mail").post_batch(list(range(7)))
    page = watch.open(f"{QUEUES}/mail")
    expect(page.get_by_label("Figures", exact=True)).to_contain_text("7")
    page.get_by_role("button", name="Live").click()
    client.queue("mail").post_batch(list(range(3)))
    page.get_by_role("button", name="Purge…").click()
    expect(page.get_by_role("dialog")).to_contain_text("10 messages as counted now")


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
    """The address has the search a moment after it was typed: on the page of queues, and nowhere else."""
    client.queue("a").create()
    page = watch.open(QUEUES)
    expect(page.locator("tbody th")).to_have_text(["a"])  # and no queue that was counted before it was deleted
    page.evaluate("""() => {
        const field = document.querySelector("[data-search]");
        field.value = "a";
        field.dispatchEvent(new Event("input", {bubbles: true}));
        setTimeout(() => document.querySelector("tbody th a").click(), 298);
    }""")
    page.wait_for_timeout(600)
    expect(page.get_by_role("heading", level=1, name="a", exact=True)).to_be_visible()


def test_the_keyboard_alone_does_it(client: Client, watch: Watch) -> None:
    """Acceptance 19: rows, selection, opening, search, the list of keys; letters within a field are letters."""
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
    expect(page.get_by_label("Part of a queue's name")).to_have_value("x?")
    page.get_by_label("Part of a queue's name").fill("")
    page.locator("main").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
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
