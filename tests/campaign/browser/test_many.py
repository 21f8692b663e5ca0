# SPDX-License-Identifier: Apache-2.0
"""The queue list of a project with ten thousand queues."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import NOTHING, Watching
from tests.servers import PROJECT, ZqServer
from zq.model import Draft, QueueRef, new_ids
from zq.storage import connect

pytestmark = pytest.mark.slow

NAMES = [f"q{number:05}" for number in range(10_000)]
QUEUES = "queues"


def make(store: str) -> None:
    storage = connect(store)
    queues = [QueueRef(PROJECT, name) for name in NAMES] + [QueueRef("few", name) for name in NAMES[:100]]
    with ThreadPoolExecutor(16) as threads:  # parallel writes share a sync
        list(threads.map(lambda queue: storage.queues.create(queue, b"{}"), queues))
    now = storage.now()
    for count, name in enumerate(NAMES[7::1000], 1):
        drafts = [Draft(id, b"1", 3600, 0, "alice") for id in new_ids(count, now)]
        storage.messages.post(QueueRef(PROJECT, name), drafts, now)
    storage.close()


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


def test_ten_thousand_queues_are_sorted_searched_and_paged(watching: Watching, tmp_path: Path) -> None:
    """The list is usable within a second, sorts by age, depth and name, and has each queue once (acceptance 7).

    A list of a hundred queues sets the time on a slow machine.
    """
    store = f"rocksdb://{tmp_path}/store"
    make(store)
    with ZqServer(store) as server:
        watch = watching(server.url, PROJECT)
        watch.expected |= {0}  # the server ends before the page
        page = watch.open(f"{QUEUES}?sort=ready")
        rows = page.locator("tbody tr")
        expect(page.get_by_text("10,000 queues")).to_be_visible()
        expect(rows.first.locator("th")).to_have_text("q09007", timeout=240_000)  # by the first sweep

        def usable(queues: str) -> float:
            began = time.monotonic()
            watch.open("#/")
            watch.open(f"{queues}?sort=ready")
            expect(rows).to_have_count(100)
            return time.monotonic() - began

        times: list[float] = []
        while not times or (len(times) < 10 and times[-1] >= 1):  # other tests run in parallel
            times.append(usable(QUEUES))
        assert times[-1] < 1 or min(times) < 2 * min(usable("#/p/few/queues") for _ in range(3)), times
        expect(rows.nth(9).locator("[data-name=Ready]")).to_have_text("1")
        page.get_by_role("button", name="Oldest").click()
        expect(page.locator("[aria-sort]")).to_contain_text("Oldest")
        expect(rows.nth(10).locator("[data-name=Oldest]")).to_have_text(NOTHING)
        page.get_by_label("Search for queues by name").fill("q0123")
        expect(rows).to_have_count(10)
        page.get_by_label("Search for queues by name").fill("")
        page.get_by_role("button", name="Name").click()
        expect(rows.first.locator("th")).to_have_text("q00000")
        page.set_viewport_size({"width": 1280, "height": 300})  # a hundred pages are not to be rendered in full
        found = names(page)
        while (following := page.get_by_role("button", name="Next page")).count():
            following.click()
            expect(page.get_by_text(f"{len(found) + 1:,} to ")).to_be_visible()
            found += names(page)
        assert found == NAMES
        page.get_by_role("button", name="First page").click()
        expect(rows.first.locator("th")).to_have_text("q00000")
