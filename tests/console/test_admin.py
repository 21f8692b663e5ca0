# SPDX-License-Identifier: Apache-2.0
"""The pages of administration: each part as far as the credential goes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching
from tests.servers import PROJECT, ZqServer
from tests.websocket.connections import guarded, made
from zq.client import Client

pytestmark = pytest.mark.slow

ADMIN = "#/p/acme/admin"
Guarded = tuple[ZqServer, Callable[..., str]]


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with pools that wants tokens, and what makes one."""
    folder: Path = tmp_path_factory.mktemp("admin")
    catalog = {"ALLOWED_HOSTS": "memory:", "ENABLE_VIRTUAL_POOL": "true"}
    options = {"OS_DEFAULT__ADMIN_MODE": "true", "OS_DEFAULT__POOLING": "true"}
    options |= {f"OS_POOLING:CATALOG__{name}": value for name, value in catalog.items()}
    with guarded(folder, **options) as (server, _socket, admin):
        yield server, lambda **terms: str(made(server, admin, PROJECT, **terms)["token"])


def entered(watch: Watch, token: str, address: str = ADMIN) -> Page:
    watch.expected.add(401)
    page = watch.open(address)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    return page


def test_a_secret_is_shown_once(administered: Guarded, watching: Watching) -> None:
    """And is nowhere when it is gone; the token works, is rotated, and ends when it is revoked."""
    server, make = administered
    watch = watching(server.url)
    page = entered(watch, make(), f"{ADMIN}?part=tokens")
    page.get_by_role("button", name="Make a token…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("<b>ci</b>")
    dialog.get_by_label("Scopes").fill("observe:**")
    watch.check_accessible()
    dialog.get_by_role("button", name="Make").click()
    secret = page.locator(".secret code").inner_text()
    with Client(server.url, PROJECT, token=secret) as client:
        assert list(client.queues()) == []
    page.get_by_role("button", name="I have it").click()
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


def test_pools_and_flavors_are_made_and_deleted(administered: Guarded, watching: Watching) -> None:
    """A refusal stays in the dialog, in the server's words."""
    server, make = administered
    watch = watching(server.url)
    page = entered(watch, make(roles=["admin"]), f"{ADMIN}?part=pools")
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Make a pool…").click()
    watch.expected.add(400)
    dialog.get_by_label("name").fill("fast")
    dialog.get_by_label("uri").fill("nonsense")
    dialog.get_by_role("button", name="Make").click()
    expect(dialog.get_by_role("alert")).to_contain_text("uri")
    dialog.get_by_label("uri").fill("memory:")
    dialog.get_by_role("button", name="Make").click()
    expect(page.locator("tbody th")).to_have_text("fast")
    page.get_by_role("link", name="Flavors").click()
    page.get_by_role("button", name="Make a flavor…").click()
    dialog.get_by_label("name").fill("quick")
    dialog.get_by_label("pools").fill("fast")
    dialog.get_by_role("button", name="Make").click()
    expect(page.locator("tbody [data-name=Pools]")).to_have_text("fast")
    watch.check_accessible()
    for part, name in (("Flavors", "quick"), ("Pools", "fast")):
        page.get_by_role("link", name=part).click()
        page.get_by_role("button", name=f"Delete {name}").click()
        dialog.get_by_role("textbox").fill(name)
        dialog.get_by_role("button", name="Delete").click()
        expect(page.locator("tbody")).to_have_count(0)


def test_a_project_is_bounded_suspended_and_deleted(administered: Guarded, watching: Watching) -> None:
    """Its administrator sees what it has; what he says holds."""
    server, make = administered
    with Client(server.url, PROJECT, token=make()) as client:
        client.queue("mail").post(1)
    watch = watching(server.url)
    page = entered(watch, make(roles=["admin"]), f"{ADMIN}?part=projects")
    page.get_by_role("link", name="acme", exact=True).click()
    page.get_by_role("button", name="Limits…").click()
    page.get_by_role("dialog").get_by_label("queues", exact=True).fill("7")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="queues").locator("[data-name=Limit]")).to_have_text("7")
    page.get_by_role("button", name="State…").click()
    page.get_by_role("dialog").get_by_label("read_only").check()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.locator("tbody [data-name=State]")).to_have_text("read_only")
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Delete")).to_have_attribute("aria-disabled", "true")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()


def test_who_may_not_sees_no_such_part(administered: Guarded, watching: Watching) -> None:
    """A reader sees the quota of his project alone."""
    server, make = administered
    page = entered(watching(server.url), make(scopes=["observe:**"]))
    expect(page.locator("tbody th").first).to_be_visible()
    assert page.locator(".tabs a").all_inner_texts() == ["Quota", "Flavors"]


def test_what_a_server_has_not_is_said(client: Client, watch: Watch) -> None:
    """A server that asks nobody bounds nobody; and has no pools."""
    client.queue("mail").create()
    watch.expected |= {400, 404}
    page = watch.open(ADMIN)
    expect(page.locator(".empty")).to_contain_text("so it cannot bound anybody")
    page.get_by_role("link", name="Flavors").click()
    expect(page.locator(".empty")).to_contain_text("This server has none")
