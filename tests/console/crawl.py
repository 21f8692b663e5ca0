# SPDX-License-Identifier: Apache-2.0
"""Every page that the console has, found by its own links: a page that comes later is looked at as well."""

from playwright.sync_api import Page, expect

from tests.console.conftest import Watch
from zq.client import Client

PROJECT = "#/p/acme/queues"
LINKS = "[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))"


def fill(client: Client) -> list[str]:
    """Put into a project what its pages show; the addresses that no navigation has."""
    client.queue("mail.dead").create()
    client.queue("mail").create({"_dead_letter_queue": "mail.dead", "_history_ttl": 3600})
    ids = client.queue("mail").post_batch([{"n": number} for number in range(3)])
    client.queue("mail").claim(1, ttl=3600)
    client.topic("news").publish({"n": 1})
    client.queue("mail").stage("night", [1])
    client.fence("etl")
    client.commit("etl", 1)
    topics = ["#/p/acme/topics/news", "#/p/acme/topics/news?m=1", "#/p/acme/topics?tail=**"]
    return [f"{PROJECT}/mail", f"{PROJECT}/mail?m={ids[0]}", *topics, "#/p/acme/subscriptions?queue=mail"]


def settled(page: Page) -> None:
    """The page shows what it has to show."""
    expect(page.locator("h1").first).to_be_visible()
    expect(page.locator("main .loading")).to_have_count(0)


def pages(watch: Watch, known: list[str]) -> list[str]:
    """All addresses, the known ones first."""
    found, at = [PROJECT, *known], 0
    while at < len(found):
        page = watch.open(found[at])
        settled(page)
        found += [link for link in page.evaluate(LINKS) if link.startswith("#/p/acme/") and link not in found]
        at += 1
    return found
