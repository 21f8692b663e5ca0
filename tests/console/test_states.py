# SPDX-License-Identifier: Apache-2.0
"""Faults on a page, each by a real cause: a refusal, and a server that is gone for a while."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch, Watching
from tests.servers import ZqServer
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "queues/mail"


def test_a_refusal_is_shown_in_the_servers_own_words(client: Client, watch: Watch) -> None:
    """With the request's id, by which its log is searched; a message that is gone; an address of nothing."""
    watch.expected |= {400, 404}
    page = watch.open("queues/no%20name")
    expect(page.locator(".fault").first).to_contain_text("Invalid queue identification")
    expect(page.locator(".fault").first).to_contain_text("Request req-")
    client.queue("mail").create()
    watch.open(f"{MAIL}?m=0123456789abcdef")
    expect(page.get_by_text("It is not in this queue any more")).to_be_visible()
    watch.check_accessible()
    watch.open("nonsense")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def test_a_server_that_is_gone_is_told_and_so_is_its_return(watching: Watching, project: str) -> None:
    """Acceptance 16: the last figures stay, marked; within 30 s of its return all is fresh, without a reload."""
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
        expect(page.locator(".tile.first .figure")).to_have_text("0", timeout=120_000)
        expect(page.locator(".banner")).to_have_count(0)
