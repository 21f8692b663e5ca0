# SPDX-License-Identifier: Apache-2.0
"""The overview page of a project."""

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import Watch
from zq.client import Client

pytestmark = pytest.mark.slow


def until(condition: Callable[[], object], page: Page, seconds: float) -> None:
    """Wait for a condition while the page keeps running."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "It has not come."
        page.wait_for_timeout(200)


def test_a_queue_whose_consumer_has_stopped_is_the_first(client: Client, watch: Watch) -> None:
    """A stuck queue is the first of fifty, with its age; dead letters have a separate list (acceptance 3).

    In an empty project the overview links to the page of queues.
    """
    page = watch.open()
    expect(page.get_by_text("This project has no queues")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Queues").click()
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    names = [f"jobs.{number:02}" for number in range(50)]
    for name in names:
        client.queue(name).create({"_dead_letter_queue": "dead", "_max_claim_count": 3})
    client.queue("dead").post_batch([1, 2])
    client.queue("jobs.23").post("stuck")
    posted = time.time()
    watch.open()
    oldest = page.get_by_role("region", name="Oldest", exact=True)

    def first() -> bool:
        for name in names[::10]:
            client.queue(name).post(1)
            client.queue(name).pop(1)
        return oldest.locator("tbody th").all_inner_texts()[:1] == ["jobs.23"]

    until(first, page, 60)

    def told() -> bool:
        age = float(re.sub(r" s$", "", oldest.locator("tbody td").first.inner_text()))
        return abs(age - (time.time() - posted)) <= 10

    until(told, page, 60)
    letters = page.get_by_role("region", name="Dead letters")
    expect(letters.locator("tbody tr")).to_have_text("dead2")
    expect(page.get_by_text("51 queues")).to_be_visible()
    oldest.get_by_role("link", name="jobs.23").click()
    expect(page.get_by_role("heading", name="jobs.23", level=1)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
