# SPDX-License-Identifier: Apache-2.0
"""A browser, a page that is watched for all that no page may do, and servers behind it.

The browser is the machine's Chromium, or the program that ``ZQ_TEST_BROWSER`` names.
"""

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from tests import abilities
from tests.abilities import need
from tests.servers import PROJECT, ZqServer
from tests.websocket.connections import guarded, made
from zq.client import Client

ARGUMENTS = [
    *("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--no-first-run",
]
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}
COLOURS = {**RULES, "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
VIOLATIONS = "(rules) => axe.run(document, rules).then((found) => found.violations)"
WITHIN = 60_000
"""Milliseconds that the browser waits for what is expected."""
expect.set_options(timeout=WITHIN)
NOTHING = "\N{EN DASH}"
"""What the console writes where nothing is known."""
STATUS = re.compile(r"status of (\d{3})")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all tests of this folder. It is ended behind them: its event loop would be in the way of others."""
    need("chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=abilities.browser(), chromium_sandbox=False, args=ARGUMENTS
        )
        yield started
        started.close()


class Watch:
    """A page, and what it did that no page may: errors, foreign requests, refusals that nobody expected."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.wrong: list[str] = []
        self.expected: set[int] = set()
        """Statuses that are no fault in this test; 0: the server does not answer."""
        self.requests: list[Request] = []
        self.judged = False
        """Whether another test looks at what is shown in the end."""
        self.hosts = {urlsplit(url).netloc}
        self.page = context.new_page()
        self.page.set_default_timeout(WITHIN)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"a dialog: {dialog.message}"))
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)

    def open(self, address: str = "#/") -> Page:
        """Show an address of the console, as "#/p/acme/queues"."""
        self.page.goto(f"{self.url}/console/{address}")
        return self.page

    def _said(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        status = STATUS.search(message.text)
        known = int(status[1]) in self.expected if status else "net::ERR" in message.text and 0 in self.expected
        if not known:
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data") and parts.netloc not in self.hosts:
            self.wrong.append(f"foreign request: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.wrong.append(f"{response.status} for {response.request.method} {response.url}")

    def check_accessible(self) -> None:
        """Note what axe finds in either theme; they differ in nothing but colours."""
        for theme, rules in (("light", RULES), ("dark", COLOURS)):
            self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            if not self.page.evaluate("'axe' in window"):
                self.page.evaluate(AXE_SCRIPT)
            for violation in self.page.evaluate(VIOLATIONS, rules):
                nodes = [node["html"][:160] for node in violation["nodes"][:3]]
                self.wrong.append(f"axe, {theme}: {violation['id']}: {nodes}")


Watching = Callable[..., Watch]


@pytest.fixture
def watching(browser: Browser) -> Iterator[Watching]:
    """Opens watched pages; whatever they did wrong fails the test, and what they show in the end is accessible."""
    opened: list[Watch] = []

    def watch(url: str, **options: object) -> Watch:
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, reduced_motion="reduce", accept_downloads=True, **options
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        opened.append(Watch(context, url))
        return opened[-1]

    yield watch
    for each in opened:
        if not each.judged:
            each.check_accessible()
        each.context.close()
    assert [sentence for each in opened for sentence in each.wrong] == []


@pytest.fixture(scope="module")
def server() -> Iterator[ZqServer]:
    """One that asks nobody who he is."""
    with ZqServer("memory:") as started:
        yield started


@pytest.fixture
def client(server: ZqServer) -> Iterator[Client]:
    """The project of the tests, empty."""
    with Client(server.url, PROJECT) as opened:
        for queue in list(opened.queues()):
            opened.queue(queue.name).delete()
        yield opened


@pytest.fixture
def watch(watching: Watching, server: ZqServer) -> Watch:
    """A page of that server."""
    return watching(server.url)


@pytest.fixture(scope="module")
def tokened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZqServer, Callable[..., str]]]:
    """A server that wants tokens, and what makes one of the project with such scopes."""
    with guarded(tmp_path_factory.mktemp("tokens")) as (started, _socket, admin):
        yield started, lambda *scopes: str(made(started, admin, PROJECT, scopes=scopes or None)["token"])
