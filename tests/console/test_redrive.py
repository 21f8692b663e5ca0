# SPDX-License-Identifier: Apache-2.0
"""The redrive tab of a queue's page."""

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch
from zq.client import Client
from zq.wire.extensions import BuryTerms

pytestmark = pytest.mark.slow

TAB = "queues/dead?tab=redrive"


def bury_all(client: Client, sizes: dict[str, int]) -> None:
    """Create dead letters: for each source queue, the given number."""
    for name, size in sizes.items():
        queue = client.queue(name)
        queue.create({"_dead_letter_queue": "dead"})
        for start in range(0, size, 20):
            queue.post_batch([start + at for at in range(20)])
            claim = queue.claim(limit=20)
            assert claim is not None
            queue.settle(claim.id, bury=[BuryTerms(message.id, "torn") for message in claim.messages])


def told(page: Page) -> dict[str, int]:
    """Return the message count of the dry run for each source queue."""
    rows = page.get_by_role("region", name="Dry run").locator("tbody tr")
    return {row.locator("th").inner_text(): int(row.locator("td").first.inner_text()) for row in rows.all()}


def confirm(page: Page, verb: str) -> None:
    page.get_by_role("button", name=f"{verb}…").click()
    page.get_by_role("dialog").get_by_role("button", name=verb).click()


def test_the_dry_run_and_its_refusals(client: Client, watch: Watch) -> None:
    """Dry run and redrive agree; messages without an origin stay; a queue cannot be its own target."""
    watch.expected = {400}
    bury_all(client, {"jobs": 40, "mail": 20})
    page = watch.open(TAB)
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("60 messages would move")).to_be_visible()
    assert told(page) == {"jobs": 40, "mail": 20}
    confirm(page, "Redrive 60")
    expect(page.get_by_text("Finished.")).to_be_visible()
    assert [client.queue(name).stats().free for name in ("jobs", "mail", "dead")] == [40, 20, 0]
    client.queue("dead").post("x")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("0 messages would move")).to_be_visible()
    expect(page.get_by_role("region", name="Dry run")).to_contain_text("not moved")
    page.get_by_label("Target queue").fill("dead")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text('The field "to" must not name the queue that is redriven')).to_be_visible()
