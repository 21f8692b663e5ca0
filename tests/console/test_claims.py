# SPDX-License-Identifier: Apache-2.0
"""The claims page: holders, remaining times, and the release of a claim."""

import re
from datetime import datetime

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, expect_notice
from tests.servers import ask
from zq.client import Client

pytestmark = pytest.mark.slow

ADDRESS = "claims"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def claim(watch: Watch, queue: str, agent: str = "nightly/3.1", client: str = "b" * 32, **terms: int) -> str:
    """Claim up to two messages with the user agent `agent` and return the claim's id."""
    headers = {"User-Agent": agent.encode().decode("latin-1"), "Client-ID": client, "X-Project-ID": watch.project}
    made = ask(watch.url, "POST", f"/v2/queues/{queue}/claims?limit=2", terms, headers=headers)
    assert made.status == 201
    return str(made.headers["location"]).rpartition("/")[2]


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


def test_all_live_claims_are_shown_with_their_holders(client: Client, watch: Watch) -> None:
    """The page lists the claims of all queues, sorted by age or by expiry, and updates age and remaining time."""
    for name, ttl in (("mail", 900), ("orders", 120), ("images", 300)):
        client.queue(name).post_batch(range(3))
        claim(watch, name, f"worker-{name}", ttl=ttl)
    page = watch.open(ADDRESS)
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator("tbody th")).to_have_text(["mail", "orders", "images"])
    row = page.get_by_role("row", name="orders")
    expect(row.locator("[data-name=Holder]")).to_contain_text("worker-orders bbbbbbbb")
    expect(row.locator("[data-name=Messages]")).to_have_text("2")
    expect(row.locator("[data-name='Expires in']")).to_have_text(re.compile(r"^(2 min|1\.9 min)$"))
    expect(row.locator("[data-name=Age]")).to_have_text(re.compile(r"^[1-9]\d* s$"))
    page.get_by_role("link", name="Expiring first").click()
    expect(page.locator("tbody th")).to_have_text(["orders", "images", "mail"])
    assert page.url.endswith("?sort=ends")
    expect(page.get_by_text("3 claims in total.")).to_be_visible()
    watch.check_accessible()
    page.get_by_role("link", name="orders").click()
    expect(page.locator("tbody [data-name=Holder]").first).to_contain_text("worker-orders")


def test_a_claim_is_released_by_the_name_of_its_queue(client: Client, watch: Watch) -> None:
    """Typing the queue's name releases only the selected claim; Enter in an empty field does nothing."""
    client.queue("jobs").post_batch(range(4))
    claim(watch, "jobs", "stuck/1")
    other = claim(watch, "jobs", "busy/2")
    page = watch.open(ADDRESS)
    page.get_by_role("row", name="stuck/1").get_by_role("button", name="Release…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The claim's messages (2) return to jobs")
    expect(dialog).to_contain_text("If the holder, stuck/1 bbbbbbbb")
    dialog.get_by_role("textbox").press("Enter")
    expect(dialog.get_by_role("button", name="Release")).to_have_attribute("aria-disabled", "true")
    assert client.queue("jobs").depth().claimed == 4
    dialog.get_by_role("textbox").fill("jobs")
    watch.check_accessible()
    dialog.get_by_role("button", name="Release").click()
    expect_notice(page, "The claim was released.")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert [one.id for one in client.queue("jobs").claims()] == [other]
    assert [message.claim_count for message in client.queue("jobs").list(state="ready")] == [1, 1]


def ends(client: Client, claim: str) -> datetime:
    [found] = [one.ends for one in client.claims() if one.id == claim]
    return found
