# SPDX-License-Identifier: Apache-2.0
"""The audit page, and the purge that it lists."""

import re

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch, expect_notice
from zq.client import Client

pytestmark = pytest.mark.slow


def test_a_purge_is_there_with_its_request_and_what_its_dialog_told(client: Client, watch: Watch) -> None:
    """The purge needs the queue's full name and deletes as many messages as the dialog counts (acceptance 12).

    Enter in an empty field and a part of the name do nothing, other queues keep their messages, and the audit has the
    request's id.
    """
    client.queue("other").post(1)
    client.queue("mail").post_batch(list(range(20)))
    client.queue("mail").update({"_default_message_delay": 1})
    client.queue("mail").post_batch(list(range(5)), delay=300)
    client.queue("mail").claim(limit=3)
    page = watch.open("queues/mail")
    page.get_by_role("button", name="Purge…").click()
    dialog = page.get_by_role("dialog")
    told = re.search(r"All messages \(([\d,]+)\)", dialog.inner_text())
    assert told
    assert told[1] == "25"
    dialog.get_by_role("textbox").press("Enter")
    dialog.get_by_role("textbox").fill("mai")
    dialog.get_by_role("button", name="Purge").click(force=True)
    expect(dialog).to_be_visible()
    assert client.queue("mail").stats().total == 25, "nothing goes without the name"
    dialog.get_by_role("textbox").fill("mail")
    watch.check_accessible()
    with page.expect_response(lambda answer: answer.url.endswith("/mail/purge")) as purged:
        dialog.get_by_role("button", name="Purge").click()
    expect_notice(page, "Purged 25 messages from mail.")
    expect(page.get_by_role("button", name="Purge…")).to_be_focused()
    assert (client.queue("mail").stats().total, client.queue("other").stats().total) == (0, 1)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit").click()
    row = page.locator("tbody tr", has_text=purged.value.headers["x-openstack-request-id"])
    expect(row.locator("[data-name=Action]")).to_have_text("purge")
    expect(row.locator("[data-name=Object]")).to_have_text("queue mail")
    expect(row.locator("[data-name=Messages]")).to_have_text(told[1])
    expect(row.locator("[data-name=Outcome]")).to_have_text("done")
    row.get_by_role("link", name="mail").click()
    expect(page.get_by_role("heading", level=1, name="mail")).to_be_visible()
    client.topic("news").publish(1)
    client.topic("news").purge()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Audit").click()
    page.locator("tbody tr", has_text="topic news").get_by_role("link", name="news").first.click()
    expect(page.get_by_role("heading", level=1, name="news")).to_be_visible()
