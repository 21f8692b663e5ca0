# SPDX-License-Identifier: Apache-2.0
"""The redrive of a queue in parts."""

import re

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from tests.console.test_redrive import TAB, bury_all, confirm, told
from zq.client import Client

pytestmark = pytest.mark.slow

SIZES = {"jobs": 200, "mail": 200, "old": 100}


def test_the_dry_run_tells_what_the_redrive_does(client: Client, watch: Watch) -> None:
    """Dry run and redrive agree, *Stop* keeps the sum correct, and single ids can be moved (acceptance 11)."""
    bury_all(client, SIZES)
    client.queue("old").delete()
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
    expect(page.get_by_role("region", name="Progress")).to_contain_text("2 of 2 moved; 498 still in dead; 1 not found.")
    expect(page.get_by_text("Finished.")).to_be_visible()
    assert {message.id for message in client.queue("jobs").list()} == set(named)

    page.get_by_label("Only these message ids").fill("")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("498 messages would move")).to_be_visible()
    confirm(page, "Redrive 498")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    moved = re.match(
        r"(\d+) of 498 moved; (\d+) still", page.get_by_role("region", name="Progress").inner_text().strip()
    )
    assert moved is not None
    left = client.queue("dead").stats().free
    assert (int(moved[1]) + left, int(moved[2])) == (498, left)
    assert 0 < left < 498

    page.get_by_label("Steps per second").fill("10")
    page.get_by_role("button", name="Dry run").click()
    confirm(page, f"Redrive {left}")
    expect(page.get_by_text("Finished.")).to_be_visible()
    assert {name: client.queue(name).stats().free for name in [*SIZES, "dead"]} == {**SIZES, "dead": 0}
