# SPDX-License-Identifier: Apache-2.0
"""The server page: readiness and limits."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from zq.client import Client

pytestmark = pytest.mark.slow

SERVER = "server"


def test_readiness_and_limits_are_for_everybody(client: Client, watch: Watch) -> None:
    """A user who is not an administrator sees the required role, and the page does not request the servers."""
    page = watch.open(SERVER)
    expect(page.get_by_text("The server is ready.")).to_be_visible()
    expect(page.locator("tr", has_text="max_messages_post_size").get_by_role("cell")).to_have_text("262,144")
    expect(page.get_by_text("Only administrators can see the servers")).to_be_visible()
    assert not [request for request in watch.requests if request.url.endswith("/v2/servers")]
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
