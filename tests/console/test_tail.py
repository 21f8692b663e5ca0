# SPDX-License-Identifier: Apache-2.0
"""The tail of one or several topics: each message once and as text, and no stream for a hidden page."""

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.console.conftest import Watch
from tests.console.test_modules import run
from tests.servers import wait_for
from zq.client import Client

pytestmark = pytest.mark.slow

TAIL = "topics/news?tab=tail"
STREAM = "Live."
EXACT = '{"n":9007199254740993,"m":1.10}'
# Record what the page's tails receive from now on: the ids of messages, and gaps.
RECORD = """async () => {
    const { Tail } = await import(`./${document.documentElement.dataset.tree}/tail.js`);
    const { add, message } = Tail.prototype;
    window.made = [];
    const noted = (told, before) => function (given, ...more) {
        if (told(given)) window.made.push(told(given));
        return before.call(this, given, ...more);
    };
    Object.assign(Tail.prototype, { add: noted(({ gap }) => gap, add), message: noted(({ id }) => id, message) });
}"""
MADE = "window.made"


def opened(watch: Watch, address: str = TAIL) -> Page:
    """Open a tail that receives and records what is published from now on."""
    page = watch.open(address.partition("?")[0])
    link = page.get_by_role("link", name="Tail", exact=True)
    expect(link.or_(page.get_by_role("button", name="Tail", exact=True))).to_be_visible()
    page.evaluate(RECORD)
    page.evaluate("(hash) => { location.hash = hash; }", f"#/p/{watch.project}/{address}")
    expect(page.locator(".way")).to_have_text(STREAM)
    return page


def lines(page: Page) -> Locator:
    return page.locator(".line")


def test_events_are_the_same_however_their_text_is_cut(client: Client, watch: Watch) -> None:
    """The parser accepts all line ends, comments, events with only an id, multi-line data, and a cut event."""
    watch.open("#/")
    text = (
        ": zq\nid: 7\n\n"
        'id: 8\r\nevent: message\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
        ": heartbeat\rid: 9\r\r"
        "data:x\ndata\nid: 10\nretry: 5\nunknown\n\n"
        "event: gap\ndata: {}\nid: 1\0 2\n\n"
        "id: 12\nevent: message\ndata: cut off\n"
    )
    parse = (
        "((parser) => given[0].flatMap((piece) => parser.push(piece)).concat(parser.last))(new loaded.Parser(given[1]))"
    )
    expected = [
        {"event": "message", "data": '{"a":\n1}', "id": "8"},
        {"event": "message", "data": "x\n", "id": "10"},
        {"event": "gap", "data": "{}", "id": "10"},
        "10",
    ]
    pieces = [[text[:cut], text[cut:]] for cut in range(len(text) + 1)] + [list(text)]
    many = f"given.map((one) => ((given) => {parse})([one, '']))"
    for number, found in enumerate(run(watch, "sse", many, pieces)):
        assert found == expected, number
    assert run(watch, "sse", parse, [[""], "5"]) == ["5"]
    assert run(watch, "sse", parse, [[": zq\nid: 6\n"], "5"]) == ["5"]  # not before the empty line


def test_a_pattern_means_several_topics(client: Client, watch: Watch) -> None:
    """Each line names its topic; an opened message is shown next to the tail and links to its topic."""
    page = watch.open("topics")
    page.get_by_label("Topic pattern").fill("***")
    page.get_by_role("button", name="Tail").click()
    assert page.url.endswith("/topics")
    page.get_by_label("Topic pattern").fill("news.*")
    page.get_by_role("button", name="Tail").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tail of news.*")
    expect(page.locator(".way")).to_have_text(STREAM)
    for name in ("news.eu", "other", "news.eu.de", "news.asia"):
        client.topic(name).publish(f"of {name}")
    expect(page.locator(".line .of")).to_have_text(["news.eu", "news.asia"])
    page.locator(".line a").last.click()
    expect(page.get_by_label("Message", exact=True)).to_contain_text("of news.asia")
    expect(lines(page)).to_have_count(2)
    page.get_by_label("Message", exact=True).get_by_role("link", name="news.asia").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("news.asia")


def test_tail_closes_its_stream_while_hidden_or_paused(client: Client, watch: Watch) -> None:
    """A hidden or paused page closes its stream, and continues after the last received message."""
    closed: list[Request] = []

    def note(request: Request) -> None:
        closed.extend([request] if "/stream" in request.url else [])

    watch.page.on("requestfailed", note)
    page = opened(watch)
    ids = [client.topic("news").publish("one")]
    expect(lines(page)).to_have_count(1)
    watch.hide()
    wait_for(lambda: page.wait_for_timeout(20) or closed, 60, "the stream is closed")
    ids.append(client.topic("news").publish("two"))
    watch.hide(False)
    expect(lines(page)).to_have_count(2)
    page.get_by_role("button", name="Live").click()
    expect(page.locator(".way")).to_contain_text("Paused")
    wait_for(lambda: page.wait_for_timeout(20) or len(closed) > 1, 60, "the stream is closed")
    ids.append(client.topic("news").publish("three"))
    page.get_by_role("button", name="Paused").click()
    expect(lines(page)).to_have_count(3)
    assert page.evaluate(MADE) == ids
    page.get_by_role("link", name="Log").click()
    wait_for(lambda: page.wait_for_timeout(20) or len(closed) > 2, 60, "the stream is closed")
    page.remove_listener("requestfailed", note)


def test_lines_are_text_digit_by_digit(client: Client, watch: Watch) -> None:
    """Text never runs as code, direction characters are escaped, and numbers keep their digits."""
    page = opened(watch)
    hostile = "<img src=x onerror=alert(1)>\u202egnp.exe\u2028"
    client.topic("news").publish({"text": hostile})
    raw = f'{{"messages": [{{"body": {EXACT}}}]}}'
    script = "async (body) => { const { call } = await import(`./${document.documentElement.dataset.tree}/api.js`);"
    page.evaluate(f"{script} await call('POST', 'topics/news/messages', {{ body }}); }}", raw)
    expect(page.locator(".line code")).to_have_text(
        ['{"text":"<img src=x onerror=alert(1)>\\u202egnp.exe\\u2028"}', EXACT]
    )
    assert page.locator("main img").count() == 0
    page.locator(".line a").last.click()
    expect(page.locator(".tree")).to_contain_text("n: 9007199254740993")
    expect(page.locator(".tree")).to_contain_text("m: 1.10")
