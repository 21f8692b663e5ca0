# SPDX-License-Identifier: Apache-2.0
"""Sizes and speeds of the console: ``python -m tests.bench.console [seconds of each page]``.

Prints the files and what they weigh, when a page is first painted and when it can be used (the median of five, nothing
cached), and of each page the requests a second and the heap after so many seconds. The browser is that of
``tests/console``.
"""

import statistics
import sys
import time

from playwright.sync_api import Browser, sync_playwright

from tests.console import crawl
from tests.console.conftest import ARGUMENTS, BROWSER, Watch
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
        watch = Watch(browser.new_context(), url)
        began = time.monotonic()
        watch.open(crawl.PROJECT).locator("tbody tr").first.wait_for()
        usable.append(time.monotonic() - began)
        painted.append(watch.page.evaluate(PAINTED))
        watch.context.close()
    print(f"first paint {statistics.median(painted):.0f} ms, usable {1000 * statistics.median(usable):.0f} ms")


def rest(browser: Browser, url: str, known: list[str], seconds: float) -> None:
    watch = Watch(browser.new_context(), url)
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


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    sizes()
    with ZqServer("memory:") as server, sync_playwright() as playwright:
        with Client(server.url, PROJECT) as client:
            known = crawl.fill(client)
        arguments = [*ARGUMENTS, "--enable-precise-memory-info"]
        browser = playwright.chromium.launch(executable_path=BROWSER, chromium_sandbox=False, args=arguments)
        speeds(browser, server.url)
        rest(browser, server.url, known, seconds)
        browser.close()


if __name__ == "__main__":
    main()
