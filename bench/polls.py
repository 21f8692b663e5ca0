# SPDX-License-Identifier: Apache-2.0
"""Costs of long polls: ``python -m bench.polls [driver ...]``, drivers as in ``tests/stores.py``.

Latency: from a post at one server to the response of a claim that waits at another (embedded: the same) server. Crowd:
processor time and memory of a server with a thousand waiting requests, on one queue and on a queue each.
"""

import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tests.servers import CLIENT, PROJECT, ZqServer
from tests.stores import Stores

ROUNDS = 60
CROWD = 1000
# Seconds for which the waiting requests are observed.
WATCHED = 15.0
CONFIG = f"[server]\nthreads = {4 * CROWD + 16}\nmax_waiters = {4 * CROWD}\n"
HEADERS = {"Client-ID": CLIENT, "X-Project-ID": PROJECT}


class Served(Protocol):
    """A running server."""

    @property
    def url(self) -> str: ...


class Line:
    """A persistent connection."""

    def __init__(self, server: Served) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)

    def ask(self, method: str, path: str, document: object = None) -> int:
        self.send(method, path, document)
        return self.answer()

    def send(self, method: str, path: str, document: object = None) -> None:
        self._connection.request(method, path, None if document is None else json.dumps(document), HEADERS)

    def answer(self) -> int:
        reply = self._connection.getresponse()
        reply.read()
        return reply.status


def latency(uri: str) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(ZqServer(uri))
        second = first if uri.startswith("rocksdb:") else stack.enter_context(ZqServer(uri))
        took = handed_over(first, second, ROUNDS)
        cuts = statistics.quantiles(took, n=20)
        print(f"  post to waiter: median {statistics.median(took) * 1e3:.1f} ms, 95 % {cuts[-1] * 1e3:.1f} ms")


def handed_over(poster: Served, waiter: Served, rounds: int) -> list[float]:
    """Return the seconds of each round from a post at one server to the response of a claim that waits at the other."""
    posting, waiting, took = Line(poster), Line(waiter), []
    for _ in range(rounds):
        waiting.send("POST", "/v2/queues/latency/claims?wait=20", {})
        time.sleep(0.1)
        posted = threading.Thread(target=post, args=(posting,))
        began = time.perf_counter()
        posted.start()
        assert waiting.answer() == 201
        took.append(time.perf_counter() - began)
        posted.join()
    return took


def post(line: Line) -> None:
    assert line.ask("POST", "/v2/queues/latency/messages", {"messages": [{"body": 1}]}) == 201


def crowd(uri: str, name: str, queue_of: Callable[[int], str]) -> None:
    with ZqServer(uri, config=CONFIG) as server:
        lines = [Line(server) for _ in range(CROWD)]
        (worker,) = server.worker_pids
        empty = resident(worker)
        for number, line in enumerate(lines):
            line.send("POST", f"/v2/queues/{queue_of(number)}/claims?wait=30", {})
        time.sleep(8)
        before, full = processor(worker), resident(worker)
        time.sleep(WATCHED)
        share = (processor(worker) - before) / WATCHED
        print(f"  {CROWD} waiters, {name}: {share:.1%} of a core, {(full - empty) / CROWD / 1024:.0f} kB each")


def processor(pid: int) -> float:
    """Return the processor time of the process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Return the resident memory of the process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(drivers: list[str]) -> None:
    stores = Stores()
    with tempfile.TemporaryDirectory() as folder:
        for driver in drivers:
            print(driver)
            uri = stores.empty(driver, Path(folder), "a")
            latency(uri)
            crowd(uri, "one queue", lambda _: "crowd")
            crowd(uri, "a queue each", lambda number: f"crowd{number}")
    stores.close()


if __name__ == "__main__":
    main(sys.argv[1:] or ["rocksdb", "redis", "mongodb"])
