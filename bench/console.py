# SPDX-License-Identifier: Apache-2.0
"""Sizes and speeds of the console: ``python -m bench.console [seconds of each page [seconds of a tail]]``.

The command prints the files and their sizes, the times until a page is first painted and until it is usable (the median
of five, without cache), and for each page the requests a second and the heap. For the tail of a topic with a thousand
messages a second (acceptance 14: for a minute) it prints whether each message was shown once, and the longest time for
which the page was blocked. The browser is that of ``tests/console``.
"""

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from playwright.sync_api import Browser, sync_playwright

from tests.abilities import browser as browser_path
from tests.campaign.browser import crawl
from tests.campaign.browser.test_tail import FREEZES, publishing
from tests.console.conftest import ARGUMENTS, Watch
from tests.console.test_tail import MADE, opened
from tests.servers import PROJECT, ZqServer
from zq.client import Client
from zq.console.page import read_tree

RUNS = 5
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def sizes() -> None:
    files = read_tree().files
    packed = sum(len(file.packed) for file in files.values())
    print(f"files {len(files)}, gzip {packed:,} B, of these vendored", end=" ")
    print(f"{sum(len(file.packed) for name, file in files.items() if name.startswith('vendor/')):,} B")


def speeds(browser: Browser, url: str) -> None:
    painted, usable = [], []
    for _ in range(RUNS):
        watch = Watch(browser.new_context().new_page(), url, PROJECT)
        began = time.monotonic()
        watch.open(crawl.QUEUES).locator("tbody tr").first.wait_for()
        usable.append(time.monotonic() - began)
        painted.append(watch.page.evaluate(PAINTED))
        watch.context.close()
    print(f"first paint {statistics.median(painted):.0f} ms, usable {1000 * statistics.median(usable):.0f} ms")


def rest(browser: Browser, url: str, known: list[str], seconds: float) -> None:
    watch = Watch(browser.new_context().new_page(), url, PROJECT)
    for address in crawl.pages(watch, known):
        watch.page.goto("about:blank")
        page = watch.open(address)
        crawl.settled(page)
        page.wait_for_timeout(1000)
        before = len(watch.requests)
        page.wait_for_timeout(1000 * seconds)
        asked = (len(watch.requests) - before) / seconds
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        print(f"{asked:5.2f} requests/s {heap:6.1f} MiB  {address}")
    watch.context.close()


def tail(browser: Browser, url: str, seconds: float) -> None:
    watch = Watch(browser.new_context().new_page(), url, PROJECT)
    page = opened(watch)
    page.evaluate(FREEZES)
    with Client(url, PROJECT) as client, ThreadPoolExecutor(1) as publisher:
        began = time.monotonic()
        published = publisher.submit(publishing, client.topic("news"), seconds)
        while not published.done():
            page.wait_for_timeout(100)
        took, ids = time.monotonic() - began, published.result()
        page.locator(".line .id").last.get_by_text(ids[-1]).wait_for()
    late = time.monotonic() - began - took
    once = "each came once" if page.evaluate(MADE) == ids else "WRONG: some were lost, or came twice"
    longest, heap = page.evaluate("[window.longest, performance.memory.usedJSHeapSize]")
    print(
        f"tail: {len(ids):,} published, {len(ids) / took:,.0f}/s; {once}, the last {1000 * late:.0f} ms late;", end=" "
    )
    print(f"longest pause {longest:.0f} ms, heap {heap / 2**20:.1f} MiB")
    watch.context.close()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    tailed = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    sizes()
    with ZqServer("memory:") as server, sync_playwright() as playwright:
        with Client(server.url, PROJECT) as client:
            known = crawl.fill(client)
        arguments = [*ARGUMENTS, "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=browser_path(), chromium_sandbox=False, args=arguments)
        speeds(browser, server.url)
        rest(browser, server.url, known, seconds)
        tail(browser, server.url, tailed)
        browser.close()


if __name__ == "__main__":
    main()
