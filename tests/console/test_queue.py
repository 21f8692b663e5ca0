# SPDX-License-Identifier: Apache-2.0
"""The page of one queue: what is in it, and work on it by hand."""

import json
import re
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch, Watching
from tests.servers import ZqServer, ask
from zq.client import Client
from zq.wire.extensions import Buried

pytestmark = pytest.mark.slow

MAIL = "#/p/acme/queues/mail"
EXACT = '{"n": 9007199254740993, "m": 1.10}'
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)></script>\u202egnp.exe"


def test_a_message_goes_through_its_whole_life(client: Client, watch: Watch) -> None:
    """Acceptance 2: post, claim, release, claim again, delete, history, replay."""
    client.queue("mail").create({"_history_ttl": 3600})
    page = watch.open(MAIL)
    expect(page.get_by_text("The queue is empty")).to_be_visible()
    page.get_by_role("link", name="Post", exact=True).click()
    page.get_by_label("Body, as JSON").fill('{"order": 1')
    expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
    page.get_by_label("Body, as JSON").fill('{"order": 1}')
    page.get_by_label("Life (ttl), seconds").fill("59")
    expect(page.get_by_role("alert")).to_contain_text("ttl must be an integer from 60")
    page.get_by_label("Life (ttl), seconds").fill("600")
    page.get_by_role("button", name="Post").click()
    page.get_by_role("link", name="look at the queue").click()
    expect(page.locator("tbody td.start")).to_have_text('{"order": 1}', timeout=60_000)
    expect(page.locator("tbody .mark")).to_have_text("ready")

    page.get_by_role("link", name="Claim by hand").click()
    page.get_by_role("button", name="Claim", exact=True).click()
    expect(page.locator(".countdown")).to_contain_text("ends in")
    assert client.queue("mail").stats().claimed == 1
    page.get_by_role("button", name="Release all").click()
    expect(page.get_by_role("button", name="Claim", exact=True)).to_be_visible()
    page.locator(".tabs").get_by_role("link", name="Ready").click()
    expect(page.locator("tbody [data-name=Claims]")).to_have_text("1")

    page.get_by_role("link", name="Claim by hand").click()
    page.get_by_role("button", name="Claim", exact=True).click()
    page.get_by_role("article").get_by_role("button", name="Delete…").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("article")).to_have_count(0)
    page.get_by_role("link", name="History").click()
    expect(page.locator("tbody [data-name=Outcome]")).to_have_text("deleted")
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Replay…").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    expect(page.locator(".announcer")).to_contain_text("1 message were posted again.")
    assert [message.body for message in client.queue("mail").list()] == [{"order": 1}]


def test_a_claim_by_hand_ends_with_its_page(client: Client, watch: Watch) -> None:
    """What was held goes back; move and bury take what they are told."""
    client.queue("mail").create({"_dead_letter_queue": "mail.dead"})
    client.queue("mail").post_batch(["a", "b", "c"])
    page = watch.open(f"{MAIL}?tab=claim")
    page.get_by_label("Messages, 1 to 99").fill("3")
    page.get_by_role("button", name="Claim", exact=True).click()
    articles = page.get_by_role("article")
    expect(articles).to_have_count(3)
    articles.first.get_by_role("button", name="Move…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("elsewhere")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    expect(articles).to_have_count(2)
    articles.first.get_by_role("button", name="Bury…").click()
    page.get_by_role("dialog").get_by_role("textbox").fill(HOSTILE)
    page.get_by_role("dialog").get_by_role("button", name="Bury").click()
    expect(articles).to_have_count(1)
    with page.expect_request(lambda request: request.method == "DELETE"):
        page.get_by_role("link", name="Queues").first.click()
    page.wait_for_timeout(300)
    stats = [client.queue(name).stats() for name in ("mail", "elsewhere", "mail.dead")]
    assert [(each.free, each.claimed) for each in stats] == [(1, 0), (1, 0), (1, 0)]


def test_numbers_stay_digit_by_digit(server: ZqServer, client: Client, watch: Watch) -> None:
    """Acceptance 4: shown, copied, saved, edited and posted again unchanged."""
    client.queue("mail").create()
    raw = f'{{"messages": [{{"body": {EXACT}}}]}}'.encode()
    posted(server, raw)
    page = watch.open(MAIL)
    open_first(page)
    expect(page.locator(".tree")).to_contain_text("n: 9007199254740993")
    expect(page.locator(".tree")).to_contain_text("m: 1.10")
    page.get_by_role("button", name="Raw").click()
    expect(page.locator("pre")).to_contain_text('"m": 1.10')
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator(".announcer")).to_contain_text("The body was copied.")
    assert page.evaluate("navigator.clipboard.readText()") == EXACT.replace(" ", "")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    assert Path(saved.value.path()).read_text() == EXACT.replace(" ", "")
    page.get_by_role("button", name="Post again as new…").click()
    page.get_by_role("button", name="Post", exact=True).click()
    expect(page.get_by_text("1 message posted:")).to_be_visible()
    listed = ask(server.url, "GET", "/v2/queues/mail/messages?echo=true").body.decode()
    assert re.sub(r"\s", "", listed).count(EXACT.replace(" ", "")) == 2


def posted(server: ZqServer, raw: bytes) -> None:
    connection = HTTPConnection(urlsplit(server.url).netloc)
    headers = {"Client-ID": "5" * 32, "X-Project-ID": "acme", "Content-Type": "application/json"}
    connection.request("POST", "/v2/queues/mail/messages", raw, headers)
    assert connection.getresponse().status == 201
    connection.close()


def open_first(page: Page) -> None:
    page.locator("tbody th a").first.click()
    expect(page.get_by_role("heading", name="Message")).to_be_visible()


def test_what_strangers_wrote_is_text(client: Client, watch: Watch) -> None:
    """Acceptance 5: a body, its keys, metadata and a reason; nothing runs, and what turns the writing is an escape."""
    queue = client.queue("mail")
    queue.create({"_dead_letter_queue": "mail.dead", "note": HOSTILE, HOSTILE: 1})
    queue.post({"text": HOSTILE, HOSTILE: [HOSTILE], "__proto__": {"html": HOSTILE}})
    page = watch.open(MAIL)
    expect(page.locator("td.start")).to_contain_text("<script>alert(1)</script>")
    open_first(page)
    for summary in page.locator(".tree summary").all()[1:]:
        summary.click()
    expect(page.locator(".tree")).to_contain_text("\\u202egnp.exe")
    expect(page.locator(".tree")).to_contain_text("__proto__")
    page.get_by_role("link", name="Metadata").click()
    expect(page.get_by_label("Free keys, as one JSON object")).to_have_value(json_like(HOSTILE))
    claim = queue.claim(limit=1)
    queue.settle(claim.id, bury=[Buried(claim.messages[0].id, HOSTILE)])
    watch.open("#/p/acme/queues/mail.dead")
    open_first(page)
    expect(page.locator(".facts")).to_contain_text("onerror=alert(2)")
    assert "\u202e" not in page.locator("body").inner_text()
    assert page.locator("main img, main script").count() == 0


def json_like(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(json.dumps(text, ensure_ascii=False)))


def test_metadata_are_a_form_that_sends_what_was_changed(client: Client, watch: Watch, watching: Watching) -> None:
    """Acceptance 13: refused at its field before it is sent and after; two editors of different keys both win."""
    client.queue("mail").create({"owner": "shop", "size": 10**18 + 1})
    page = watch.open(f"{MAIL}?tab=metadata")
    other = watching(watch.url).open(f"{MAIL}?tab=metadata")
    ttl = page.get_by_label("_default_message_ttl")
    ttl.fill("-1")
    expect(page.locator("#field_default_message_ttl-says")).to_contain_text("Must be an integer from 60")
    expect(page.get_by_role("button", name="Save…")).to_have_attribute("aria-disabled", "true")
    watch.check_accessible()
    ttl.fill("3600")
    page.get_by_label("_dead_letter_queue", exact=True).fill("mail")
    watch.expected.add(400)
    save(page)
    expect(page.locator("#field_dead_letter_queue-says")).to_contain_text("_dead_letter_queue")
    page.get_by_label("_dead_letter_queue", exact=True).fill("")
    ttl.fill("600")
    save(page, "_default_message_ttl: 3600 → 600")
    expect(page.locator(".announcer")).to_contain_text("1 key saved.")
    other.get_by_label("_history_ttl").fill("60")
    free = other.get_by_label("Free keys, as one JSON object")
    free.fill(free.input_value().replace("shop", "store"))
    save(other)
    expect(other.locator(".announcer")).to_contain_text("2 keys saved.")
    found = client.queue("mail").metadata()
    assert (found["_default_message_ttl"], found["_history_ttl"], found["owner"]) == (600, 60, "store")
    assert found["size"] == 10**18 + 1


def save(page: Page, change: str = "") -> None:
    """Save what was typed, if the dialog tells `change`; a field can be filled again only when the dialog is gone."""
    page.get_by_role("button", name="Save…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(change)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)


def test_a_file_of_lines_is_posted_as_it_is(client: Client, watch: Watch, tmp_path: Path) -> None:
    client.queue("mail").create()
    file = tmp_path / "lines"
    file.write_text("1.10\n\n[2]\nnull\n")
    page = watch.open(f"{MAIL}?tab=post")
    page.get_by_label("or a file of JSON lines").set_input_files(file)
    expect(page.get_by_text("3 messages in the file.")).to_be_visible()
    page.get_by_role("button", name="Post", exact=True).click()
    expect(page.get_by_text("3 messages posted:")).to_be_visible()
    assert [message.body for message in client.queue("mail").list()] == [1.1, [2], None]


def test_a_narrow_screen_has_cards_and_no_sideways_scrolling(client: Client, watch: Watch) -> None:
    """Acceptance 19: from 360 px on, which is 200 % of 720; the open message is a view of its own."""
    client.queue("mail").create({"_history_ttl": 60, "_dead_letter_queue": "a" * 64, "_max_claim_count": 5})
    client.queue("mail").post_batch([{"text": "x" * 500}] * 3)
    client.queue("mail").pop(1)
    page = watch.page
    page.set_viewport_size({"width": 360, "height": 740})
    for address in (
        "#/",
        "#/p/acme/queues",
        MAIL,
        *(f"{MAIL}?{part}" for part in ("tab=post", "tab=claim", "tab=metadata", "state=history")),
    ):
        watch.open(address)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address
    watch.open(MAIL)
    open_first(page)
    expect(page.locator(".list")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="Close").click()
    expect(page.locator(".list")).to_be_visible()
