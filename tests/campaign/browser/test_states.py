# SPDX-License-Identifier: Apache-2.0
"""A page that waits for its data."""

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import Watch
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "queues/mail"


def test_slow_response_shows_placeholders(client: Client, watch: Watch) -> None:
    client.queue("mail").create()

    def slowly(route: Route) -> None:
        watch.page.wait_for_timeout(700)
        route.continue_()

    watch.page.route("**/figures?*", slowly)
    page = watch.open(MAIL)
    expect(page.locator(".bone").first).to_be_visible()
    expect(page.locator(".tile")).to_have_count(4)
