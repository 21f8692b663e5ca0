# SPDX-License-Identifier: Apache-2.0
"""Fixtures for browser tests: a browser, a page that is checked for errors, and the servers.

The browser is the machine's Chromium, or the program in ``ZQ_TEST_BROWSER``.

The tests of a folder share the browser, its context and two servers; the tests of a file share a page. Each test has
its own project and starts with an empty page.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from tests import abilities
from tests.abilities import need
from tests.rotation import rotated
from tests.servers import PROJECT, ZqServer
from tests.websocket.connections import guarded, made
from zq.client import Client

ARGUMENTS = [
    *("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--renderer-process-limit=1"),
]
VIEWPORT = {"width": 1280, "height": 900}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}
VIOLATIONS = "(rules) => axe.run(document, rules).then((found) => found.violations)"
# The themes differ in colours only, so each day's run checks one theme.
THEMES = rotated(("light", "dark"), 1)
WITHIN = 60_000
"""Milliseconds that the browser waits for an expected state."""
expect.set_options(timeout=WITHIN)
NOTHING = "\N{EN DASH}"
"""The console's sign for an unknown value."""
STATUS = re.compile(r"status of (\d{3})")
# ``window.away`` hides the page, like another tab in front of the page.
HIDE = "Object.defineProperty(document, 'hidden', {get: () => window.away === true})"
# ``window.notices`` has the texts of all notices, because a notice of success disappears after some seconds.
RECORD_NOTICES = """
window.notices = [];
new MutationObserver(() => {
  for (const notice of document.querySelectorAll('.said')) {
    if (notice.textContent !== window.notices.at(-1)) window.notices.push(notice.textContent);
  }
}).observe(document, {childList: true, subtree: true, characterData: true});
"""
FORGET = "() => { try { sessionStorage.clear(); localStorage.clear(); } catch { /* an empty page has none */ } }"
_numbers = itertools.count(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all tests of the folder to run together, because they share one browser."""
    item.add_marker(pytest.mark.together("console"))


@pytest.fixture(scope="package")
def context() -> Iterator[BrowserContext]:
    """Start the browser and return its first context, whose module cache serves all tests of the folder.

    The browser is closed after the folder, because its event loop would disturb other tests.
    """
    need("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=abilities.browser(), chromium_sandbox=False, args=ARGUMENTS
        )
        yield context_of(browser)
        browser.close()


def context_of(browser: Browser) -> BrowserContext:
    """Open a context with pages that ``window.away`` can hide and that record their notices."""
    opened = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce", accept_downloads=True)
    opened.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.add_init_script(HIDE)
    opened.add_init_script(RECORD_NOTICES)
    return opened


def page_of(context: BrowserContext) -> Page:
    opened = context.new_page()
    opened.set_default_timeout(WITHIN)
    return opened


@pytest.fixture(scope="module")
def tab(context: BrowserContext) -> Iterator[Page]:
    """Open the page that the tests of a file share."""
    opened = page_of(context)
    yield opened
    opened.close()


class Watch:
    """A page of one test that records forbidden events: errors, foreign requests, unexpected error statuses."""

    def __init__(self, page: Page, url: str, project: str) -> None:
        self.page = page
        self.context = page.context
        self.url = url
        self.project = project
        self.wrong: list[str] = []
        self.expected: set[int] = set()
        """Error statuses that this test expects; 0 means that the server does not answer."""
        self.requests: list[Request] = []
        self.judged = False
        """Whether another test checks the accessibility of the last page."""
        self.hosts = {urlsplit(url).netloc}
        self._listeners = {
            "console": self._on_console,
            "pageerror": self._on_error,
            "dialog": self._on_dialog,
            "request": self._on_request,
            "response": self._on_response,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)  # type: ignore[call-overload]

    def open(self, address: str = "") -> Page:
        """Open a page of the project, such as "queues/mail", or another console address, such as "#/"."""
        within = f"#/p/{self.project}/{address}".rstrip("/")
        self.page.goto(f"{self.url}/console/{address if address.startswith('#') else within}")
        return self.page

    def sign_in(self, token: str, address: str = "") -> Page:
        """Open a page of a server that requires tokens, and sign in."""
        self.expected.add(401)
        page = self.open(address)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Sign in")).to_have_count(0)
        return page

    def hide(self, away: bool = True) -> None:
        """Hide the page, or show it again."""
        turned = "(away) => { window.away = away; document.dispatchEvent(new Event('visibilitychange')); }"
        self.page.evaluate(turned, away)

    def check_accessible(self) -> None:
        """Record the accessibility violations that axe finds."""
        for theme in THEMES:
            self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            if not self.page.evaluate("'axe' in window"):
                self.page.evaluate(AXE_SCRIPT)
            for violation in self.page.evaluate(VIOLATIONS, RULES):
                nodes = [node["html"][:160] for node in violation["nodes"][:3]]
                self.wrong.append(f"axe, {theme}: {violation['id']}: {nodes}")

    def leave(self) -> None:
        """Stop watching and reset the page for the next test."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.evaluate(FORGET)
        self.page.goto("about:blank")
        self.page.set_viewport_size(VIEWPORT)  # type: ignore[arg-type]
        self.context.clear_cookies()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        status = STATUS.search(message.text)
        known = int(status[1]) in self.expected if status else "net::ERR" in message.text and 0 in self.expected
        if not known:
            self.wrong.append(f"console: {message.text}")

    def _on_error(self, error: object) -> None:
        self.wrong.append(f"page error: {error}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme not in ("blob", "data") and parts.netloc not in self.hosts:
            self.wrong.append(f"foreign request: {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.wrong.append(f"{response.status} for {response.request.method} {response.url}")


def expect_notice(page: Page, text: str) -> None:
    """Wait until the page has shown a notice that contains the text; the notice may have disappeared."""
    try:
        page.wait_for_function("(text) => window.notices.some((notice) => notice.includes(text))", arg=text)
    except Error as error:
        raise AssertionError(f"{text!r} is not in {page.evaluate('window.notices')}") from error


Watching = Callable[..., Watch]


@pytest.fixture
def project() -> str:
    """Return a project name that no other test uses."""
    return f"p{next(_numbers)}"


@pytest.fixture
def watching(tab: Page, project: str) -> Iterator[Watching]:
    """Return a function that opens and watches a page of a server; the first call uses the file's shared page.

    The test fails if any page has a fault or if a page is inaccessible at the end of the test.
    """
    opened: list[Watch] = []

    def watch(url: str, project: str = project) -> Watch:
        opened.append(Watch(new_page() if opened else tab, url, project))
        return opened[-1]

    def new_page() -> Page:
        """Open a page in its own context, because the pages of one context share few connections."""
        browser = tab.context.browser
        assert browser is not None
        return page_of(context_of(browser))

    yield watch
    for each in opened:
        if not each.judged:
            each.check_accessible()
        each.leave()
    for each in opened[1:]:
        each.context.close()
    assert [sentence for each in opened for sentence in each.wrong] == []


@pytest.fixture(scope="package")
def server() -> Iterator[ZqServer]:
    """Start a server without authentication."""
    with ZqServer("memory:") as started:
        yield started


@pytest.fixture
def client(server: ZqServer, project: str) -> Iterator[Client]:
    """Open a client for the test's project on the shared server."""
    with Client(server.url, project) as opened:
        yield opened


@pytest.fixture
def watch(watching: Watching, server: ZqServer) -> Watch:
    """Watch a page of the shared server."""
    return watching(server.url)


class Guarded(NamedTuple):
    """A server with pools that requires tokens, and the test's project on it."""

    server: ZqServer
    project: str
    admin: dict[str, str]

    def token(self, *scopes: str, **terms: object) -> str:
        """Create a token of the project; without scopes and roles the token allows everything in the project."""
        terms |= {"scopes": scopes} if scopes else {}
        return str(made(self.server, self.admin, self.project, **terms)["token"])

    def client(self) -> Client:
        return Client(self.server.url, self.project, token=self.token())


@pytest.fixture(scope="package")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    catalog = {"ALLOWED_HOSTS": "memory:", "ENABLE_VIRTUAL_POOL": "true"}
    options = {"OS_DEFAULT__ADMIN_MODE": "true", "OS_DEFAULT__POOLING": "true"}
    options |= {f"OS_POOLING:CATALOG__{name}": value for name, value in catalog.items()}
    with guarded(tmp_path_factory.mktemp("guarded"), **options) as (started, _socket, admin):
        yield Guarded(started, PROJECT, admin)


@pytest.fixture
def tokened(guard: Guarded, project: str) -> Guarded:
    return guard._replace(project=project)
