# SPDX-License-Identifier: Apache-2.0
"""Rules for every crawled page of the console: names, widths, permissions, outages, requests when idle."""

import re

import pytest
from playwright.sync_api import expect

from tests.campaign.browser import crawl
from tests.console.conftest import Guarded, Watch, Watching
from tests.servers import ZqServer, ask
from tests.stores import RedisServer
from zq.client import Client

pytestmark = pytest.mark.slow

UNNAMED = re.compile(
    r"^\s*- (?:button|link|textbox|searchbox|checkbox|radio|combobox|meter)(?! \")[^\n]*", re.MULTILINE
)
WIDER = "document.documentElement.scrollWidth - innerWidth"
ABSENT = {400, 404}
"""Statuses of a server without quotas and pools."""


def test_every_control_has_a_name_and_no_page_scrolls_sideways(client: Client, watch: Watch) -> None:
    """Controls have names, pages fit 360 and 640 px, and axe finds nothing in both themes (acceptance 19)."""
    watch.expected |= ABSENT
    for address in crawl.pages(watch, crawl.fill(client)):
        page = watch.open(address)
        crawl.settled(page)
        unnamed = UNNAMED.findall(page.locator("body").aria_snapshot())
        watch.wrong += [f"{address}: without a name: {line.strip()}" for line in unnamed]
        for width in (360, 640, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            if (wider := page.evaluate(WIDER)) > 0:
                watch.wrong.append(f"{address}: {wider} px wider than {width} px")
        before = len(watch.wrong)
        watch.check_accessible()
        watch.wrong[before:] = [f"{address}: {sentence}" for sentence in watch.wrong[before:]]


def test_a_reader_acts_nowhere(tokened: Guarded, watching: Watching) -> None:
    """No button changes anything, and disabled buttons name the missing rule; curl gets 403 (acceptance 15)."""
    with tokened.client() as client:
        known = crawl.fill(client)
    reader = tokened.token("observe:**")
    watch = watching(tokened.server.url)
    watch.expected |= {401, 403, *ABSENT}
    page = watch.sign_in(reader, crawl.QUEUES)
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    reasons = set()
    for address in crawl.pages(watch, known):
        crawl.settled(watch.open(address))
        acts = page.locator("main button[aria-disabled=true]").all()
        reasons |= {act.get_attribute("title") for act in acts}
        for button in page.locator("main button:not([aria-disabled=true]):not([data-close])").all():
            button.click()
            expect(page.get_by_role("dialog")).to_have_count(0)
    assert [request.url for request in watch.requests if request.method != "GET"] == []
    rules = {str(reason).split(" in ")[0] for reason in reasons}
    needed = [f"queues:{verb}" for verb in ("create", "update", "purge", "delete")]
    needed += [f"topics:{verb}" for verb in ("create", "publish", "update", "purge", "delete")]
    needed += ["claims:create", "claims:delete", "messages:delete_all"]
    assert {f"Your credential does not allow {rule}" for rule in needed} <= rules
    headers = {"Authorization": f"Bearer {reader}", "X-Project-ID": tokened.project}
    for method, path in (("PUT", ""), ("DELETE", ""), ("POST", "/purge"), ("POST", "/messages"), ("POST", "/claims")):
        document = {"messages": [{"body": 1}]} if path == "/messages" else {}
        assert ask(tokened.server.url, method, f"/v2/queues/mail{path}", document, headers=headers).status == 403, path


def test_pages_at_rest_send_one_request_a_second_at_most(client: Client, watch: Watch) -> None:
    """Hidden pages send no requests."""
    watch.expected |= ABSENT
    for address in crawl.pages(watch, crawl.fill(client)):
        crawl.settled(watch.open(address))
        watch.page.wait_for_timeout(1000)
        assert count(watch, 3) <= 4, address
        watch.hide()
        watch.page.wait_for_timeout(1500)  # one request may be in flight
        assert count(watch, 2) == 0, address
        watch.hide(False)


def count(watch: Watch, seconds: float) -> int:
    """Return the number of requests that the page sends in this time."""
    before = len(watch.requests)
    watch.page.wait_for_timeout(seconds * 1000)
    return len(watch.requests) - before


def test_a_store_that_is_down_is_told_on_every_page(watching: Watching, project: str) -> None:
    """Each page soon shows the outage, keeps its content, and recovers without a reload (acceptance 16)."""
    with RedisServer() as store, ZqServer(store.uri, env={"OS_TRANSPORT__STORAGE_TIMEOUT": "1"}) as server:
        with Client(server.url, project) as client:
            known = crawl.fill(client)
        opened = _all_pages(watching, server, known)
        headings = [watch.page.locator("main h1").all_inner_texts() for watch in opened]
        store.kill()
        _told(opened, ".banner.down", "The store is unavailable")
        _heartbeats_failed(opened)
        assert [watch.page.locator("main h1").all_inner_texts() for watch in opened] == headings
        store.start()
        _fresh(opened)


def test_a_server_that_is_gone_is_told_on_every_page(watching: Watching, project: str) -> None:
    """The behaviour is the same as for an unavailable store (acceptance 16)."""
    with ZqServer("memory:") as server:
        with Client(server.url, project) as client:
            known = crawl.fill(client)
        opened = _all_pages(watching, server, known)
        server.kill()
        _told(opened, ".banner.gone", "The server does not answer")
        server.start()
        with Client(server.url, project) as client:
            crawl.fill(client)
        _fresh(opened)


def _all_pages(watching: Watching, server: ZqServer, known: list[str]) -> list[Watch]:
    """Open each page in its own tab."""
    first = watching(server.url)
    first.expected |= {0, 503, *ABSENT}
    opened = [first]
    for address in crawl.pages(first, known)[1:]:
        opened.append(watching(server.url))
        opened[-1].expected |= first.expected
        opened[-1].judged = True  # by the test of all controls
        opened[-1].open(address)
    first.open(crawl.QUEUES)
    for watch in opened:
        crawl.settled(watch.page)
    return opened


def _told(opened: list[Watch], banner: str, sentence: str) -> None:
    for watch in opened:
        expect(watch.page.locator(banner), watch.page.url).to_contain_text(sentence, timeout=60_000)


def _heartbeats_failed(opened: list[Watch]) -> None:
    """Wait until each page has had a failed check of the store: only its own success ends the notice."""
    for watch in opened:
        failed = [request for request in watch.requests if request.url.endswith("/ping")]
        while not failed or not (answer := failed[-1].response()) or answer.status != 503:
            failed.append(watch.page.wait_for_event("request", lambda request: request.url.endswith("/ping")))


def _fresh(opened: list[Watch]) -> None:
    for watch in opened:
        expect(watch.page.locator(".banner"), watch.page.url).to_have_count(0, timeout=120_000)
