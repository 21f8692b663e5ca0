# SPDX-License-Identifier: Apache-2.0
"""The page of claims: who holds what, for how long still; and how a claim is taken away."""

import re
from collections.abc import Callable
from datetime import datetime

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching
from tests.servers import PROJECT, ZqServer, ask
from zq.client import Client

pytestmark = pytest.mark.slow

ADDRESS = "#/p/acme/claims"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def claim(server: ZqServer, queue: str, agent: str = "nightly/3.1", client: str = "b" * 32, **terms: int) -> str:
    """The id of a new claim of up to two messages, by a client of that name."""
    headers = {"User-Agent": agent.encode().decode("latin-1"), "Client-ID": client}
    made = ask(server.url, "POST", f"/v2/queues/{queue}/claims?limit=2", terms, headers=headers)
    assert made.status == 201
    return str(made.headers["location"]).rpartition("/")[2]


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


def test_all_live_claims_are_shown_with_their_holders(client: Client, server: ZqServer, watch: Watch) -> None:
    """Of all queues, those held longest first or those that end first; how long, and how long still, run on."""
    for name, ttl in (("mail", 900), ("orders", 120), ("images", 300)):
        client.queue(name).post_batch(range(3))
        claim(server, name, f"worker-{name}", ttl=ttl)
    page = watch.open(ADDRESS)
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator("tbody th")).to_have_text(["mail", "orders", "images"])
    row = page.get_by_role("row", name="orders")
    expect(row.locator("[data-name=Holder]")).to_contain_text("worker-orders bbbbbbbb")
    expect(row.locator("[data-name=Messages]")).to_have_text("2")
    expect(row.locator("[data-name='Ends in']")).to_have_text(re.compile(r"^(2 min|1\.9 min)$"))
    expect(row.locator("[data-name=Since]")).to_have_text(re.compile(r"^[1-9]\d* s$"))
    page.get_by_role("link", name="Ending first").click()
    expect(page.locator("tbody th")).to_have_text(["orders", "images", "mail"])
    assert page.url.endswith("?sort=ends")
    expect(page.get_by_text("3 claims. These are all.")).to_be_visible()
    watch.check_accessible()
    page.get_by_role("link", name="orders").click()
    expect(page.locator("tbody [data-name=Holder]").first).to_contain_text("worker-orders")


def test_a_claim_comes_and_goes_on_the_page(client: Client, server: ZqServer, watch: Watch) -> None:
    """Nothing, then one that another consumer makes, then nothing again; what is under the pointer stays."""
    page = watch.open(ADDRESS)
    expect(page.get_by_text("Nothing is claimed")).to_be_visible()
    client.queue("jobs").post_batch(range(4))
    first = claim(server, "jobs")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody tr").hover()
    second = claim(server, "jobs")
    page.get_by_role("button", name="1 change: show").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.mouse.move(0, 0)
    for one in (first, second):
        client.queue("jobs").release(one)
    expect(page.get_by_text("Nothing is claimed")).to_be_visible()


def test_a_claim_is_released_by_the_name_of_its_queue(client: Client, server: ZqServer, watch: Watch) -> None:
    """What it says went, and nothing else; Enter in an empty field does nothing."""
    client.queue("jobs").post_batch(range(4))
    claim(server, "jobs", "stuck/1")
    other = claim(server, "jobs", "busy/2")
    page = watch.open(ADDRESS)
    page.get_by_role("row", name="stuck/1").get_by_role("button", name="Release…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 messages of jobs go back")
    expect(dialog).to_contain_text("Its holder will lose them: stuck/1 bbbbbbbb")
    dialog.get_by_role("textbox").press("Enter")
    expect(dialog.get_by_role("button", name="Release")).to_have_attribute("aria-disabled", "true")
    assert client.queue("jobs").depth().claimed == 4
    dialog.get_by_role("textbox").fill("jobs")
    watch.check_accessible()
    dialog.get_by_role("button", name="Release").click()
    expect(page.locator(".announcer")).to_contain_text("The claim was released.")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [one.id for one in client.queue("jobs").claims()] == [other]
    assert [message.claim_count for message in client.queue("jobs").list(state="ready")] == [1, 1]


def test_one_s_own_claim_is_renewed(client: Client, server: ZqServer, watch: Watch) -> None:
    """That of the tab, which is marked, and no other one's."""
    client.queue("jobs").post_batch(range(4))
    page = watch.open(ADDRESS)
    expect(page.get_by_text("Nothing is claimed")).to_be_visible()
    own = claim(server, "jobs", "Chromium", page.evaluate("sessionStorage.getItem('zq.client')"), ttl=600)
    claim(server, "jobs", "other/1")
    row = page.get_by_role("row", name="Chromium")
    expect(row).to_contain_text("this tab")
    expect(page.get_by_role("row", name="other/1").get_by_role("button", name="Renew")).to_have_count(0)
    before = ends(client, own)
    row.get_by_role("button", name="Renew").click()
    expect(page.locator(".announcer")).to_contain_text("The claim lives for another 10 min.")
    assert ends(client, own) > before


def ends(client: Client, claim: str) -> datetime:
    [found] = [one.ends for one in client.claims() if one.id == claim]
    return found


def test_a_hostile_user_agent_is_text(client: Client, server: ZqServer, watch: Watch) -> None:
    """Acceptance 5: on the page, in its dialog, in the queue's listing and at the message; nothing runs."""
    [held] = client.queue("jobs").post_batch(["x"])
    claim(server, "jobs", HOSTILE, ttl=300)
    page = watch.open(ADDRESS)
    expect(page.locator("tbody [data-name=Holder]")).to_contain_text(SHOWN[:60])
    page.get_by_role("button", name="Release…").click()
    expect(page.get_by_role("dialog")).to_contain_text(SHOWN[:60])
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    short = "<img src=x onerror=alert(2)>\u202egnp.exe"
    client.queue("more").post("y")
    claim(server, "more", short, ttl=300)
    expect(page.get_by_role("row", name="more").locator("[data-name=Holder]")).to_contain_text(
        "<img src=x onerror=alert(2)>\\u202egnp.exe"
    )
    page.goto(f"{server.url}/console/#/p/acme/queues/jobs?state=claimed&m={held}")
    expect(page.locator("tbody [data-name=Holder]")).to_contain_text(SHOWN[:60])
    expect(page.locator(".timeline")).to_contain_text(f"claimed by {SHOWN[:60]}")
    assert page.locator("main img, main script").count() == 0


def test_a_claim_by_hand_is_seen_with_holder_and_countdown(
    client: Client, watching: Watching, server: ZqServer
) -> None:
    """Acceptance 2: claimed in one tab, seen in another one; released, it has gone, and its claim was counted."""
    client.queue("mail").post({"n": 1})
    hand, looking = watching(server.url), watching(server.url)
    page = hand.open("#/p/acme/queues/mail?tab=claim")
    page.get_by_role("button", name="Claim", exact=True).click()
    expect(page.locator(".countdown")).to_contain_text(re.compile(r"ends in [1-6]\d? s"))
    seen = looking.open(ADDRESS)
    expect(seen.locator("tbody [data-name=Holder]")).to_contain_text("Mozilla/5.0")
    expect(seen.locator("tbody [data-name='Ends in']")).to_have_text(re.compile(r"^(\d+ s|1 min)$"))
    page.get_by_role("button", name="Release all").click()
    expect(seen.get_by_text("Nothing is claimed")).to_be_visible()
    [message] = client.queue("mail").list(state="ready")
    assert message.claim_count == 1


def test_many_claims_are_loaded_page_by_page(client: Client, server: ZqServer, watch: Watch) -> None:
    """A hundred at first; at rest at most one request a second."""
    client.queue("jobs").post_batch(range(130))
    for _ in range(65):
        claim(server, "jobs")
    client.queue("more").post_batch(range(130))
    for _ in range(65):
        claim(server, "more")
    page = watch.open(ADDRESS)
    expect(page.locator("tbody tr")).to_have_count(100)
    expect(page.get_by_text("100 claims loaded, sorted among themselves.")).to_be_visible()
    page.get_by_role("button", name="Load more").click()
    expect(page.locator("tbody tr")).to_have_count(130)
    expect(page.get_by_text("130 claims. These are all.")).to_be_visible()


def test_a_reader_sees_claims_and_takes_none_away(
    tokened: tuple[ZqServer, Callable[..., str]], watching: Watching
) -> None:
    """Acceptance 15: with ``observe`` on everything; with it on one queue, the page says which rule is missing."""
    server, make = tokened
    with Client(server.url, PROJECT, token=make()) as owner:
        owner.queue("jobs").post("x")
        owner.queue("jobs").claim(1, ttl=300)
    for scopes, text in (("observe:**", "jobs"), ("observe:jobs", "claims:get_all")):
        watch = watching(server.url)
        watch.expected |= {401, 403}
        page = watch.open(ADDRESS)
        page.get_by_label("Token").fill(make(scopes))
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("main")).to_contain_text(text)
        release = page.get_by_role("button", name="Release…")
        if text == "jobs":
            expect(release).to_have_attribute("title", re.compile("does not allow claims:delete"))
            release.click(force=True)
            expect(page.get_by_role("dialog")).to_have_count(0)
        else:
            expect(release).to_have_count(0)
