# SPDX-License-Identifier: Apache-2.0
"""The page of the server: whether it is ready, its limits, and for administrators all servers."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch, Watching
from tests.servers import PROJECT
from tests.websocket.connections import guarded, made
from zq.client import Client

pytestmark = pytest.mark.slow

SERVER = "#/p/acme/server"


def test_readiness_and_limits_are_for_everybody(client: Client, watch: Watch) -> None:
    """The servers are not: the page says which role it takes, and does not ask."""
    page = watch.open(SERVER)
    expect(page.get_by_text("It is ready: the store answers.")).to_be_visible()
    expect(page.locator("tr", has_text="max_messages_post_size").get_by_role("cell")).to_have_text("262,144")
    expect(page.get_by_text("The servers are for administrators")).to_be_visible()
    assert not [request for request in watch.requests if request.url.endswith("/v2/servers")]
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()


def test_an_administrator_sees_each_server(watching: Watching, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With what goes through it, ten seconds after it has begun."""
    with guarded(tmp_path_factory.mktemp("servers")) as (server, _socket, admin):
        token = str(made(server, admin, PROJECT, roles=["admin", "member"])["token"])
        watch = watching(server.url)
        watch.expected |= {0, 401}  # the server ends before the page
        page = watch.open(SERVER)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Server", level=1)).to_be_visible()
        row = page.get_by_role("region", name="Servers").locator("tbody tr")
        expect(row).to_have_count(1, timeout=60_000)
        expect(row.get_by_role("rowheader")).to_contain_text(f":{server.port}")
        expect(row.locator("[data-name=Waiters]")).to_contain_text("0 of ")
        expect(row.locator("[data-name=Store]")).to_have_text("rocksdb")
