# SPDX-License-Identifier: Apache-2.0
"""Dead letters in the browser: rows, timeline, and the redrive of all, selected or single messages."""

import re
from datetime import datetime

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import Watch, expect_notice
from zq.client import Client
from zq.wire.extensions import BuryTerms

pytestmark = pytest.mark.slow

REASON = "550 no such mailbox"


def bury(client: Client, name: str, *bodies: object, dead: str = "dead", reason: str = REASON) -> list[str]:
    """Post messages and bury them. Return their ids."""
    queue = client.queue(name)
    queue.create()
    queue.update({"_dead_letter_queue": dead})
    ids = queue.post_batch(list(bodies))
    claim = queue.claim(limit=len(bodies))
    assert claim is not None
    queue.settle(claim.id, bury=[BuryTerms(id, reason) for id in ids])
    return ids


def confirm(page: Page, opener: Locator) -> None:
    opener.click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def rows(page: Page) -> Locator:
    return page.locator("tbody tr")


def test_redrive_tab_of_source_queue_moves_letters_of_that_queue(client: Client, watch: Watch) -> None:
    """The dry run and the redrive name the dead-letter queue and leave messages from other queues in it."""
    bury(client, "orders", {"n": 1})
    bury(client, "other", 1, 2)
    client.queue("plain").create()
    page = watch.open("queues/orders")
    page.locator(".tabs").get_by_role("link", name="Redrive").click()
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("1 message would move")).to_be_visible()
    watch.check_accessible()
    confirm(page, page.get_by_role("button", name="Redrive 1…"))
    expect(page.get_by_text("Finished.")).to_be_visible()
    assert [client.queue(name).stats().free for name in ("orders", "other", "dead")] == [1, 0, 2]
    watch.open("queues/plain")
    expect(page.locator(".tabs").get_by_role("link", name="Metadata")).to_be_visible()
    expect(page.get_by_text("no dead-letter queue")).to_be_visible()
    expect(page.locator(".tabs").get_by_role("link", name="Redrive")).to_have_count(0)


def test_redrive_of_queue_that_is_source_and_dead_letter_queue_asks_which(client: Client, watch: Watch) -> None:
    bury(client, "second", 2, 3, dead="third")
    bury(client, "first", 1, dead="second")
    page = watch.open("queues/second?tab=redrive")
    expect(page.get_by_label("Dead letters from second, now in third")).to_be_checked()
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("2 messages would move")).to_be_visible()
    page.get_by_label("Dead letters from other queues, now in second").check()
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("1 message would move")).to_be_visible()


@pytest.mark.parametrize("address", ["queues/orders?state=dead", "queues/dead"])
def test_rows_of_dead_letters_show_reason_origin_and_claims_there(client: Client, watch: Watch, address: str) -> None:
    bury(client, "orders", {"n": 1})
    page = watch.open(address)
    row = rows(page)
    expect(row.locator("[data-name=Reason]")).to_have_text(REASON)
    expect(row.locator("[data-name=From]")).to_have_text("orders")
    expect(row.locator("[data-name='Claims before']")).to_have_text("1")
    expect(row.locator("td.start")).to_have_text('{"n":1}')


def test_dead_letter_queue_names_its_source_queues(client: Client, watch: Watch) -> None:
    for name in ("orders", "mail"):
        bury(client, name, 1)
    page = watch.open("queues/dead")
    expect(page.get_by_text("Dead-letter queue of mail, orders.")).to_be_visible()
    expect(page.get_by_role("region", name="Figures")).not_to_contain_text("Dead letters")
    page.get_by_text("Dead-letter queue of").get_by_role("link", name="orders").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")


def test_selected_dead_letters_are_redriven(client: Client, watch: Watch) -> None:
    """The redrive from the source queue's tab moves only the selected messages."""
    ids = bury(client, "orders", 1, 2, 3)
    page = watch.open("queues/orders?state=dead")
    for id in ids[:2]:
        page.get_by_label(f"Select {id}").check()
    confirm(page, page.get_by_role("button", name="Redrive 2…"))
    expect_notice(page, "Moved 2 messages.")
    expect(rows(page)).to_have_count(1)
    assert [message.id for message in client.queue("orders").list()] == ids[:2]


def test_one_dead_letter_is_redriven_from_its_view(client: Client, watch: Watch) -> None:
    [id, _] = bury(client, "orders", 1, 2)
    page = watch.open(f"queues/dead?m={id}")
    confirm(page, page.locator(".message").get_by_role("button", name="Redrive…"))
    expect(rows(page)).to_have_count(1)
    assert [message.id for message in client.queue("orders").list()] == [id]


def test_timeline_of_dead_letter_dates_the_move_by_the_move(client: Client, watch: Watch) -> None:
    """The timeline shows the time of the move, which is later than the time of the post."""
    queue = client.queue("orders")
    queue.create({"_dead_letter_queue": "dead"})
    id = queue.post(1)
    claim = queue.claim()
    assert claim is not None
    watch.open("queues")
    watch.page.wait_for_timeout(2000)
    queue.settle(claim.id, bury=[BuryTerms(id, REASON)])
    page = watch.open(f"queues/dead?m={id}")
    posted, moved = (
        page.locator(".timeline li", has_text="posted to orders"),
        page.locator(".timeline li", has_text="moved"),
    )
    expect(moved).to_contain_text(f"moved here from orders after 1 claim: {REASON}")
    assert 1.9 < (moment(moved) - moment(posted)).total_seconds() < 60
    assert moment(page.locator(".timeline li", has_text="available")) >= moment(moved)


def moment(step: Locator) -> datetime:
    return datetime.fromisoformat(re.sub(" UTC$", "", step.locator(".when").inner_text()))
