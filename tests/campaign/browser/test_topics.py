# SPDX-License-Identifier: Apache-2.0
"""The topic pages: list, metadata, purge and deletion, and logs with gaps in their sequences."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.console.conftest import NOTHING, Watch
from tests.console.test_topics import NEWS, TOPICS, test_the_log_is_paged_in_both_directions
from tests.servers import ZqServer
from tests.stores import RedisServer
from zq.client import Client

pytestmark = pytest.mark.slow

__all__ = ["test_the_log_is_paged_in_both_directions"]


@pytest.fixture
def log() -> Iterator[ZqServer]:
    """Start a server on a store whose sequences increase with time."""
    with RedisServer() as store, ZqServer(store.uri) as started:
        yield started


def test_topics_are_listed_with_what_the_log_has_of_them(client: Client, watch: Watch) -> None:
    """Thirty topics are sorted by name or rate, each once, can be searched, and are reachable by keyboard."""
    names = [f"events.{number:02}" for number in range(29)]
    for name in names:
        client.topic(name).create()
    client.topic("news").publish_batch([1, 2, 3])
    page = watch.open("queues")
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(20)
    expect(page.get_by_text("30 topics, counted just now")).to_be_visible()
    found = page.locator("tbody th").all_inner_texts()
    page.get_by_role("button", name="Next page").click()
    expect(rows).to_have_count(10)
    assert found + page.locator("tbody th").all_inner_texts() == [*names, "news"]
    expect(rows.last.locator("[data-name=Messages]")).to_have_text("3")
    page.get_by_role("button", name="In/s").click()
    expect(rows.first.locator("th")).to_have_text("news", timeout=60_000)
    expect(rows.first.locator("[data-name='In/s']")).not_to_have_text(NOTHING)
    assert page.url.endswith("?sort=in")
    page.get_by_label("Search for topics by name").fill("new")
    expect(rows).to_have_count(1)
    assert page.url.endswith("&name=new")
    page.reload()
    expect(rows).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="news")).to_be_visible()
    expect(page).to_have_title(re.compile(f"^news · {watch.project}"))
    page.get_by_role("link", name="Subscriptions").last.click()
    page.get_by_role("main").get_by_role("link", name="news").click()
    expect(page.get_by_label("Figures", exact=True)).to_contain_text("Messages in the log3")


def test_metadata_of_a_topic_are_those_that_count(client: Client, watch: Watch) -> None:
    """A wrong value is reported at its field, and custom keys are kept."""
    client.topic("news").create({"owner": "shop", "size": 10**18 + 1})
    page = watch.open(f"{NEWS}?tab=metadata")
    ttl = page.get_by_label("_default_message_ttl")
    expect(page.locator(".fields .field")).to_have_count(3)
    ttl.fill("-1")
    expect(page.locator("#field_default_message_ttl-says")).to_contain_text("Must be an integer from 60")
    ttl.fill("600")
    free = page.get_by_label("Your own keys, as a JSON object")
    free.fill(free.input_value().replace("shop", "store"))
    page.get_by_role("button", name="Save…").click()
    expect(page.get_by_role("dialog")).to_contain_text("_default_message_ttl: 3600 → 600")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.locator(".announcer")).to_contain_text("2 keys saved.")
    found = client.topic("news").metadata()
    assert (found["_default_message_ttl"], found["owner"], found["size"]) == (600, "store", 10**18 + 1)
    expect(page.locator(".words")).to_contain_text("Messages expire after 10 min")


def test_a_purge_and_a_deletion_want_the_name(client: Client, watch: Watch) -> None:
    """Other topics keep their messages, and sequences continue."""
    last = client.topic("news").publish_batch(list(range(7)))[-1]
    client.topic("other").publish(1)
    page = watch.open(NEWS)
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("All messages (7) and all subscriptions")
    dialog.get_by_role("textbox").press("Enter")
    expect(dialog).to_be_visible()
    assert client.topic("news").stats().total == 7
    watch.check_accessible()
    dialog.get_by_role("textbox").fill("news")
    dialog.get_by_role("textbox").press("Enter")
    expect(page.locator(".announcer")).to_contain_text("Purged 7 messages from news.")
    assert (client.topic("news").stats().total, client.topic("other").stats().total) == (0, 1)
    assert int(client.topic("news").publish("next")) > int(last)
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("textbox").fill("news")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [topic.name for topic in client.topics()] == ["other"]


def test_selected_topics_are_deleted_each_of_them_named(client: Client, watch: Watch) -> None:
    for name in ("a", "b", "c"):
        client.topic(name).publish(name)
    page = watch.open(TOPICS)
    page.get_by_label("Select a", exact=True).check()
    page.get_by_label("Select c", exact=True).check()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem")).to_have_text(["a: 1 message", "c: 1 message"])
    dialog.get_by_role("textbox").fill("2 topics")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [topic.name for topic in client.topics()] == ["b"]


def test_a_message_that_is_gone_is_told(client: Client, watch: Watch) -> None:
    watch.expected.add(404)
    client.topic("news").publish(1)
    page = watch.open(f"{NEWS}?m=7777")
    expect(page.get_by_text("Message not found")).to_be_visible()
    page.get_by_role("link", name="Close").click()
    expect(page.get_by_label("Message", exact=True)).to_have_count(0)
