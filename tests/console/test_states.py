# SPDX-License-Identifier: Apache-2.0
"""Errors on a page with real causes: a rejected request, and a server that is down for a while."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch, Watching
from tests.console.test_modules import run
from tests.servers import ZqServer
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "queues/mail"


def test_a_refusal_is_shown_in_the_servers_own_words(client: Client, watch: Watch) -> None:
    """The page also shows the request's id, and a missing message or page has its own text."""
    watch.expected |= {400, 404}
    page = watch.open("queues/no%20name")
    expect(page.locator(".fault").first).to_contain_text("Invalid queue identification")
    expect(page.locator(".fault").first).to_contain_text("Request req-")
    client.queue("mail").create()
    watch.open(f"{MAIL}?m=0123456789abcdef")
    expect(page.get_by_text("Message not found")).to_be_visible()
    watch.check_accessible()
    watch.open("nonsense")
    expect(page.get_by_text("Page not found")).to_be_visible()


def test_outage_and_recovery_of_the_server_are_shown(watching: Watching, project: str) -> None:
    """The last counts stay, marked as stale, and are fresh within 30 s after the server's return (acceptance 16)."""
    server = ZqServer("memory:")
    with server, Client(server.url, project) as client:
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
        expect(page.get_by_text("Queue not found")).to_be_visible(timeout=120_000)
        expect(page.locator(".banner")).to_have_count(0)


def test_queue_that_does_not_exist_says_so_and_can_be_created(client: Client, watch: Watch) -> None:
    """The page of a missing queue has no counts and no purge button."""
    client.queue("mail.dead").create()
    page = watch.open(MAIL)
    expect(page.get_by_text("Queue not found")).to_be_visible()
    expect(page.get_by_role("button", name="Purge…")).to_have_count(0)
    expect(page.get_by_role("region", name="Figures")).to_have_count(0)
    watch.check_accessible()
    page.get_by_role("button", name="Create the queue").click()
    expect(page.get_by_text("The queue is empty")).to_be_visible()
    assert client.queue("mail").exists()
    expect(page.get_by_role("button", name="Purge…")).to_be_visible()
    watch.open("queues/later")
    page.get_by_role("link", name="Post a message").click()
    page.get_by_label("Body (JSON)").fill("1")
    page.get_by_role("button", name="Post", exact=True).click()
    expect(page.get_by_role("region", name="Figures")).to_be_visible()
    assert client.queue("later").stats().free == 1


def test_notice_of_success_disappears_and_error_stays(client: Client, watch: Watch) -> None:
    """A success notice disappears after some seconds or on the next page; an error stays until the user closes it."""
    client.queue("mail").create()
    watch.page.clock.install()
    page = watch.open(f"{MAIL}?tab=post")
    notice = page.locator(".said")

    def post() -> None:
        # The form may be rendered again while its limits load, and then the input is lost.
        expect(page.get_by_text("The time to live must be")).to_be_visible()
        page.get_by_label("Body (JSON)").fill("1")
        page.get_by_role("button", name="Post", exact=True).click()
        expect(notice).to_contain_text("1 message posted.")

    post()
    page.clock.fast_forward(10_000)
    expect(notice).to_have_count(0)
    post()
    page.clock.run_for(2000)
    page.get_by_role("link", name="Topics").click()
    expect(notice).to_have_count(0)
    watch.open(f"{MAIL}?tab=post")
    button = page.get_by_role("button", name="Post", exact=True)
    expect(button).to_be_disabled()
    expect(page.get_by_text("The time to live must be")).to_be_visible()
    button.click(force=True)
    expect(notice).to_be_visible()
    page.clock.fast_forward(10_000)
    page.get_by_role("link", name="Topics").click()
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    expect(notice).to_be_visible()
    page.get_by_role("button", name="Close this notice").click()
    expect(notice).to_have_count(0)


def test_end_of_a_notice_does_not_remove_a_later_notice(watch: Watch) -> None:
    """The page may have no time to render between the two: here it is rendered 35 ms late."""
    watch.page.clock.install(time=0)
    page = watch.open("topics")
    expect(page.get_by_role("heading", level=1, name="Topics")).to_be_visible()
    page.evaluate("window.requestAnimationFrame = () => 0")
    page.clock.pause_at(60_000)
    run(watch, "parts/act", "loaded.announce('first')")
    page.clock.run_for(6_020)
    run(watch, "parts/act", "loaded.announce('second')")
    page.clock.run_for(25)
    notices = page.locator(".said span").all_inner_texts()
    page.clock.resume()
    assert notices == ["second"]
    page.clock.fast_forward(10_000)
    expect(page.locator(".said")).to_have_count(0)


def test_pages_of_server_without_authentication_name_the_setting(client: Client, watch: Watch) -> None:
    """No page sends a request that this server would reject."""
    client.queue("mail").create()
    client.queue("mail").purge()
    page = watch.open("server")
    expect(page.get_by_text("To see the requests")).to_contain_text("admin_mode = true")
    watch.open("admin")
    expect(page.get_by_text("require authentication")).to_contain_text("auth_strategy")
    watch.open("audit")
    expect(page.locator("tbody [data-name=User]").first).to_contain_text("anonymous from 127.0.0.1")
