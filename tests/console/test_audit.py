# SPDX-License-Identifier: Apache-2.0
"""The page of the audit: who has changed what, and that a purge of the console is in it as its dialog told it."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching
from tests.console.test_admin import Guarded, administered, entered
from tests.servers import PROJECT, ZqServer, ask
from zq.audit import Entry
from zq.broker import trail as module
from zq.broker.trail import Trail
from zq.client import Client
from zq.clock import ManualClock
from zq.storage import connect

pytestmark = pytest.mark.slow

AUDIT = "#/p/acme/audit"
HOSTILE = '<img src=x onerror="alert(1)"><script>\u202e'
SHOWN = HOSTILE.replace("\u202e", "\\u202e")
DAY = 86_400
__all__ = ["administered"]


@pytest.fixture
def seeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[tuple[float, Entry]]], str]:
    """A function: the URI of a store with such entries, each so many seconds old, the oldest first."""
    monkeypatch.setattr(module, "MOST", 10_000)

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


def test_a_purge_is_there_with_its_request_and_what_its_dialog_told(client: Client, watch: Watch) -> None:
    """Acceptance 12: name typed; what it said equals what went; the audit has it with request id."""
    client.queue("mail").post_batch(list(range(20)))
    client.queue("mail").post_batch(list(range(5)), delay=300)
    client.queue("mail").claim(limit=3)
    page = watch.open("#/p/acme/queues/mail")
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    told = re.search(r"([\d,]+) messages as counted now", dialog.inner_text())
    assert told
    assert told[1] == "25"
    dialog.get_by_role("textbox").press("Enter")
    assert client.queue("mail").stats().total == 25, "nothing goes without the name"
    dialog.get_by_role("textbox").fill("mail")
    with page.expect_response(lambda answer: answer.url.endswith("/mail/purge")) as purged:
        dialog.get_by_role("button", name="Purge").click()
    assert client.queue("mail").stats().total == 0
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit").click()
    row = page.locator("tbody tr", has_text=purged.value.headers["x-openstack-request-id"])
    expect(row.locator("[data-name=Did]")).to_have_text("purge")
    expect(row.locator("[data-name=What]")).to_have_text("queue mail")
    expect(row.locator("[data-name=Messages]")).to_have_text(told[1])
    expect(row.locator("[data-name=Outcome]")).to_have_text("done")
    watch.check_accessible()
    row.get_by_role("link", name="mail").click()
    expect(page.get_by_role("heading", level=1, name="mail")).to_be_visible()
    client.topic("news").publish(1)
    client.topic("news").purge()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit").click()
    page.locator("tbody tr", has_text="topic news").get_by_role("link", name="news").first.click()
    expect(page.get_by_role("heading", level=1, name="news")).to_be_visible()


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
    assert cells(page, "What")[:2] == ["queue new-b", "queue new-a"]
    page.mouse.move(0, 0)
    client.queue("newest").delete()
    expect(page.locator("tbody tr").first).to_contain_text("queue newest")


def test_pages_have_each_entry_once_and_a_time_bounds_them(
    seeded: Callable[[list[tuple[float, Entry]]], str], watching: Watching
) -> None:
    """The chosen time is in the address."""
    names = ["__proto__ x", "constructor x", *(f"queue q{number:03}" for number in range(2, 120))]
    entries = [
        (2 * DAY - number if number < 60 else 600 - number, Entry(project=PROJECT, object=name, outcome="done"))
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
        assert cells(page, "What") == names[::-1]
        page.get_by_label("Period").select_option("The last 24 hours")
        expect(page.locator("tbody tr")).to_have_count(50)
        page.get_by_role("button", name="Load more").click()
        expect(page.locator("tbody tr")).to_have_count(60)
        assert page.url.endswith(f"{AUDIT}?within={DAY}")
        page.get_by_label("Period").select_option("The last hour")
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(50)
        page.go_back()
        page.get_by_label("Period").select_option("All that is kept")
        expect(page.get_by_role("button", name="Load more")).to_be_visible()
        watch.expected.add(0)  # the server ends before the page


def test_nothing_was_changed(watching: Watching) -> None:
    with ZqServer("memory:") as server:
        watch = watching(server.url)
        page = watch.open(AUDIT)
        expect(page.get_by_text("Nothing was changed", exact=True)).to_be_visible()
        page.get_by_label("Period").select_option("The last hour")
        expect(page.get_by_text("Nothing was changed in this time")).to_be_visible()
        watch.check_accessible()
        watch.expected.add(0)


def test_the_texts_of_strangers_are_texts(administered: Guarded, watching: Watching) -> None:
    """Acceptance 5: the id of a token that was revoked may be any text; it is no markup, and turns no direction."""
    server, make = administered
    token = make()
    headers = {"Authorization": f"Bearer {token}"}
    ask(server.url, "DELETE", f"/v2/tokens/{quote(HOSTILE, safe='')}", headers=headers)
    ask(server.url, "POST", "/v2/queues/mail/purge", {"resource_types": [HOSTILE]}, headers=headers)
    watch = watching(server.url)
    page = entered(watch, token, AUDIT)
    expect(page.locator("tbody [data-name=What]", has_text=f"token {SHOWN}")).to_be_visible()
    failed = page.locator("tbody tr", has_text="failed with 400").first
    expect(failed.locator("[data-name=Outcome]")).to_contain_text("<img src=x onerror=")
    assert page.locator("main img").count() == 0
    assert "\u202e" not in page.locator("main").inner_text()
    watch.check_accessible()


def test_who_may_not_observe_everything_is_told_so(administered: Guarded, watching: Watching) -> None:
    """A reader sees his project's; an administrator all, each with its project."""
    server, make = administered
    with Client(server.url, PROJECT, token=make()) as client:
        client.queue("gone").delete()
    refused = watching(server.url)
    refused.expected.add(403)
    page = entered(refused, make(scopes=["observe:queue/mail"]), AUDIT)
    expect(page.get_by_text("No permission")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("audit:get_all")
    page = entered(watching(server.url), make(scopes=["observe:**", "observe:work/**"]), AUDIT)
    expect(page.locator("tbody tr", has_text="queue gone").first).to_be_visible()
    expect(page.get_by_role("columnheader", name="Project")).to_have_count(0)
    page = entered(watching(server.url), make(roles=["admin", "member"]), AUDIT)
    expect(page.get_by_role("columnheader", name="Project")).to_have_count(1)
    expect(page.locator("tbody tr", has_text="token ").first).to_be_visible()
    expect(page.locator("tbody tr", has_text="queue gone").first.locator("[data-name=Project]")).to_have_text(PROJECT)
