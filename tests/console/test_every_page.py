# SPDX-License-Identifier: Apache-2.0
"""What holds of every page of the console, also of those that are to come: ``crawl`` finds them."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.console import crawl
from tests.console.conftest import Watch, Watching
from tests.servers import PROJECT, ZqServer, ask
from tests.stores import RedisServer
from zq.client import Client

pytestmark = pytest.mark.slow

Tokened = tuple[ZqServer, Callable[..., str]]
UNNAMED = re.compile(
    r"^\s*- (?:button|link|textbox|searchbox|checkbox|radio|combobox|meter)(?! \")[^\n]*", re.MULTILINE
)
WIDER = "document.documentElement.scrollWidth - innerWidth"
ABSENT = {400, 404}
"""What a server answers where it has no quotas and no pools."""


def test_every_control_has_a_name_and_no_page_scrolls_sideways(client: Client, watch: Watch) -> None:
    """Acceptance 19: a screen reader's tree; 360 px; 640 px, as 1280 at 200 %; axe in both themes."""
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


def test_a_reader_acts_nowhere(tokened: Tokened, watching: Watching) -> None:
    """Acceptance 15: whatever button can be pressed on any page, it asks and changes nothing; curl gets 403."""
    server, make = tokened
    with Client(server.url, PROJECT, token=make()) as client:
        known = crawl.fill(client)
    reader = make("observe:**")
    watch = watching(server.url)
    watch.expected |= {401, 403, *ABSENT}
    page = watch.open()
    page.get_by_label("Token").fill(reader)
    page.get_by_role("button", name="Sign in").click()
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
    assert {
        f"Your credential does not allow queues:{name}" for name in ("create", "update", "purge", "delete")
    } <= rules
    assert "Your credential does not allow claims:create" in rules
    headers = {"Authorization": f"Bearer {reader}"}
    for method, path in (("PUT", ""), ("DELETE", ""), ("POST", "/purge"), ("POST", "/messages"), ("POST", "/claims")):
        document = {"messages": [{"body": 1}]} if path == "/messages" else {}
        assert ask(server.url, method, f"/v2/queues/mail{path}", document, headers=headers).status == 403, path


def test_a_store_that_is_down_is_told_on_every_page(watching: Watching) -> None:
    """Acceptance 16: soon; what was shown stays; and all is fresh after its return, without a reload."""
    with RedisServer() as store, ZqServer(store.uri, env={"OS_TRANSPORT__STORAGE_TIMEOUT": "1"}) as server:
        with Client(server.url, PROJECT) as client:
            known = crawl.fill(client)
        opened = _all_pages(watching, server, known)
        headings = [watch.page.locator("main h1").all_inner_texts() for watch in opened]
        store.kill()
        _told(opened, ".banner.down", "The store cannot serve")
        _heartbeats_failed(opened)
        assert [watch.page.locator("main h1").all_inner_texts() for watch in opened] == headings
        store.start()
        _fresh(opened)


def test_a_server_that_is_gone_is_told_on_every_page(watching: Watching) -> None:
    """Acceptance 16: the same of the server itself."""
    with ZqServer("memory:") as server:
        with Client(server.url, PROJECT) as client:
            known = crawl.fill(client)
        opened = _all_pages(watching, server, known)
        server.kill()
        _told(opened, ".banner.gone", "The server does not answer")
        server.start()
        with Client(server.url, PROJECT) as client:
            crawl.fill(client)
        _fresh(opened)


def _all_pages(watching: Watching, server: ZqServer, known: list[str]) -> list[Watch]:
    """Each page, opened beside the others."""
    first = watching(server.url)
    first.expected |= {0, 503, *ABSENT}
    opened = [first]
    for address in crawl.pages(first, known)[1:]:
        opened.append(watching(server.url))
        opened[-1].expected |= first.expected
        opened[-1].judged = True  # by the test of all controls
        opened[-1].open(address)
    first.open(crawl.PROJECT)
    for watch in opened:
        crawl.settled(watch.page)
    return opened


def _told(opened: list[Watch], banner: str, sentence: str) -> None:
    for watch in opened:
        expect(watch.page.locator(banner), watch.page.url).to_contain_text(sentence, timeout=60_000)


def _heartbeats_failed(opened: list[Watch]) -> None:
    """Each page has asked whether the store answers, and heard that it does not: that ends only by its own success."""
    for watch in opened:
        failed = [request for request in watch.requests if request.url.endswith("/ping")]
        while not failed or not (answer := failed[-1].response()) or answer.status != 503:
            failed.append(watch.page.wait_for_event("request", lambda request: request.url.endswith("/ping")))


def _fresh(opened: list[Watch]) -> None:
    for watch in opened:
        expect(watch.page.locator(".banner"), watch.page.url).to_have_count(0, timeout=120_000)
