# SPDX-License-Identifier: Apache-2.0
"""The charts of a queue, with one and with two servers."""

import time

import pytest
from playwright.sync_api import Page, expect

from tests.console.conftest import NOTHING, Watch, Watching
from tests.console.test_overview import until
from tests.servers import ZqServer
from tests.stores import RedisServer
from zq.client import Client

pytestmark = pytest.mark.slow

POSTED = "Messages per second, as a table"


def cells(page: Page, name: str, column: int) -> list[str]:
    """Return a column of a chart's table, latest first."""
    table = page.get_by_role("region", name=name, exact=True)
    expect(table.locator("tbody tr")).to_have_count(20)
    return table.locator(f"tbody tr td:nth-child({column + 1})").all_inner_texts()


def test_a_chart_has_its_past_at_opening(client: Client, watch: Watch) -> None:
    """The chart has samples from before the page was opened, as lines, a caption and a table (acceptance 10)."""
    client.queue("mail").create({"_dead_letter_queue": "mail.dead", "_max_claim_count": 2})
    began, rounds = time.monotonic(), 0
    while time.monotonic() < began + 24:
        rounds += 1
        client.queue("mail").post_batch([1, 2, 3])
        client.queue("mail").pop(1)
        watch.page.wait_for_timeout(250)
    page = watch.open("queues/mail")
    page.get_by_text("Charts", exact=True).click()
    expect(page.locator(".plot canvas")).to_have_count(2)
    for summary in page.locator(".chart summary").all():
        summary.click()
    posted = [float(cell) for cell in cells(page, POSTED, 1) if cell not in (NOTHING, "<0.1")]
    assert 0.4 * 3 * rounds / 24 <= max(posted) <= 3 / 0.25 + 1
    depths = [int(cell.replace(",", "")) for cell in cells(page, "Messages, as a table", 1) if cell != NOTHING]
    assert len(depths) >= 1
    assert depths[0] > 0
    expect(page.locator(".chart figcaption").first).to_contain_text("ready: ")
    assert page.locator(".legend line").nth(1).get_attribute("stroke-dasharray") == "8 4"
    tiles = page.get_by_role("region", name="Figures")
    expect(tiles).to_contain_text("in mail.dead")
    page.get_by_label("Period").select_option("10800")
    expect(page.get_by_label("Period")).to_have_value("10800")
    assert "window=10800" in page.url
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")


def test_figures_are_those_of_both_servers_and_go_on_without_one(watching: Watching, project: str) -> None:
    """The rates include both servers and continue without a zero after one is killed (acceptance 9)."""
    with RedisServer() as store, ZqServer(store.uri) as one, ZqServer(store.uri) as other:
        watch = watching(one.url)
        with Client(one.url, project) as here, Client(other.url, project) as there:
            here.queue("mail").create()
            page = watch.open("queues/mail")
            page.get_by_text("Charts", exact=True).click()
            page.locator(".chart summary").last.click()

            def both() -> bool:
                here.queue("mail").post_batch([1] * 5)
                there.queue("mail").post_batch([1] * 5)
                return any(cell != NOTHING and float(cell) > 20 for cell in rates(page))

            until(both, page, 60)
            expect(page.get_by_text("reported by 2 servers")).to_be_visible()
            other.kill()
            seen = len([cell for cell in rates(page) if cell != NOTHING])

            def alone() -> bool:
                here.queue("mail").post_batch([1] * 5)
                return len([cell for cell in rates(page) if cell != NOTHING]) >= seen + 2

            until(alone, page, 60)
            known = [cell for cell in rates(page) if cell != NOTHING][: seen + 2]
            assert "0" not in known[:3]
            expect(page.get_by_text("reported by 2 servers")).to_have_count(0, timeout=60_000)
            watch.expected.add(0)  # the server ends before the page


def rates(page: Page) -> list[str]:
    return cells(page, POSTED, 1)
