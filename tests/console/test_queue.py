# SPDX-License-Identifier: Apache-2.0
"""The page of one queue: a message's life cycle by hand, untrusted text, metadata."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching, expect_notice
from tests.servers import wait_for
from zq.client import Client, TypedValue
from zq.wire.extensions import BuryTerms

pytestmark = pytest.mark.slow

MAIL = "queues/mail"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)></script>\u202egnp.exe"


def test_a_message_goes_through_its_whole_life(client: Client, watch: Watch) -> None:
    """A message is posted, claimed, released, claimed again, deleted and replayed (acceptance 2)."""
    client.queue("mail").create({"_history_ttl": 3600})
    page = watch.open(MAIL)
    expect(page.get_by_text("The queue is empty")).to_be_visible()
    page.get_by_role("link", name="Post", exact=True).click()
    page.get_by_label("Body (JSON)").fill('{"order": 1')
    expect(page.get_by_role("alert")).to_contain_text("The body is not valid JSON")
    page.get_by_label("Body (JSON)").fill('{"order": 1}')
    page.get_by_label("Time to live (seconds)").fill("59")
    expect(page.get_by_role("alert")).to_contain_text("ttl must be an integer between 60")
    page.get_by_label("Time to live (seconds)").fill("600")
    page.get_by_role("button", name="Post").click()
    page.get_by_role("link", name="show the queue").click()
    expect(page.locator("tbody td.start")).to_have_text('{"order": 1}', timeout=60_000)
    expect(page.locator("tbody .mark")).to_have_text("ready")

    page.get_by_role("link", name="Claim", exact=True).click()
    page.get_by_role("button", name="Claim", exact=True).click()
    expect(page.locator(".countdown")).to_contain_text("expires in")
    assert client.queue("mail").stats().claimed == 1
    page.get_by_role("button", name="Release all").click()
    expect(page.get_by_role("button", name="Claim", exact=True)).to_be_visible()
    page.locator(".tabs").get_by_role("link", name="Ready").click()
    expect(page.locator("tbody [data-name=Claims]")).to_have_text("1")

    page.get_by_role("link", name="Claim", exact=True).click()
    page.get_by_role("button", name="Claim", exact=True).click()
    page.get_by_role("article").get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article")).to_have_count(0)
    page.get_by_role("link", name="History").click()
    expect(page.locator("tbody [data-name=Outcome]")).to_have_text("deleted")
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay…").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    expect_notice(page, "Replayed 1 message.")
    assert [message.body for message in client.queue("mail").list()] == [{"order": 1}]


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_message_is_posted_with_attributes(client: Client, watch: Watch, kind: str) -> None:
    """The console validates attributes before it sends them unchanged, and sends none if the field is empty."""
    (client.queue if kind == "queue" else client.topic)("mail").create()
    page = watch.open(f"{kind}s/mail")
    page.get_by_role("link", name="Post" if kind == "queue" else "Publish", exact=True).click()
    page.get_by_label("Body (JSON)").fill("1")
    attributes = page.get_by_label("Attributes of each message (JSON object)")
    send = page.get_by_role("button", name="Post" if kind == "queue" else "Publish")
    attributes.fill('["a"]')
    expect(page.get_by_role("alert")).to_contain_text("Attributes must be a JSON object.")
    attributes.fill("")
    attributes.press_sequentially('{"note": "two words"}')
    expect(attributes).to_have_value('{"note": "two words"}')
    attributes.fill('{"kind": "invoice", "n": {"type": "Number", "value": "1.50"}}')
    send.click()
    expect_notice(page, "1 message ")
    attributes.fill("")
    send.click()
    expect(page.get_by_role("link", name="show the")).to_be_visible()
    handle = client.queue("mail") if kind == "queue" else client.topic("mail")
    wait_for(lambda: len(list(handle.list())) == 2, 60, "two messages")
    shown = [message.attributes for message in handle.list()]
    assert shown == [{"kind": "invoice", "n": TypedValue("Number", "1.50")}, {}]


def open_first(page: Page) -> None:
    page.locator("tbody th a").first.click()
    expect(page.get_by_role("heading", name="Message")).to_be_visible()


def test_untrusted_text_is_escaped(client: Client, watch: Watch) -> None:
    """Bodies, keys, attributes, metadata and reasons never run as code, and text-direction characters are escaped."""
    queue = client.queue("mail")
    queue.create({"_dead_letter_queue": "mail.dead", "note": HOSTILE, HOSTILE: 1})
    queue.post(
        {"text": HOSTILE, HOSTILE: [HOSTILE], "__proto__": {"html": HOSTILE}}, attributes={"note": HOSTILE, "size": 7}
    )
    page = watch.open(MAIL)
    expect(page.locator("td.start")).to_contain_text("<script>alert(1)</script>")
    open_first(page)
    expect(page.locator(".facts")).to_contain_text("Attribute size7")
    expect(page.locator(".facts")).to_contain_text("onerror=alert(2)")
    for summary in page.locator(".tree summary").all()[1:]:
        summary.click()
    expect(page.locator(".tree")).to_contain_text("\\u202egnp.exe")
    expect(page.locator(".tree")).to_contain_text("__proto__")
    page.get_by_role("link", name="Metadata").click()
    expect(page.get_by_label("Your own keys, as a JSON object")).to_have_value(json_like(HOSTILE))
    claim = queue.claim(limit=1)
    queue.settle(claim.id, bury=[BuryTerms(claim.messages[0].id, HOSTILE)])
    watch.open("queues/mail.dead")
    open_first(page)
    expect(page.locator(".facts")).to_contain_text("onerror=alert(2)")
    assert "\u202e" not in page.locator("body").inner_text()
    assert page.locator("main img, main script").count() == 0


def json_like(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(json.dumps(text, ensure_ascii=False)))


def test_metadata_are_a_form_that_sends_what_was_changed(client: Client, watch: Watch, watching: Watching) -> None:
    """A wrong value is reported at its field, and editors of different keys both succeed (acceptance 13)."""
    client.queue("mail").create({"owner": "shop", "size": 10**18 + 1})
    page = watch.open(f"{MAIL}?tab=metadata")
    other = watching(watch.url).open(f"{MAIL}?tab=metadata")
    ttl = page.get_by_label("_default_message_ttl")
    ttl.fill("-1")
    expect(page.locator("#field_default_message_ttl-says")).to_contain_text("Must be an integer from 60")
    expect(page.get_by_role("button", name="Save…")).to_have_attribute("aria-disabled", "true")
    watch.check_accessible()
    ttl.fill("3600")
    client.queue("letters").create()
    expect(page.locator("#field_max_claim_count-means")).to_have_text(
        "Number of claims after which a message becomes a dead letter."
    )
    page.get_by_label("_dead_letter_queue", exact=True).fill("lett")
    expect(page.locator("datalist option")).to_have_attribute("value", "letters")
    page.get_by_label("_dead_letter_queue", exact=True).fill("mail")
    watch.expected.add(400)
    save(page)
    expect(page.locator("#field_dead_letter_queue-says")).to_contain_text("_dead_letter_queue")
    page.get_by_label("_dead_letter_queue", exact=True).fill("")
    ttl.fill("600")
    save(page, "_default_message_ttl: 3600 → 600")
    expect_notice(page, "1 key saved.")
    other.get_by_label("_history_ttl").fill("60")
    free = other.get_by_label("Your own keys, as a JSON object")
    free.fill(free.input_value().replace("shop", "store"))
    save(other)
    expect_notice(other, "2 keys saved.")
    found = client.queue("mail").metadata()
    assert (found["_default_message_ttl"], found["_history_ttl"], found["owner"]) == (600, 60, "store")
    assert found["size"] == 10**18 + 1


def test_ten_rows_of_a_queue_are_visible_without_scrolling(client: Client, watch: Watch) -> None:
    """At 1280 x 900 the charts are collapsed; once opened, they stay open for the next queue."""
    for name in ("mail", "orders"):
        client.queue(name).create({"_dead_letter_queue": "dead", "_max_claim_count": 5, "_history_ttl": 3600})
        client.queue(name).post_batch([{"n": number} for number in range(20)])
    page = watch.open(MAIL)
    expect(page.locator("tbody tr")).to_have_count(20)
    bottoms = [row.bounding_box() for row in page.locator("tbody tr").all()]
    assert sum(box is not None and box["y"] + box["height"] <= 900 for box in bottoms) >= 10
    expect(page.locator(".plot")).to_have_count(0)
    page.get_by_text("Charts", exact=True).click()
    expect(page.locator(".plot canvas")).to_have_count(2)
    watch.open("queues/orders")
    expect(page.locator(".plot canvas")).to_have_count(2)


def save(page: Page, change: str = "") -> None:
    """Save the form if the dialog mentions `change`, and wait until the fields can be filled again."""
    page.get_by_role("button", name="Save…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(change)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
