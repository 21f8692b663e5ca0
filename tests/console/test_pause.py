# SPDX-License-Identifier: Apache-2.0
"""Pausing and resuming a queue from its page, and the notice of a paused queue."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from tests.rotation import rotated
from zq.client import Client

pytestmark = pytest.mark.slow

MAIL = "queues/mail"


def test_a_queue_is_paused_says_so_and_is_resumed(client: Client, watch: Watch) -> None:
    """A fully paused queue is marked in the list, and a rejected post shows the server's message at the form."""
    queue = client.queue("mail")
    queue.post(1)
    page = watch.open(MAIL)
    page.get_by_role("button", name="Pause…").click()
    dialog = page.get_by_role("dialog")
    watch.check_accessible()
    dialog.get_by_role("button", name="Pause").click()
    expect(page.locator(".state.paused")).to_contain_text("consumers get no messages, and the server rejects posts")
    assert queue.metadata()["_paused"] == "all"
    assert not queue.claim().messages
    watch.expected.add(409)
    page.get_by_role("link", name="Post", exact=True).click()
    page.get_by_label("Body (JSON)").fill("2")
    page.get_by_role("button", name="Post").click()
    expect(page.get_by_role("alert")).to_contain_text("Posts to the queue mail are paused")
    page.get_by_role("link", name="Queues").first.click()
    expect(page.locator("tbody th")).to_contain_text("paused")
    watch.open(MAIL)
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".state.paused")).to_have_count(0)
    assert [message.body for message in queue.claim().messages] == [1]


@pytest.mark.parametrize(
    ("label", "value", "says"),
    rotated(
        [("Claims only", "claims", "Producers can still post"), ("Posts only", "posts", "Consumers can still claim")], 1
    ),
)
def test_a_part_of_the_work_is_paused(client: Client, watch: Watch, label: str, value: str, says: str) -> None:
    client.queue("mail").create()
    page = watch.open(MAIL)
    page.get_by_role("button", name="Pause…").click()
    page.get_by_role("dialog").get_by_label(label).check()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator(".state.paused")).to_contain_text(says)
    assert client.queue("mail").metadata()["_paused"] == value
    watch.open("queues")
    expect(page.locator("tbody th")).to_contain_text(f"{value} paused")
