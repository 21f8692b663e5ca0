# SPDX-License-Identifier: Apache-2.0
"""What a page shows when not all is well, each by a real cause; *empty* and *no permission* are with their pages."""

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import Watch, Watching
from tests.servers import PROJECT, ZqServer
from tests.stores import RedisServer
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "#/p/acme/queues/mail"


def test_what_takes_long_shows_grey_lines(client: Client, watch: Watch) -> None:
    client.queue("mail").create()

    def slowly(route: Route) -> None:
        watch.page.wait_for_timeout(700)
        route.continue_()

    watch.page.route("**/figures?*", slowly)
    page = watch.open(MAIL)
    expect(page.locator(".bone").first).to_be_visible()
    expect(page.locator(".tile")).to_have_count(4)
    watch.page.unroute_all(behavior="ignoreErrors")


def test_a_refusal_is_shown_in_the_servers_own_words(client: Client, watch: Watch) -> None:
    """With the request's id, by which its log is searched; a message that is gone; an address of nothing."""
    watch.expected |= {400, 404}
    page = watch.open("#/p/acme/queues/no%20name")
    expect(page.locator(".fault").first).to_contain_text("Invalid queue identification")
    expect(page.locator(".fault").first).to_contain_text("Request req-")
    client.queue("mail").create()
    watch.open(f"{MAIL}?m=0123456789abcdef")
    expect(page.get_by_text("It is not in this queue any more")).to_be_visible()
    watch.check_accessible()
    watch.open("#/p/acme/nonsense")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def test_a_server_that_is_gone_is_told_and_so_is_its_return(watching: Watching) -> None:
    """Acceptance 16: the last figures stay, marked; within 30 s of its return all is fresh, without a reload."""
    server = ZqServer("memory:")
    with server, Client(server.url, PROJECT) as client:
        client.queue("mail").post_batch([1, 2, 3])
        watch = watching(server.url)
        watch.expected |= {0, 503}
        page = watch.open(MAIL)
        expect(page.locator(".tile.first .figure")).to_have_text("3")
        server.kill()
        expect(page.locator(".banner.gone")).to_contain_text("The server does not answer", timeout=60_000)
        expect(page.locator(".tile.first .figure")).to_have_text("3")
        expect(page.locator(".tiles.stale")).to_be_visible()
        expect(page.locator(".asof")).to_contain_text("As of")
        watch.check_accessible()
        server.start()
        expect(page.locator(".tile.first .figure")).to_have_text("0", timeout=120_000)
        expect(page.locator(".banner")).to_have_count(0)


def test_a_store_that_is_down_is_told_and_so_is_its_return(watching: Watching) -> None:
    """The same, by a server of Redis's kind that is killed and started again."""
    with RedisServer() as store, ZqServer(store.uri, env={"OS_TRANSPORT__STORAGE_TIMEOUT": "1"}) as server:
        with Client(server.url, PROJECT) as client:
            client.queue("mail").post_batch([1, 2, 3])
        watch = watching(server.url)
        watch.expected |= {503, 0}  # the server ends before the page
        page = watch.open("#/p/acme/queues")
        expect(page.locator("[data-name=Ready]")).to_have_text("3")
        store.kill()
        expect(page.locator(".banner.down")).to_contain_text("The store cannot serve", timeout=60_000)
        expect(page.locator("[data-name=Ready]")).to_have_text("3")
        store.start()
        expect(page.locator(".banner")).to_have_count(0, timeout=120_000)
