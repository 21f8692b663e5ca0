# SPDX-License-Identifier: Apache-2.0
"""All pages of the console, found by following its links, so that new pages are included."""

from playwright.sync_api import Page, expect

from tests.console.conftest import Watch
from zq.client import Client

QUEUES = "queues"
LINKS = "[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))"


def fill(client: Client) -> list[str]:
    """Fill a project for all pages; return the addresses that are not in the navigation."""
    client.queue("mail.dead").create()
    client.queue("mail").create({"_dead_letter_queue": "mail.dead", "_history_ttl": 3600})
    ids = client.queue("mail").post_batch([{"n": number} for number in range(3)])
    client.queue("mail").claim(1, ttl=3600)
    client.topic("news").publish({"n": 1})
    client.queue("mail").stage("night", [1])
    client.fence("etl")
    client.commit("etl", 1)
    topics = ["topics/news", "topics/news?m=1", "topics?tail=**"]
    return [f"{QUEUES}/mail", f"{QUEUES}/mail?m={ids[0]}", *topics, "subscriptions?queue=mail"]


def settled(page: Page) -> None:
    """Wait until the page has loaded."""
    expect(page.locator("h1").first).to_be_visible()
    expect(page.locator("main .loading")).to_have_count(0)


def pages(watch: Watch, known: list[str]) -> list[str]:
    """Return the addresses of all pages in the project, the known ones first."""
    found, at = [QUEUES, *known], 0
    while at < len(found):
        page = watch.open(found[at])
        settled(page)
        found += [link for link in within(page.evaluate(LINKS), watch.project) if link not in found]
        at += 1
    return found


def within(links: list[str], project: str) -> list[str]:
    """Return the links into the project, relative to it."""
    front = f"#/p/{project}/"
    return [link.removeprefix(front) for link in links if link.startswith(front)]
