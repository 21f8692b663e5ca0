# SPDX-License-Identifier: Apache-2.0
"""The audit page: new entries, pages and periods, untrusted text, and permissions."""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Guarded, Watch, Watching
from tests.servers import ZqServer, ask
from zq.client import Client
from zq.clock import ManualClock
from zq.core import trail as module
from zq.core.trail import Trail
from zq.model.audit import Entry
from zq.storage import connect

pytestmark = pytest.mark.slow

AUDIT = "audit"
HOSTILE = '<img src=x onerror="alert(1)"><script>\u202e'
SHOWN = HOSTILE.replace("\u202e", "\\u202e")
DAY = 86_400


@pytest.fixture
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[tuple[float, Entry]]], str]:
    """Return a function that creates a store with entries of the given ages, oldest first, and returns its URI."""
    monkeypatch.setattr(module, "MAX_PER_SECOND", 10_000)

    def seed(entries: list[tuple[float, Entry]]) -> str:
        uri = f"rocksdb://{tmp_path}/store"
        begun = time.time()
        storage, clock = connect(uri, {}), ManualClock(begun - entries[0][0])
        trail = Trail(storage.documents, clock)
        for age, entry in entries:
            clock.advance(max(0.0, begun - age - clock.now()))
            trail.put(entry)
            trail.finish(60)
        storage.close()
        return uri

    return seed


def cells(page: Page, column: str) -> list[str]:
    return [text.strip() for text in page.locator(f"tbody [data-name={column}]").all_inner_texts()]


def test_what_is_new_waits_while_the_pointer_is_on_the_rows(client: Client, watch: Watch) -> None:
    client.queue("old").delete()
    page = watch.open(AUDIT)
    expect(page.locator("tbody tr", has_text="queue old").first).to_be_visible()
    before = page.locator("tbody tr").count()
    page.locator("tbody tr").first.hover()
    for name in ("new-a", "new-b"):
        client.queue(name).delete()
    page.get_by_role("button", name="2 new: show").click()
    expect(page.locator("tbody tr")).to_have_count(before + 2)
    assert cells(page, "Object")[:2] == ["queue new-b", "queue new-a"]
    page.mouse.move(0, 0)
    client.queue("newest").delete()
    expect(page.locator("tbody tr").first).to_contain_text("queue newest")


def test_pages_have_each_entry_once_and_a_time_bounds_them(
    seeded: Callable[[list[tuple[float, Entry]]], str], watching: Watching, project: str
) -> None:
    """The selected period is in the address."""
    names = ["__proto__ x", "constructor x", *(f"queue q{number:03}" for number in range(2, 120))]
    entries = [
        (2 * DAY - number if number < 60 else 600 - number, Entry(project=project, object=name, outcome="done"))
        for number, name in enumerate(names)
    ]
    with ZqServer(seeded(entries)) as server:
        watch = watching(server.url)
        page = watch.open(AUDIT)
        expect(page.locator("tbody tr")).to_have_count(50)
        for shown in (100, 120):
            page.get_by_role("button", name="Load more").click()
            expect(page.locator("tbody tr")).to_have_count(shown)
        expect(page.get_by_role("button", name="Load more")).to_have_count(0)
        assert cells(page, "Object") == names[::-1]
        page.get_by_label("Period").select_option("Last 24 hours")
        expect(page.locator("tbody tr")).to_have_count(50)
        page.get_by_role("button", name="Load more").click()
        expect(page.locator("tbody tr")).to_have_count(60)
        assert page.url.endswith(f"/{AUDIT}?within={DAY}")
        page.get_by_label("Period").select_option("Last hour")
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(50)
        page.go_back()
        page.get_by_label("Period").select_option("All time")
        expect(page.get_by_role("button", name="Load more")).to_be_visible()
        watch.expected.add(0)  # the server ends before the page


def test_nothing_was_changed(watch: Watch) -> None:
    page = watch.open(AUDIT)
    expect(page.get_by_text("No audit entries", exact=True)).to_be_visible()
    page.get_by_label("Period").select_option("Last hour")
    expect(page.get_by_text("No audit entries in this period")).to_be_visible()
    expect(page.get_by_text("Rejected requests appear only in the server's audit log.")).to_be_visible()


def test_the_texts_of_strangers_are_texts(tokened: Guarded, watching: Watching) -> None:
    """The id of a revoked token may be any text; it is shown without markup or direction changes (acceptance 5)."""
    token = tokened.token()
    headers = {"Authorization": f"Bearer {token}", "X-Project-ID": tokened.project}
    ask(tokened.server.url, "DELETE", f"/v2/tokens/{quote(HOSTILE, safe='')}", headers=headers)
    ask(tokened.server.url, "POST", "/v2/queues/mail/purge", {"resource_types": [HOSTILE]}, headers=headers)
    watch = watching(tokened.server.url)
    page = watch.sign_in(token, AUDIT)
    expect(page.locator("tbody [data-name=Object]", has_text=f"token {SHOWN}")).to_be_visible()
    failed = page.locator("tbody tr", has_text="failed with 400").first
    expect(failed.locator("[data-name=Outcome]")).to_contain_text("<img src=x onerror=")
    assert page.locator("main img").count() == 0
    assert "\u202e" not in page.locator("main").inner_text()
    watch.check_accessible()


def test_audit_needs_the_scope_of_the_whole_project(tokened: Guarded, watching: Watching) -> None:
    """A reader sees the entries of the project; an administrator sees all entries with their projects."""
    with tokened.client() as client:
        client.queue("gone").delete()
    refused = watching(tokened.server.url)
    refused.expected.add(403)
    page = refused.sign_in(tokened.token("observe:queue/mail"), AUDIT)
    expect(page.get_by_text("No permission")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("audit:get_all")
    page = watching(tokened.server.url).sign_in(tokened.token("observe:**", "observe:work/**"), AUDIT)
    expect(page.locator("tbody tr", has_text="queue gone").first).to_be_visible()
    expect(page.get_by_role("columnheader", name="Project")).to_have_count(0)
    page = watching(tokened.server.url).sign_in(tokened.token(roles=["admin", "member"]), AUDIT)
    expect(page.get_by_role("columnheader", name="Project")).to_have_count(1)
    expect(page.locator("tbody tr", has_text="token ").first).to_be_visible()
    expect(page.locator("tbody tr", has_text="queue gone").first.locator("[data-name=Project]")).to_have_text(
        tokened.project
    )
