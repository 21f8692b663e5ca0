# SPDX-License-Identifier: Apache-2.0
"""The page of one queue: manual claims, exact numbers, files, narrow screens."""

import re
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Watch
from tests.console.test_queue import HOSTILE, MAIL, open_first
from tests.servers import ask, wait_for
from zq.client import Client

pytestmark = pytest.mark.slow

EXACT = '{"n": 9007199254740993, "m": 1.10}'


def test_a_claim_by_hand_ends_with_its_page(client: Client, watch: Watch) -> None:
    """Claimed messages are released when the page is left; moved and buried messages go to the chosen queues."""
    client.queue("mail").create({"_dead_letter_queue": "mail.dead"})
    client.queue("mail").post_batch(["a", "b", "c"])
    page = watch.open(f"{MAIL}?tab=claim")
    page.get_by_label("Messages (1 to 99)").fill("3")
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

    def counts() -> list[tuple[int, int]]:
        stats = [client.queue(name).stats() for name in ("mail", "elsewhere", "mail.dead")]
        return [(each.free, each.claimed) for each in stats]

    wait_for(lambda: counts() == [(1, 0)] * 3, 60, "the claim is released")


def test_numbers_stay_digit_by_digit(client: Client, watch: Watch) -> None:
    """Numbers are shown, copied, saved, edited and posted again without changes (acceptance 4)."""
    client.queue("mail").create()
    raw = f'{{"messages": [{{"body": {EXACT}}}]}}'.encode()
    posted(watch, raw)
    page = watch.open(MAIL)
    open_first(page)
    expect(page.locator(".tree")).to_contain_text("n: 9007199254740993")
    expect(page.locator(".tree")).to_contain_text("m: 1.10")
    page.get_by_role("button", name="Raw").click()
    expect(page.locator("pre")).to_contain_text('"m": 1.10')
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator(".announcer")).to_contain_text("The body was copied to the clipboard.")
    assert page.evaluate("navigator.clipboard.readText()") == EXACT.replace(" ", "")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download").click()
    assert Path(saved.value.path()).read_text() == EXACT.replace(" ", "")
    page.get_by_role("button", name="Post a copy…").click()
    page.get_by_role("button", name="Post", exact=True).click()
    expect(page.get_by_text("1 message posted:")).to_be_visible()
    listed = ask(
        watch.url, "GET", "/v2/queues/mail/messages?echo=true", headers={"X-Project-ID": watch.project}
    ).body.decode()
    assert re.sub(r"\s", "", listed).count(EXACT.replace(" ", "")) == 2


def posted(watch: Watch, raw: bytes) -> None:
    connection = HTTPConnection(urlsplit(watch.url).netloc)
    headers = {"Client-ID": "5" * 32, "X-Project-ID": watch.project, "Content-Type": "application/json"}
    connection.request("POST", "/v2/queues/mail/messages", raw, headers)
    assert connection.getresponse().status == 201
    connection.close()


def test_a_file_of_lines_is_posted_as_it_is(client: Client, watch: Watch, tmp_path: Path) -> None:
    client.queue("mail").create()
    file = tmp_path / "lines"
    file.write_text("1.10\n\n[2]\nnull\n")
    page = watch.open(f"{MAIL}?tab=post")
    page.get_by_label("Or a file with one JSON body per line").set_input_files(file)
    expect(page.get_by_text("3 messages in the file.")).to_be_visible()
    page.get_by_role("button", name="Post", exact=True).click()
    expect(page.get_by_text("3 messages posted:")).to_be_visible()
    assert [message.body for message in client.queue("mail").list()] == [1.1, [2], None]


def test_an_open_message_fills_a_narrow_screen(client: Client, watch: Watch) -> None:
    """The view works from 360 px, also with long names and texts (acceptance 19)."""
    client.queue("mail").create({"_history_ttl": 60, "_dead_letter_queue": "a" * 64, "_max_claim_count": 5})
    client.queue("mail").post_batch([{"text": "x" * 500}] * 3)
    client.queue("mail").pop(1)
    page = watch.page
    page.set_viewport_size({"width": 360, "height": 740})
    watch.open(MAIL)
    open_first(page)
    expect(page.locator(".list")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="Close").click()
    expect(page.locator(".list")).to_be_visible()
