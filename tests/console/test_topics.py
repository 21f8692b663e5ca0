# SPDX-License-Identifier: Apache-2.0
"""The topic pages: creation, publishing, and the log."""

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching
from tests.servers import ZqServer, ask
from zq.client import Client

pytestmark = pytest.mark.slow

TOPICS = "topics"
NEWS = f"{TOPICS}/news"


def test_an_empty_project_says_how_a_topic_begins(client: Client, watch: Watch) -> None:
    """The button creates a topic and opens its page, where the first message is published."""
    page = watch.open(TOPICS)
    expect(page.get_by_text("This project has no topics")).to_be_visible()
    page.get_by_role("button", name="Create a topic").first.click()
    page.get_by_role("dialog").get_by_role("textbox").fill("news")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="news", level=1)).to_be_visible()
    expect(page.get_by_text("The topic has no messages")).to_be_visible()
    watch.check_accessible()
    page.get_by_role("link", name="Publish a message").click()
    page.get_by_label("Body (JSON)").fill('{"n": 9007199254740993, "m": 1.10}')
    page.get_by_label("Time to live (seconds)").fill("59")
    expect(page.get_by_role("alert")).to_contain_text("ttl must be an integer between 60")
    page.get_by_label("Time to live (seconds)").fill("600")
    page.get_by_label("Copies (1 to 100)").fill("3")
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("link", name="show the topic").click()
    expect(page.locator("tbody td.start")).to_have_text(['{"n":9007199254740993,"m":1.10}'] * 3)
    assert [message.ttl for message in client.topic("news").list()] == [600] * 3
    page.locator("tbody a").last.click()
    expect(page.locator(".tree")).to_contain_text("m: 1.10")
    page.get_by_role("button", name="Publish a copy…").click()
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("1 message published:")).to_be_visible()
    raw = ask(watch.url, "GET", "/v2/topics/news/messages", headers={"X-Project-ID": watch.project}).body
    assert raw.replace(b" ", b"").replace(b"\n", b"").count(b'{"n":9007199254740993,"m":1.10}') == 4


def figures(page: Page) -> list[str]:
    return page.locator(".tile .figure").all_inner_texts()


@pytest.fixture
def log(server: ZqServer) -> ZqServer:
    """Return a server with a store whose sequences increase by one."""
    return server


def test_the_log_is_paged_in_both_directions(log: ZqServer, watching: Watching, project: str) -> None:
    """The log starts with the last page, and paging back and forth shows each message once."""
    watch = watching(log.url)
    with Client(log.url, project) as client:
        page_through(client, watch)


def page_through(client: Client, watch: Watch) -> None:
    news, other = client.topic("news"), client.topic("other")
    ids: list[str] = []
    for number in range(45):
        ids += news.publish_batch([{"n": number}])
        if number % 10 == 0:
            other.publish_many(["other"] * 50)
    page = watch.open(NEWS)
    expect(page.locator("tbody a").last).to_have_text(ids[-1])
    expect(page.get_by_text("Last sequence")).to_be_visible()
    assert figures(page)[:3] == ["45", ids[0], ids[-1]]
    seen = page.locator("tbody a").all_inner_texts()
    assert 1 <= len(seen) <= 20
    while page.get_by_role("button", name="Earlier").count():
        first = page.locator("tbody a").first.inner_text()
        page.get_by_role("button", name="Earlier").click()
        expect(page.locator("tbody a").first).not_to_have_text(first)
        assert int(page.locator("tbody a").first.inner_text()) < int(first)
    found = [*page.locator("tbody a").all_inner_texts()]
    while page.get_by_role("button", name="Later").count():
        page.get_by_role("button", name="Later").click()
        expect(page.locator("tbody a").first).not_to_have_text(found[-1 - (len(found) - 1) % 20])
        found += page.locator("tbody a").all_inner_texts()
    assert found == ids
    page.get_by_role("button", name="Latest").click()
    page.mouse.move(0, 0)
    news.publish({"n": "new"})
    expect(page.locator("tbody td.start").last).to_have_text('{"n":"new"}')
    watch.expected |= {400, 0}  # the server may end before the page
    watch.open(f"{NEWS}?after=8000000000000000000")
    expect(page.get_by_role("alert")).to_contain_text("marker must not be after the end of the log")
