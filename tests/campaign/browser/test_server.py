# SPDX-License-Identifier: Apache-2.0
"""The server page for administrators."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Guarded, Watching

pytestmark = pytest.mark.slow


def test_an_administrator_sees_each_server(tokened: Guarded, watching: Watching) -> None:
    """The row has the server's metrics, which it reports ten seconds after its start."""
    page = watching(tokened.server.url).sign_in(tokened.token(roles=["admin", "member"]), "server")
    expect(page.get_by_role("heading", name="Server", level=1)).to_be_visible()
    row = page.get_by_role("region", name="Servers").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row.get_by_role("rowheader")).to_contain_text(f":{tokened.server.port}")
    expect(row.locator("[data-name=Waiters]")).to_contain_text("0 of ")
    expect(row.locator("[data-name=Store]")).to_have_text("rocksdb")
