# SPDX-License-Identifier: Apache-2.0
"""Access to the console: limited scopes, pages below a proxy's path, an expired sign-on, and read-only mode."""

import pytest
from playwright.sync_api import expect

from tests.campaign.browser import crawl
from tests.console.conftest import Guarded, Watching
from tests.console.test_access import Proxy, proxy
from tests.servers import ZqServer
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "queues/mail"
__all__ = ["proxy"]


def test_what_a_scope_leaves_out_is_told_by_the_server(tokened: Guarded, watching: Watching) -> None:
    """The page names the missing rule; the address of another project is explained."""
    watch = watching(tokened.server.url)
    watch.expected |= {401, 403}
    page = watch.sign_in(tokened.token("observe:queue/mine"))
    expect(page.get_by_text("This project has no queues")).to_be_visible()
    watch.open(MAIL)
    expect(page.locator(".forbidden").first).to_contain_text("does not allow queues:stats on queue mail")
    watch.check_accessible()
    watch.open("#/p/other/queues")
    expect(
        page.get_by_text(f"The link is for the project other. You are signed in to {tokened.project}.")
    ).to_be_visible()


def test_every_page_is_there_below_a_path(client: Client, proxy: Proxy, watching: Watching) -> None:
    """The crawled pages work below a path, and no request leaves the path (acceptance 17)."""
    watch = watching(f"{proxy.url}/a/b/zq")
    watch.context.add_cookies([{"name": "sso", "value": "yes", "url": proxy.url}])
    watch.expected |= {400, 404}  # this server has no quotas and no pools
    watch.hosts = {proxy.url.removeprefix("http://")}
    found = crawl.pages(watch, crawl.fill(client))
    assert len(found) > 10
    expect(watch.page.locator(".banner")).to_have_count(0)
    assert all(request.url.startswith(f"{proxy.url}/a/b/zq/") for request in watch.requests)


def test_a_sign_on_of_a_proxy_that_has_ended_is_told(client: Client, proxy: Proxy, watching: Watching) -> None:
    """The console does not follow the proxy's redirect; the page stays and advises a reload."""
    client.queue("mail").create()
    watch = watching(proxy.url)
    watch.context.add_cookies([{"name": "sso", "value": "yes", "url": proxy.url}])
    watch.page.goto(f"{proxy.url}/a/b/zq/console/#/p/{watch.project}/{MAIL}")
    expect(watch.page.get_by_text("The queue is empty")).to_be_visible()
    watch.context.clear_cookies()
    expect(watch.page.locator(".banner.gone")).to_contain_text("Reload this page")


def test_a_console_that_changes_nothing_has_no_such_buttons(watching: Watching, project: str) -> None:
    """A console with ``[console] read_only`` has no buttons for changes, and states that the API is not restricted."""
    env = {"OS_CONSOLE__READ_ONLY": "true", "OS_CONSOLE__GRAFANA_URL": "https://g.example/d/zq?a=1&b=2"}
    with ZqServer("memory:", env=env) as server, Client(server.url, project) as client:
        client.queue("mail").post(1)
        watch = watching(server.url)
        watch.expected.add(0)  # the server ends before the page
        page = watch.open(MAIL)
        expect(page.get_by_text("does not restrict the API")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.get_by_role("button", name="Purge…")).to_have_count(0)
        expect(page.get_by_role("button", name="Pause…")).to_have_count(0)
        watch.expected.add(400)  # no quotas
        watch.open("admin")
        expect(page.get_by_role("link", name="Grafana")).to_have_attribute("href", "https://g.example/d/zq?a=1&b=2")
