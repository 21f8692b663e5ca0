# SPDX-License-Identifier: Apache-2.0
"""Acceptance 20: the console in a stock Firefox, where one is installed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console import crawl
from tests.console.firefox import Firefox
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


def test_a_message_is_posted_claimed_and_released(server: ZqServer, client: Client, firefox: Firefox) -> None:
    """Acceptance 2, 4, 5: digit by digit, as text, and counted."""
    client.queue("mail").create()
    firefox.open(f"{server.url}/console/#/p/acme/queues/mail?tab=post")
    firefox.type("main textarea", BODY)
    firefox.press("Post")
    firefox.wait("document.body.innerText.includes('1 message posted')")
    firefox.go("#/p/acme/queues/mail")
    start = "document.querySelector('td.start')?.textContent"
    assert firefox.wait(start) == BODY
    assert firefox.run("document.querySelectorAll('main img').length") == 0
    firefox.go("#/p/acme/queues/mail?tab=claim")
    firefox.press("Claim")
    firefox.wait("Boolean(document.querySelector('.countdown'))")
    assert client.queue("mail").stats().claimed == 1
    firefox.press("Release all")
    firefox.wait("!document.querySelector('.countdown')")
    firefox.go("#/p/acme/queues/mail")
    firefox.wait("document.querySelector('[data-name=Claims]')?.textContent.trim() === '1'")


def test_every_page_is_there(server: ZqServer, client: Client, firefox: Firefox) -> None:
    """Acceptance 1: as ``crawl`` finds them, without an error in the browser's console."""
    found, at = [crawl.PROJECT, *crawl.fill(client)], 0
    while at < len(found):
        firefox.open("about:blank")
        firefox.open(f"{server.url}/console/{found[at]}")
        firefox.wait(READY)
        links = json.loads(firefox.run(LINKS))
        found += [link for link in links if link.startswith("#/p/acme/") and link not in found]
        at += 1
    assert len(found) > 10


def test_large_bodies_and_each_state_are_shown(server: ZqServer, client: Client, firefox: Firefox) -> None:
    """Acceptance 6, 8: bodies come cut, one is opened whole; each tab has its own messages and their number."""
    queue = client.queue("large")
    queue.create({"_default_message_delay": 300})
    for number in range(4):
        queue.post({"number": number, "text": "x" * 250_000}, delay=0)
    queue.post("late")
    queue.claim(limit=1)
    firefox.open(f"{server.url}/console/#/p/acme/queues/large")
    tabs = "[...document.querySelectorAll('nav.tabs a')].map(a => a.textContent).join()"
    firefox.wait(f"{tabs}.startsWith('Ready 3,Delayed 1,Claimed 1,')")
    for state, rows in (("claimed", 1), ("delayed", 1), ("", 3)):
        firefox.go(f"#/p/acme/queues/large?state={state}")
        firefox.wait(f"document.querySelectorAll('main tbody tr[data-row]').length === {rows}")
    assert firefox.run("document.querySelector('main tbody').textContent.length") < 2000
    firefox.run("document.querySelector('main tbody th a').click()")
    firefox.press("Show the whole body")
    firefox.press("Raw")
    assert firefox.wait("document.querySelector('.body pre')?.textContent.length") > 250_000


def test_what_waits_longest_is_named_first(server: ZqServer, client: Client, firefox: Firefox) -> None:
    """Acceptance 3, 7: the overview's first line, and the list by age, by depth and by name."""
    for number in range(12):
        client.queue(f"jobs.{number:02}").create()
    client.queue("jobs.07").post("stuck")
    for count in (1, 2, 3):
        client.queue(f"jobs.{count:02}").post_batch([count] * count)
    firefox.open(f"{server.url}/console/#/p/acme")
    first = "document.querySelector('main tbody th')?.textContent"
    firefox.wait(f"{first} === 'jobs.07'")
    for sort, name in (("oldest", "jobs.07"), ("ready", "jobs.03"), ("name", "jobs.00")):
        firefox.go(f"#/p/acme/queues?sort={sort}")
        firefox.wait(f"{first} === '{name}' && document.querySelectorAll('main tbody tr').length === 12")
