# SPDX-License-Identifier: Apache-2.0
"""What another tenant feels while a large commit runs, on each store: ``python -m tests.bench.commits [messages]``.

The neighbour posts, claims and deletes one message at a time, first alone, then beside the commit of another project.
Prints p50 and p99 of both in milliseconds, their ratio, and how long the commit took.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.servers import ZqServer, ask
from tests.stores import DRIVERS, Stores

POST = 1000
ALONE = 10.0
"""Seconds for which the neighbour is alone."""
ATTACKER = {"X-Project-ID": "rival"}


def neighbour(url: str, until: "threading.Event", taken: list[float]) -> None:
    """Work, and note the milliseconds of each request."""

    def timed(*request: Any) -> Any:
        began = time.perf_counter()
        answer = ask(url, *request, timeout=60)
        taken.append(1000 * (time.perf_counter() - began))
        return answer

    while not until.is_set():
        assert timed("POST", "/v2/queues/mine/messages", {"messages": [{"body": 1}]}).status == 201
        claim = timed("POST", "/v2/queues/mine/claims?limit=1", {"ttl": 60, "grace": 60})
        assert claim.status == 201
        assert timed("DELETE", claim.document["messages"][0]["href"], None).status == 204


def told(taken: list[float]) -> tuple[float, float, float]:
    """p50, p99 and the longest."""
    ordered = sorted(taken)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def measure(uri: str, messages: int) -> None:
    with ZqServer(uri) as server:
        stages = [f"s.{number}" for number in range(-(-messages // 100_000))]
        for first in range(0, messages, POST):
            bodies = {"messages": [{"body": 1, "ttl": 3600}] * min(POST, messages - first)}
            path = f"/v2/queues/out/messages?stage={stages[first // 100_000]}"
            assert ask(server.url, "POST", path, bodies, headers=ATTACKER, timeout=60).status == 202
        figures = []
        for beside in (False, True):
            ended, taken = threading.Event(), []
            worker = threading.Thread(target=neighbour, args=(server.url, ended, taken))
            worker.start()
            began = time.monotonic()
            if beside:
                status, answers = 0, 0
                while status != 200:
                    body = {"producer": "etl", "batch": 1, "publish": stages}
                    status = ask(server.url, "POST", "/v2/commits", body, headers=ATTACKER, timeout=60).status
                    answers += 1
                print(f"  commit of {messages:,}: {time.monotonic() - began:.1f} s, {answers} answers")
            else:
                time.sleep(ALONE)
            ended.set()
            worker.join()
            figures.append(told(taken))
            name = "beside" if beside else "alone"
            print(f"  {name}: p50 {figures[-1][0]:.1f}, p99 {figures[-1][1]:.1f}, longest {figures[-1][2]:.1f} ms")
        print(f"  ratio of p99: {figures[1][1] / figures[0][1]:.1f}")


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 276_000
    wanted = sys.argv[2:] or ["rocksdb", "redis", "mongodb"]
    stores = Stores()
    try:
        for driver in wanted:
            assert driver in DRIVERS
            with tempfile.TemporaryDirectory() as folder:
                print(driver)
                measure(stores.empty(driver, Path(folder), "a"), messages)
    finally:
        stores.close()


if __name__ == "__main__":
    main()
