# SPDX-License-Identifier: Apache-2.0
"""The administration pages: pools, flavors, projects, and the tabs that a credential allows."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Guarded, Watch, Watching
from zq.client import Client

pytestmark = pytest.mark.slow


def test_pools_and_flavors_are_made_and_deleted(tokened: Guarded, watching: Watching) -> None:
    """A rejected request stays in the dialog with the server's message."""
    watch = watching(tokened.server.url)
    page = watch.sign_in(tokened.token(roles=["admin"]), "admin?part=pools")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Create a pool…").click()
    watch.expected.add(400)
    dialog.get_by_label("name").fill("fast")
    dialog.get_by_label("uri").fill("nonsense")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("uri")
    dialog.get_by_label("uri").fill("memory:")
    dialog.get_by_role("button", name="Create").click()
    expect(page.locator("tbody th")).to_have_text("fast")
    page.get_by_role("link", name="Flavors").click()
    page.get_by_role("button", name="Create a flavor…").click()
    dialog.get_by_label("name").fill("quick")
    dialog.get_by_label("pools").fill("fast")
    dialog.get_by_role("button", name="Create").click()
    expect(page.locator("tbody [data-name=Pools]")).to_have_text("fast")
    watch.check_accessible()
    for part, name in (("Flavors", "quick"), ("Pools", "fast")):
        page.get_by_role("link", name=part).click()
        page.get_by_role("button", name=f"Delete {name}").click()
        dialog.get_by_role("textbox").fill(name)
        dialog.get_by_role("button", name="Delete").click()
        expect(page.locator("tbody")).to_have_count(0)


def test_a_project_is_bounded_suspended_and_deleted(tokened: Guarded, watching: Watching) -> None:
    """An administrator sees the project's usage, and limits and states take effect."""
    with tokened.client() as client:
        client.queue("mail").post(1)
    watch = watching(tokened.server.url)
    page = watch.sign_in(tokened.token(roles=["admin"]), "admin?part=projects")
    page.get_by_role("link", name=tokened.project, exact=True).click()
    page.get_by_role("button", name="Limits…").click()
    page.get_by_role("dialog").get_by_label("queues", exact=True).fill("7")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="queues").locator("[data-name=Limit]")).to_have_text("7")
    page.get_by_role("button", name="State…").click()
    page.get_by_role("dialog").get_by_label("read_only").check()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=tokened.project, exact=True))
    expect(row.locator("[data-name=State]")).to_have_text("read_only")
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Delete")).to_have_attribute("aria-disabled", "true")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()


def test_reader_sees_only_the_allowed_tabs(tokened: Guarded, watching: Watching) -> None:
    """A reader sees only the quota of the own project."""
    page = watching(tokened.server.url).sign_in(tokened.token("observe:**"), "admin")
    expect(page.locator("tbody th").first).to_be_visible()
    assert page.locator(".tabs a").all_inner_texts() == ["Quota", "Flavors"]


def test_page_explains_features_that_the_server_lacks(client: Client, watch: Watch) -> None:
    """The page explains that quotas need authentication and flavors need pooling."""
    client.queue("mail").create()
    page = watch.open("admin")
    expect(page.locator(".empty")).to_contain_text("Quotas and tokens require authentication")
    watch.open("admin?part=flavors")
    expect(page.locator(".empty")).to_contain_text("auth_strategy")
