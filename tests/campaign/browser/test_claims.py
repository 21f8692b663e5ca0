# SPDX-License-Identifier: Apache-2.0
"""The claims page: claims that start and end, renewal, untrusted text, many claims."""

import re
from datetime import datetime

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch, Watching
from tests.console.test_claims import claim
from tests.servers import ZqServer
from zq.client import Client

pytestmark = pytest.mark.slow

ADDRESS = "claims"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def test_a_claim_comes_and_goes_on_the_page(client: Client, watch: Watch) -> None:
    """The page shows the claims of other consumers as they start and end, but rows under the pointer stay."""
    page = watch.open(ADDRESS)
    expect(page.get_by_text("No claims")).to_be_visible()
    client.queue("jobs").post_batch(range(4))
    first = claim(watch, "jobs")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody tr").hover()
    second = claim(watch, "jobs")
    page.get_by_role("button", name="1 change: show").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.mouse.move(0, 0)
    for one in (first, second):
        client.queue("jobs").release(one)
    expect(page.get_by_text("No claims")).to_be_visible()


def test_only_the_claim_of_this_tab_can_be_renewed(client: Client, watch: Watch) -> None:
    """Only the claim of this tab is marked and can be renewed."""
    client.queue("jobs").post_batch(range(4))
    page = watch.open(ADDRESS)
    expect(page.get_by_text("No claims")).to_be_visible()
    own = claim(watch, "jobs", "Chromium", page.evaluate("sessionStorage.getItem('zq.client')"), ttl=600)
    claim(watch, "jobs", "other/1")
    row = page.get_by_role("row", name="Chromium")
    expect(row).to_contain_text("this tab")
    expect(page.get_by_role("row", name="other/1").get_by_role("button", name="Renew")).to_have_count(0)
    before = ends(client, own)
    row.get_by_role("button", name="Renew").click()
    expect(page.locator(".announcer")).to_contain_text("The claim was renewed for 10 min.")
    assert ends(client, own) > before


def ends(client: Client, claim: str) -> datetime:
    [found] = [one.ends for one in client.claims() if one.id == claim]
    return found


def test_a_hostile_user_agent_is_text(client: Client, watch: Watch) -> None:
    """The user agent is shown as text on the page, in dialog, listing and message view (acceptance 5)."""
    [held] = client.queue("jobs").post_batch(["x"])
    claim(watch, "jobs", HOSTILE, ttl=300)
    page = watch.open(ADDRESS)
    expect(page.locator("tbody [data-name=Holder]")).to_contain_text(SHOWN[:60])
    page.get_by_role("button", name="Release…").click()
    expect(page.get_by_role("dialog")).to_contain_text(SHOWN[:60])
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)
    short = "<img src=x onerror=alert(2)>\u202egnp.exe"
    client.queue("more").post("y")
    claim(watch, "more", short, ttl=300)
    expect(page.get_by_role("row", name="more").locator("[data-name=Holder]")).to_contain_text(
        "<img src=x onerror=alert(2)>\\u202egnp.exe"
    )
    watch.open(f"queues/jobs?state=claimed&m={held}")
    expect(page.locator("tbody [data-name=Holder]")).to_contain_text(SHOWN[:60])
    expect(page.locator(".timeline")).to_contain_text(f"claimed by {SHOWN[:60]}")
    assert page.locator("main img, main script").count() == 0


def test_a_claim_by_hand_is_seen_with_holder_and_countdown(
    client: Client, watching: Watching, server: ZqServer
) -> None:
    """A claim of one tab is shown in another tab until its release, and the claim is counted (acceptance 2)."""
    client.queue("mail").post({"n": 1})
    hand, looking = watching(server.url), watching(server.url)
    page = hand.open("queues/mail?tab=claim")
    page.get_by_role("button", name="Claim", exact=True).click()
    expect(page.locator(".countdown")).to_contain_text(re.compile(r"expires in [1-6]\d? s"))
    seen = looking.open(ADDRESS)
    expect(seen.locator("tbody [data-name=Holder]")).to_contain_text("Mozilla/5.0")
    expect(seen.locator("tbody [data-name='Expires in']")).to_have_text(re.compile(r"^(\d+ s|1 min)$"))
    page.get_by_role("button", name="Release all").click()
    expect(seen.get_by_text("No claims")).to_be_visible()
    [message] = client.queue("mail").list(state="ready")
    assert message.claim_count == 1


def test_many_claims_are_loaded_page_by_page(client: Client, watch: Watch) -> None:
    """The page first loads a hundred claims."""
    client.queue("jobs").post_batch(range(130))
    for _ in range(65):
        claim(watch, "jobs")
    client.queue("more").post_batch(range(130))
    for _ in range(65):
        claim(watch, "more")
    page = watch.open(ADDRESS)
    expect(page.locator("tbody tr")).to_have_count(100)
    expect(page.get_by_text("100 claims loaded. Only these are sorted.")).to_be_visible()
    page.get_by_role("button", name="Load more").click()
    expect(page.locator("tbody tr")).to_have_count(130)
    expect(page.get_by_text("130 claims in total.")).to_be_visible()
