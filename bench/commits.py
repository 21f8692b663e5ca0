# SPDX-License-Identifier: Apache-2.0
"""Effect of a large commit on another tenant, on each store: ``python -m bench.commits [messages]``.

The neighbour posts, claims and deletes one message at a time: without load, then during the commit of another project,
then without load again. The command prints p50 and p99 of both in milliseconds, their ratio, the duration of the
commit, the memory growth of the server's processes, and the load of the machine.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.servers import ZqServer, ask
from tests.stores import KINDS, Stores

POST = 1000
# Seconds for which the neighbour runs without the commit, each time.
ALONE = 10.0
ATTACKER = {"X-Project-ID": "rival"}


def neighbour(url: str, until: "threading.Event", taken: list[float]) -> None:
    """Send requests and record the milliseconds of each."""

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
    """Return p50, p99 and the maximum."""
    ordered = sorted(taken)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def memory(server: ZqServer) -> int:
    """Return the memory of the server's processes in kB."""
    held = 0
    for pid in [server.pid, *server.worker_pids]:
        status = Path(f"/proc/{pid}/status").read_text()
        held += int(status.partition("VmRSS:")[2].split()[0])
    return held


def commit(server: ZqServer, stages: list[str], messages: int) -> None:
    """Repeat the commit until it is done, and print its duration and memory."""
    before = peak = memory(server)
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.1):
            peak = max(peak, memory(server))

    watcher = threading.Thread(target=watch)
    watcher.start()
    status, answers, began = 0, 0, time.monotonic()
    while status != 200:
        body = {"producer": "etl", "batch": 1, "publish": stages}
        status = ask(server.url, "POST", "/v2/commits", body, headers=ATTACKER, timeout=60).status
        answers += 1
    took = time.monotonic() - began
    ended.set()
    watcher.join()
    grown = f"{before / 1024:.0f} MiB and {(peak - before) / 1024:.0f} more at its most"
    print(f"  commit of {messages:,}: {took:.1f} s, {answers} answers; the server held {grown}")


def measure(uri: str, messages: int) -> None:
    with ZqServer(uri) as server:
        stages = [f"s.{number}" for number in range(-(-messages // 100_000))]
        for first in range(0, messages, POST):
            bodies = {"messages": [{"body": 1, "ttl": 3600}] * min(POST, messages - first)}
            path = f"/v2/queues/out/messages?stage={stages[first // 100_000]}"
            assert ask(server.url, "POST", path, bodies, headers=ATTACKER, timeout=60).status == 202
        taken: dict[str, list[float]] = {"alone": [], "beside": []}
        for name in ("alone", "beside", "alone"):
            ended = threading.Event()
            worker = threading.Thread(target=neighbour, args=(server.url, ended, taken[name]))
            worker.start()
            if name == "beside":
                commit(server, stages, messages)
            else:
                time.sleep(ALONE)
            ended.set()
            worker.join()
        figures = {name: told(its) for name, its in taken.items()}
        for name, (p50, p99, longest) in figures.items():
            print(f"  {name}: p50 {p50:.1f}, p99 {p99:.1f}, longest {longest:.1f} ms of {len(taken[name]):,}")
        print(f"  ratio of p99: {figures['beside'][1] / figures['alone'][1]:.1f}, load {os.getloadavg()[0]:.1f}")


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 276_000
    wanted = sys.argv[2:] or ["rocksdb", "redis", "mongodb"]
    stores = Stores()
    try:
        for driver in wanted:
            assert driver in KINDS
            with tempfile.TemporaryDirectory() as folder:
                print(driver)
                measure(stores.empty(driver, Path(folder), "a"), messages)
    finally:
        stores.close()


if __name__ == "__main__":
    main()
