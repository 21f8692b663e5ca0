# SPDX-License-Identifier: Apache-2.0
"""The pages of topics: the list, and of one its log, publishing, metadata, purge and deletion."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import NOTHING, Watch, Watching
from tests.console.test_queues import count
from tests.servers import PROJECT, ZqServer, ask
from tests.stores import RedisServer
from zq.client import Client

pytestmark = pytest.mark.slow

TOPICS = "#/p/acme/topics"
NEWS = f"{TOPICS}/news"


@pytest.fixture
def topics(client: Client) -> Client:
    """The project, without topics."""
    for topic in list(client.topics()):
        client.topic(topic.name).delete()
    return client


def test_an_empty_project_says_how_a_topic_begins(topics: Client, watch: Watch) -> None:
    """And makes one by its button, whose page is shown then; its first message is published there."""
    page = watch.open(TOPICS)
    expect(page.get_by_text("This project has no topics")).to_be_visible()
    page.get_by_role("button", name="Create a topic").first.click()
    page.get_by_role("dialog").get_by_role("textbox").fill("news")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", name="news", level=1)).to_be_visible()
    expect(page.get_by_text("The topic has no messages")).to_be_visible()
    watch.check_accessible()
    page.get_by_role("link", name="Publish a message").click()
    page.get_by_label("Body, as JSON").fill('{"n": 9007199254740993, "m": 1.10}')
    page.get_by_label("Life (ttl), seconds").fill("59")
    expect(page.get_by_role("alert")).to_contain_text("ttl must be an integer from 60")
    page.get_by_label("Life (ttl), seconds").fill("600")
    page.get_by_label("Copies, 1 to 100").fill("3")
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("link", name="look at the topic").click()
    expect(page.locator("tbody td.start")).to_have_text(['{"n":9007199254740993,"m":1.10}'] * 3)
    assert [message.ttl for message in topics.topic("news").list()] == [600] * 3
    page.locator("tbody a").last.click()
    expect(page.locator(".tree")).to_contain_text("m: 1.10")
    page.get_by_role("button", name="Publish again as new…").click()
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("1 message published:")).to_be_visible()
    raw = ask(watch.url, "GET", "/v2/topics/news/messages").body
    assert raw.replace(b" ", b"").replace(b"\n", b"").count(b'{"n":9007199254740993,"m":1.10}') == 4


def test_topics_are_listed_with_what_the_log_has_of_them(topics: Client, watch: Watch) -> None:
    """Thirty, by name or by rate, each once; a search by a part of the name; the keyboard leads there."""
    names = [f"events.{number:02}" for number in range(29)]
    for name in names:
        topics.topic(name).create()
    topics.topic("news").publish_batch([1, 2, 3])
    page = watch.open("#/p/acme/queues")
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(20)
    expect(page.get_by_text("30 topics, counted now")).to_be_visible()
    found = page.locator("tbody th").all_inner_texts()
    page.get_by_role("button", name="Next page").click()
    expect(rows).to_have_count(10)
    assert found + page.locator("tbody th").all_inner_texts() == [*names, "news"]
    expect(rows.last.locator("[data-name=Messages]")).to_have_text("3")
    page.get_by_role("button", name="In/s").click()
    expect(rows.first.locator("th")).to_have_text("news", timeout=60_000)
    expect(rows.first.locator("[data-name='In/s']")).not_to_have_text(NOTHING)
    assert page.url.endswith("?sort=in")
    page.get_by_label("Part of a topic's name").fill("new")
    expect(rows).to_have_count(1)
    assert page.url.endswith("&name=new")
    page.reload()
    expect(rows).to_have_count(1)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="news")).to_be_visible()
    expect(page).to_have_title(re.compile("^news · acme"))
    page.get_by_role("link", name="Subscriptions").last.click()
    page.get_by_role("main").get_by_role("link", name="news").click()
    expect(page.get_by_label("Figures", exact=True)).to_contain_text("Messages in the log3")


def figures(page: Page) -> list[str]:
    return page.locator(".tile .figure").all_inner_texts()


@pytest.fixture(params=["memory", "redis"])
def log(request: pytest.FixtureRequest, server: ZqServer) -> Iterator[ZqServer]:
    """Two stores, since sequences of one rise by one, and those of the other with the time."""
    if request.param == "memory":
        yield server
    else:
        with RedisServer() as store, ZqServer(store.uri) as started:
            yield started


def test_the_log_is_paged_in_both_directions(log: ZqServer, watching: Watching) -> None:
    """The last ones at first; earlier ones to the start, later ones to the end: each message once."""
    watch = watching(log.url)
    with Client(log.url, PROJECT) as client:
        client.topic("news").delete()
        page_through(client, watch)


def page_through(topics: Client, watch: Watch) -> None:
    news, other = topics.topic("news"), topics.topic("other")
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
    page.get_by_role("button", name="Last").click()
    page.mouse.move(0, 0)
    news.publish({"n": "new"})
    expect(page.locator("tbody td.start").last).to_have_text('{"n":"new"}')
    watch.expected |= {400, 0}  # the server may end before the page
    watch.open(f"{NEWS}?after=8000000000000000000")
    expect(page.get_by_role("alert")).to_contain_text("The marker must not be beyond the log's end")


def test_rows_of_the_log_do_not_move_under_the_pointer(topics: Client, watch: Watch) -> None:
    """What comes meanwhile waits behind a button."""
    topics.topic("news").publish_batch(list(range(20)))
    page = watch.open(NEWS)
    rows = page.locator("tbody td.start")
    expect(rows).to_have_count(20)
    rows.nth(2).hover()
    topics.topic("news").publish("new")
    page.get_by_role("button", name="1 new: show").click()
    expect(rows.last).to_have_text('"new"')


@pytest.mark.parametrize("address", [TOPICS, NEWS, f"{NEWS}?tab=tail"])
def test_at_rest_it_asks_once_a_second_at_most(topics: Client, watch: Watch, address: str) -> None:
    for name in ("a", "b", "news"):
        topics.topic(name).publish_batch(list(range(40)))
    page = watch.open(address)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    count(watch, 2)
    assert 1 <= count(watch, 8) <= 9


def test_metadata_of_a_topic_are_those_that_count(topics: Client, watch: Watch) -> None:
    """Refused at their field; free keys stay."""
    topics.topic("news").create({"owner": "shop", "size": 10**18 + 1})
    page = watch.open(f"{NEWS}?tab=metadata")
    ttl = page.get_by_label("_default_message_ttl")
    expect(page.locator(".fields .field")).to_have_count(3)
    ttl.fill("-1")
    expect(page.locator("#field_default_message_ttl-says")).to_contain_text("Must be an integer from 60")
    ttl.fill("600")
    free = page.get_by_label("Free keys, as one JSON object")
    free.fill(free.input_value().replace("shop", "store"))
    page.get_by_role("button", name="Save…").click()
    expect(page.get_by_role("dialog")).to_contain_text("_default_message_ttl: 3600 → 600")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.locator(".announcer")).to_contain_text("2 keys saved.")
    found = topics.topic("news").metadata()
    assert (found["_default_message_ttl"], found["owner"], found["size"]) == (600, "store", 10**18 + 1)
    expect(page.locator(".words")).to_contain_text("Messages live 10 min")


def test_a_purge_and_a_deletion_want_the_name(topics: Client, watch: Watch) -> None:
    """Other topics keep what they have; sequences go on."""
    last = topics.topic("news").publish_batch(list(range(7)))[-1]
    topics.topic("other").publish(1)
    page = watch.open(NEWS)
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("7 messages as counted now, and all subscriptions")
    dialog.get_by_role("textbox").press("Enter")
    expect(dialog).to_be_visible()
    assert topics.topic("news").stats().total == 7
    watch.check_accessible()
    dialog.get_by_role("textbox").fill("news")
    dialog.get_by_role("textbox").press("Enter")
    expect(page.locator(".announcer")).to_contain_text("7 messages of news were purged.")
    assert (topics.topic("news").stats().total, topics.topic("other").stats().total) == (0, 1)
    assert int(topics.topic("news").publish("next")) > int(last)
    page.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("textbox").fill("news")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [topic.name for topic in topics.topics()] == ["other"]


def test_selected_topics_are_deleted_each_of_them_named(topics: Client, watch: Watch) -> None:
    for name in ("a", "b", "c"):
        topics.topic(name).publish(name)
    page = watch.open(TOPICS)
    page.get_by_label("Select a", exact=True).check()
    page.get_by_label("Select c", exact=True).check()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem")).to_have_text(["a: 1 message", "c: 1 message"])
    dialog.get_by_role("textbox").fill("2 topics")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [topic.name for topic in topics.topics()] == ["b"]


def test_a_message_that_is_gone_is_told(topics: Client, watch: Watch) -> None:
    watch.expected.add(404)
    topics.topic("news").publish(1)
    page = watch.open(f"{NEWS}?m=7777")
    expect(page.get_by_text("It is not there any more")).to_be_visible()
    page.get_by_role("link", name="Close").click()
    expect(page.get_by_label("Message", exact=True)).to_have_count(0)


def test_a_reader_sees_and_changes_nothing(tokened: tuple[ZqServer, Callable[..., str]], watching: Watching) -> None:
    """Acceptance 15: each act says which rule is missing; a tail is there for him."""
    server, make = tokened
    with Client(server.url, PROJECT, token=make()) as client:
        client.topic("news").publish({"n": 1})
    watch = watching(server.url)
    watch.expected.add(401)
    page = watch.open()
    page.get_by_label("Token").fill(make("observe:**"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    for address, button, rule in (
        (TOPICS, "Create a topic", "topics:create"),
        (NEWS, "Purge…", "topics:purge"),
        (NEWS, "Delete…", "topics:delete"),
        (f"{NEWS}?tab=publish", "Publish", "topics:publish"),
        (f"{NEWS}?tab=metadata", "Save…", "topics:update"),
    ):
        watch.open(address)
        act = page.get_by_role("button", name=button)
        expect(act).to_have_attribute("aria-disabled", "true")
        expect(act).to_have_attribute("title", f"Your credential does not allow {rule} in acme.")
    watch.open(f"{NEWS}?tab=tail")
    expect(page.get_by_text("Live, by a stream.")).to_be_visible()
