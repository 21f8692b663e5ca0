# SPDX-License-Identifier: Apache-2.0
"""The token part of the administration page."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Guarded, Watching
from zq.client import Client

pytestmark = pytest.mark.slow


def test_a_secret_is_shown_once(tokened: Guarded, watching: Watching) -> None:
    """The console shows a token's secret once and stores it nowhere; the token works, rotates and can be revoked."""
    watch = watching(tokened.server.url)
    page = watch.sign_in(tokened.token(), "admin?part=tokens")
    page.get_by_role("button", name="Create a token…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("<b>ci</b>")
    dialog.get_by_label("Scopes").fill("observe:**")
    watch.check_accessible()
    dialog.get_by_role("button", name="Create").click()
    secret = page.locator(".secret code").inner_text()
    with Client(tokened.server.url, tokened.project, token=secret) as client:
        assert list(client.queues()) == []
    page.get_by_role("button", name="Close").click()
    row = page.get_by_role("row", name="<b>ci</b>")
    expect(row.locator("[data-name=Scopes]")).to_have_text("observe:**")
    assert secret not in page.content() + page.evaluate("JSON.stringify([localStorage, sessionStorage, location.href])")
    row.get_by_role("button", name="Rotate").click()
    dialog.get_by_role("button", name="Rotate").click()
    twin = page.locator(".secret code").inner_text()
    assert twin != secret
    rows = page.get_by_role("row", name="<b>ci</b>")
    for left in (1, 0):
        expect(rows).to_have_count(left + 1)
        rows.first.get_by_role("button", name="Revoke").click()
        dialog.get_by_role("button", name="Revoke").click()
    expect(rows).to_have_count(0)
