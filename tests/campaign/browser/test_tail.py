# SPDX-License-Identifier: Apache-2.0
"""Tails under load, after gaps and restarts, without a stream, and with filters."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching
from tests.console.test_tail import MADE, RECORD, STREAM, TAIL, lines, opened
from tests.servers import ZqServer, ask, wait_for
from tests.sse import Stream
from zq.client import Client, Topic

pytestmark = pytest.mark.slow


# Record the longest time for which the page's event loop is blocked.
FREEZES = """() => {
    window.longest = 0;
    let last = performance.now();
    setInterval(() => {
        window.longest = Math.max(window.longest, performance.now() - last);
        last = performance.now();
    }, 20);
}"""
RATE, SECONDS = 1000, 5
"""Messages per second and duration in seconds; ``python -m bench.console`` runs a whole minute."""


def publishing(topic: Topic, seconds: float) -> list[str]:
    """Publish at ``RATE`` for `seconds` and return the ids."""
    ids: list[str] = []
    began, done = time.monotonic(), threading.Event()
    for batch in range(int(seconds * 10)):
        ids += topic.publish_batch([{"batch": batch, "n": number} for number in range(RATE // 10)])
        done.wait(began + (batch + 1) / 10 - time.monotonic())
    return ids


def test_a_thousand_a_second_come_without_loss_and_without_a_freeze(client: Client, watch: Watch) -> None:
    """Messages arrive once and in order, and a page with a thousand lines stays responsive (acceptance 14)."""
    page = opened(watch)
    page.evaluate(FREEZES)
    topic = client.topic("news")
    ids: list[str] = []
    publisher = threading.Thread(
        target=lambda: ids.extend(publishing(Client(watch.url, watch.project).topic("news"), SECONDS))
    )
    publisher.start()
    expect(page.get_by_text("received, ")).not_to_contain_text(" 0 per second")
    page.get_by_label("Message contains").fill('"n":99}')
    expect(page.locator(".line code").first).to_contain_text('"n":99}')
    page.get_by_label("Message contains").fill("")
    while publisher.is_alive():
        page.wait_for_timeout(100)
    publisher.join()
    expect(page.get_by_text(f"{RATE * SECONDS:,} messages received")).to_be_visible()
    expect(page.get_by_text("1,000 messages shown (at most 1,000)")).to_be_visible()
    expect(lines(page).last).to_contain_text(f'"batch":{SECONDS * 10 - 1},"n":99')
    assert page.evaluate(MADE) == ids
    assert lines(page).count() < 80
    assert page.evaluate("window.longest") < 10_000
    assert topic.stats().total == RATE * SECONDS


def test_a_tail_that_was_scrolled_stays_where_it_is(client: Client, watch: Watch) -> None:
    """New messages wait behind a button; at the end of the list, the tail follows again."""
    page = opened(watch)
    topic = client.topic("news")
    topic.publish_batch([{"n": number} for number in range(200)])
    expect(lines(page).last).to_contain_text('"n":199')
    page.locator(".lines").evaluate("(element) => { element.scrollTop = 0; }")
    expect(lines(page).first).to_contain_text('"n":0')
    topic.publish_batch([{"n": number} for number in range(200, 1150)])
    expect(page.get_by_role("button", name="950 new: show")).to_be_visible()
    expect(lines(page).first).to_contain_text('"n":0')
    watch.check_accessible()
    page.get_by_role("button", name="new: show").click()
    expect(lines(page).last).to_contain_text('"n":1149')
    page.locator(".lines").evaluate("(element) => { element.scrollTop = 0; }")
    expect(lines(page).first).to_contain_text('"n":150')
    page.get_by_role("button", name="Clear").click()
    expect(lines(page)).to_have_count(0)
    topic.publish_batch(["one", "two"])
    expect(lines(page)).to_have_count(2)


def test_a_line_that_has_the_focus_stays(client: Client, watch: Watch) -> None:
    """The keyboard moves between lines while new messages arrive, and back to the end."""
    page = opened(watch)
    topic = client.topic("news")
    topic.publish_batch(["one", "two"])
    expect(lines(page)).to_have_count(2)
    page.keyboard.press("j")
    topic.publish_batch([{"n": number} for number in range(999)])
    button = page.get_by_role("button", name="999 new: show")
    expect(button).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Message", exact=True).locator(".tree, pre")).to_contain_text("two")
    expect(lines(page)).to_have_count(2)
    page.keyboard.press("Escape")
    expect(page.get_by_label("Message", exact=True)).to_have_count(0)
    button.focus()
    page.keyboard.press("Enter")
    expect(lines(page).last).to_contain_text('"n":998')
    expect(page.locator(".lines")).to_be_focused()


@pytest.mark.parametrize("end", [ZqServer.kill, ZqServer.terminate])
def test_it_goes_on_when_the_server_is_back(
    watching: Watching, project: str, tmp_path: Path, end: Callable[[ZqServer], Any]
) -> None:
    """The tail continues without gap or repeat after a kill or a termination (acceptance 14)."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server, Client(server.url, project) as client:
        watch = watching(server.url)
        watch.expected |= {0, 503}
        page = opened(watch)
        ids = list(client.topic("news").publish_batch(list(range(50))))
        expect(lines(page).last).to_contain_text("49")
        for turn in range(3):
            page.route("**/stream", lambda route: route.abort())  # no stream may open before the messages are published
            end(server)
            server.start()
            with Client(server.url, project) as again:
                ids += again.topic("news").publish_batch([f"of {turn}"] * 50)
                page.unroute("**/stream")
                expect(lines(page).last).to_contain_text(f"of {turn}", timeout=60_000)
                ids.append(again.topic("news").publish(f"behind {turn}"))
            expect(lines(page).last).to_contain_text(f"behind {turn}")
        assert page.evaluate(MADE) == ids
        expect(page.locator(".gap")).to_have_count(0)


def test_tail_reports_a_new_log(watching: Watching, project: str) -> None:
    """The new log of an empty store is read from its start, after a line that reports the new log."""
    with ZqServer("memory:") as server:
        watch = watching(server.url)
        watch.expected |= {0, 400, 503}
        page = opened(watch)
        with Client(server.url, project) as client:
            client.topic("news").publish_batch(list(range(30)))
        expect(lines(page)).to_have_count(30)
        server.kill()
        server.start()
        with Client(server.url, project) as client:
            ids = list(client.topic("news").publish_batch(["new", "newer"]))
        expect(page.locator(".gap")).to_contain_text("The log was deleted and created again", timeout=60_000)
        expect(lines(page).last).to_contain_text("newer")
        assert page.evaluate(MADE)[-2:] == ids


@pytest.fixture(scope="module")
def small() -> Iterator[ZqServer]:
    """Start a server with a short log, 16 streams, of which a project gets four, and four waiting requests."""
    config = "[topics]\ntopic_log_messages = 1000\n[server]\nthreads = 64\nmax_streams = 16\nmax_waiters = 4\n"
    with ZqServer("memory:", config=config) as server:
        yield server


def test_an_overrun_log_is_one_line(small: ZqServer, watching: Watching, project: str) -> None:
    """Messages that were trimmed during a pause are reported once, and all others follow (acceptance 14)."""
    watch = watching(small.url)
    page = opened(watch)
    with Client(small.url, project) as client:
        overrun(client.topic("news"), page)


def overrun(topic: Topic, page: Page) -> None:
    """Publish more than the log keeps while the tail is paused, and check the result."""
    first = topic.publish("first")
    expect(lines(page).last).to_contain_text("first")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".way")).to_contain_text(f"Paused after sequence {first}")
    page.evaluate("() => { window.made.length = 0; }")
    ids: list[str] = []
    for batch in range(30):
        ids += topic.publish_batch([{"batch": batch, "n": number} for number in range(100)])
    page.get_by_role("button", name="Resume").click()
    expect(lines(page).last).to_contain_text('"batch":29,"n":99')
    ids.append(topic.publish("last"))
    expect(lines(page).last).to_contain_text("last")
    gap, *rest = page.evaluate(MADE)
    missing = ids[: len(ids) - len(rest)]
    assert rest == ids[len(missing) :]
    told = (
        f"Up to {len(missing):,} messages were removed before they were read (sequences {missing[0]} to {missing[-1]})."
    )
    assert gap == told


@contextmanager
def streams(url: str, own: str, most: int) -> Iterator[None]:
    """Open `most` streams of several projects, so that the page's project has no free stream."""
    with ExitStack() as stack:
        for number in range(most):
            project = f"other{number // 4}" if number < most - 4 else own
            stream = wait_for(lambda project=project: stream_of(url, project), 60, "a stream is left")
            stack.enter_context(stream)
        yield


def stream_of(url: str, project: str) -> Stream | None:
    stream = Stream(url, "/v2/stream", project=project)
    if stream.answer.status == 200:
        return stream
    stream.close()
    return None


@contextmanager
def waiting(url: str, project: str) -> Iterator[None]:
    """Occupy the project's only slot for a waiting request."""
    own = {"X-Project-ID": project}

    def turned_away(seconds: int) -> bool:
        return (
            "retry-after"
            in ask(url, "GET", f"/v2/topics/quiet/messages?wait={seconds}", headers=own, timeout=60).headers
        )

    holder = threading.Thread(target=wait_for, args=(lambda: not turned_away(30), 60, "a message"))
    holder.start()
    wait_for(lambda: turned_away(1), 60, "the place is taken")
    yield
    ask(url, "POST", "/v2/topics/quiet/messages", {"messages": [{"body": 1, "ttl": 60}]}, headers=own)
    holder.join()


def test_the_seventeenth_tail_asks_by_requests_and_says_so(small: ZqServer, watching: Watching, project: str) -> None:
    """The tail uses long polling if a slot is free, otherwise plain requests, and later a stream (acceptance 14)."""
    with Client(small.url, project) as client, ExitStack() as crowd:
        topic = client.topic("news")
        topic.publish("before")
        crowd.enter_context(streams(small.url, project, 16))
        with waiting(small.url, project):
            watch = watching(small.url)
            watch.expected.add(503)
            page = watch.open(TAIL)
            expect(page.locator(".way")).to_contain_text("Refreshed every two seconds")
            made = comes(topic, page, 3)
            watch.check_accessible()
            made += comes(topic, page, 3)
            assert page.locator(".line .id").all_inner_texts() == made
            page.goto("about:blank")
        page = watch.open(TAIL)
        page.evaluate(RECORD)
        expect(page.locator(".way")).to_contain_text("Live (long polling). The server has no free stream")
        comes(topic, page, 1)
        overrun(topic, page)
        expect(page.locator(".way")).to_contain_text("Live (long polling).")
        page.get_by_role("button", name="Clear").click()
        made = [*comes(topic, page, 1), *comes(topic, page, 5)]
        page.get_by_role("button", name="Pause").click()
        made += topic.publish_batch(["while it was paused"] * 3)
        crowd.close()
        wait_for(lambda: free(small.url, project), 60, "a stream is left")
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".way")).to_have_text(STREAM)
        made += comes(topic, page, 2)
        assert page.locator(".line .id").all_inner_texts() == made
        expect(page.locator(".gap")).to_have_count(0)


def comes(topic: Topic, page: Page, number: int) -> list[str]:
    """Publish `number` messages, wait until they are shown, and return their ids."""
    made = list(topic.publish_batch([{"n": each} for each in range(number)]))
    expect(page.locator(".line .id").last).to_have_text(made[-1])
    return made


def free(url: str, project: str) -> bool:
    with Stream(url, "/v2/stream", project=project) as stream:
        return stream.answer.status == 200


def test_several_topics_cannot_be_asked_for_by_requests(small: ZqServer, watching: Watching, project: str) -> None:
    """The page waits for a stream with the server's message, and then receives the messages of the meantime."""
    watch = watching(small.url)
    watch.expected.add(503)
    with Client(small.url, project) as client:
        page = opened(watch, "topics?tail=news.**")
        page.get_by_role("button", name="Pause").click()
        with streams(small.url, project, 16):
            page.get_by_role("button", name="Resume").click()
            expect(page.locator(".way")).to_contain_text(
                "Too many streams: This server serves at most 16 concurrent streams"
            )
            client.topic("news.eu").publish("meanwhile")
        expect(page.locator(".way")).to_have_text(STREAM, timeout=60_000)
        expect(lines(page)).to_contain_text(["meanwhile"])


def test_filter_keeps_rare_messages(client: Client, watch: Watch) -> None:
    """1500 other messages do not push out the matching ones."""
    page = opened(watch)
    page.get_by_label("Message contains").fill("rare")
    client.topic("news").publish({"text": "rare one"})
    client.topic("news").publish({"long": "x" * 10_000 + "rare"})
    client.topic("news").publish_many([{"n": number} for number in range(1500)])
    expect(page.get_by_text("1,502 messages received")).to_be_visible()
    expect(lines(page)).to_have_count(2)
    page.get_by_label("Message contains").fill("")
    client.topic("news").publish("another")
    expect(lines(page)).to_have_count(3)
    page.get_by_label("Message contains").fill("rare & more")
    expect(page).to_have_url(re.compile(r"text=rare\+%26\+more"))
    page.reload()
    expect(page.get_by_label("Message contains")).to_have_value("rare & more")
    client.topic("news").publish_batch(["none", "rare & more"])
    expect(lines(page)).to_have_count(1)


def test_a_page_that_was_paused_has_no_stream(client: Client, watch: Watch) -> None:
    """A tail that is opened on a paused page is paused, and starts when the page is resumed."""
    page = watch.open("topics/news")
    page.get_by_role("button", name="Live").click()
    page.get_by_role("link", name="Tail").click()
    expect(page.locator(".way")).to_contain_text("Paused")
    page.get_by_role("button", name="Paused").click()
    expect(page.locator(".way")).to_have_text(STREAM)
