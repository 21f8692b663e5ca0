# SPDX-License-Identifier: Apache-2.0
"""The redrive of a queue, in the browser."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch
from zq.client import Client
from zq.wire.extensions import Buried

pytestmark = pytest.mark.slow

TAB = "#/p/acme/queues/dead?tab=redrive"
SIZES = {"jobs": 200, "mail": 200, "old": 100}


def bury_all(client: Client) -> None:
    """500 dead letters of three origins, the last of which is deleted then."""
    for name, size in SIZES.items():
        queue = client.queue(name)
        queue.create({"_dead_letter_queue": "dead"})
        for start in range(0, size, 20):
            queue.post_batch([start + at for at in range(20)])
            claim = queue.claim(limit=20)
            assert claim is not None
            queue.settle(claim.id, bury=[Buried(message.id, "torn") for message in claim.messages])
    client.queue("old").delete()


def told(page: Page) -> dict[str, int]:
    """What the dry run says of each origin."""
    rows = page.get_by_role("region", name="Dry run").locator("tbody tr")
    return {row.locator("th").inner_text(): int(row.locator("td").first.inner_text()) for row in rows.all()}


def confirm(page: Page, verb: str) -> None:
    page.get_by_role("button", name=f"{verb}…").click()
    page.get_by_role("dialog").get_by_role("button", name=verb).click()


def test_the_dry_run_tells_what_the_redrive_does(client: Client, watch: Watch) -> None:
    """Acceptance 11: its figures are those of the redrive; *Stop* leaves the sum right; named ones go alone."""
    bury_all(client)
    page = watch.open(TAB)
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("500 messages would move")).to_be_visible()
    assert told(page) == SIZES
    assert client.queue("dead").stats().free == 500

    named = [message.id for message in client.queue("dead").list(page=20)][:2]
    page.get_by_label("Only these message ids").fill("\n".join([*named, "gone"]))
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("2 messages would move")).to_be_visible()
    confirm(page, "Redrive 2")
    expect(page.get_by_role("region", name="Progress")).to_contain_text("2 of 2 moved; 498 are still ready; 1 lost.")
    expect(page.get_by_text("Ended.")).to_be_visible()
    assert {message.id for message in client.queue("jobs").list()} == set(named)

    page.get_by_label("Only these message ids").fill("")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("498 messages would move")).to_be_visible()
    confirm(page, "Redrive 498")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    moved = re.match(r"(\d+) of 498 moved; (\d+) are", page.get_by_role("region", name="Progress").inner_text().strip())
    assert moved is not None
    left = client.queue("dead").stats().free
    assert (int(moved[1]) + left, int(moved[2])) == (498, left)
    assert 0 < left < 498

    page.get_by_label("Steps per second").fill("10")
    page.get_by_role("button", name="Dry run").click()
    confirm(page, f"Redrive {left}")
    expect(page.get_by_text("Ended.")).to_be_visible()
    assert {name: client.queue(name).stats().free for name in [*SIZES, "dead"]} == {**SIZES, "dead": 0}


def test_what_the_server_refuses_is_said(client: Client, watch: Watch) -> None:
    """A queue is not redriven into itself; what has no origin stays and blocks."""
    watch.expected = {400}
    client.queue("dead").create()
    client.queue("dead").post("x")
    page = watch.open(TAB)
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("0 messages would move")).to_be_visible()
    expect(page.get_by_role("region", name="Dry run")).to_contain_text("they stay")
    page.get_by_label("To this queue").fill("dead")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("to must name another queue")).to_be_visible()
