# SPDX-License-Identifier: Apache-2.0
"""The console in a stock Firefox, if one is installed (acceptance 20)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaign.browser import crawl
from tests.campaign.browser.firefox import Firefox
from tests.servers import ZqServer
from zq.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.ability("firefox")]

BODY = '{"n":9007199254740993,"m":1.10,"x":"<img src=x onerror=alert(1)>"}'
READY = "Boolean(document.querySelector('h1')) && !document.querySelector('main .loading')"
LINKS = "JSON.stringify([...document.querySelectorAll('nav a')].map(a => a.getAttribute('href')))"


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    with Firefox(tmp_path) as opened:
        yield opened
        assert opened.logged == []


def test_a_message_is_posted_claimed_and_released(
    server: ZqServer, client: Client, project: str, firefox: Firefox
) -> None:
    """The body keeps its digits, is shown as text, and the claim is counted (acceptance 2, 4, 5)."""
    client.queue("mail").create()
    firefox.open(f"{server.url}/console/#/p/{project}/queues/mail?tab=post")
    firefox.type("main textarea", BODY)
    firefox.press("Post")
    firefox.wait("document.body.innerText.includes('1 message posted')")
    firefox.go(f"#/p/{project}/queues/mail")
    start = "document.querySelector('td.start')?.textContent"
    assert firefox.wait(start) == BODY
    assert firefox.run("document.querySelectorAll('main img').length") == 0
    firefox.go(f"#/p/{project}/queues/mail?tab=claim")
    firefox.press("Claim")
    firefox.wait("Boolean(document.querySelector('.countdown'))")
    assert client.queue("mail").stats().claimed == 1
    firefox.press("Release all")
    firefox.wait("!document.querySelector('.countdown')")
    firefox.go(f"#/p/{project}/queues/mail")
    firefox.wait("document.querySelector('[data-name=Claims]')?.textContent.trim() === '1'")


def test_every_page_is_there(server: ZqServer, client: Client, project: str, firefox: Firefox) -> None:
    """The crawled pages have no error in the browser's console (acceptance 1)."""
    found, at = [crawl.QUEUES, *crawl.fill(client)], 0
    while at < len(found):
        firefox.open("about:blank")
        firefox.open(f"{server.url}/console/#/p/{project}/{found[at]}")
        firefox.wait(READY)
        links = json.loads(firefox.run(LINKS))
        found += [link for link in crawl.within(links, project) if link not in found]
        at += 1
    assert len(found) > 10
