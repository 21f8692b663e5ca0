# SPDX-License-Identifier: Apache-2.0
"""A large commit on a real server, and what another tenant feels of it; ``bench.commits`` measures more of it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench.commits import memory
from tests.servers import ZqServer, ask

POST = 1000
# Of the embedded store so many that commit 31fb2b5 would have held 110 MB more: 1.8 kB for each.
MESSAGES = {"rocksdb": 60_000}
FEWER = 12_000
# Bytes by which the server may grow during a commit.
GROWTH = 100_000_000
RIVAL = {"X-Project-ID": "rival"}
# Seconds that a neighbour may wait, but for two times at which the machine may have stood still: on commit 31fb2b5 a
# commit ten times as large stopped it for longer.
GAP = 5.0
# Requests of the neighbour that are answered before the commit is done, at least.
ANSWERED = 10


def test_others_are_served_while_a_large_commit_runs(store_uri: str) -> None:
    """S4, S6: between its slices; its messages become visible meanwhile, in order, no one waits for long, and the
    server does not hold them all."""
    messages = MESSAGES.get(store_uri.partition(":")[0], FEWER)
    with ZqServer(store_uri) as server, ThreadPoolExecutor(1) as pool:
        for first in range(0, messages, POST):
            bodies = {"messages": [{"body": first + at, "ttl": 3600} for at in range(POST)]}
            path = "/v2/queues/out/messages?stage=s.1"
            assert ask(server.url, "POST", path, bodies, headers=RIVAL, timeout=60).status == 202
        body = {"producer": "etl", "batch": 1, "publish": [{"stage": "s.1", "messages": messages}]}
        done = threading.Event()

        def commit() -> int:
            try:
                while True:
                    answer = ask(server.url, "POST", "/v2/commits", body, headers=RIVAL, timeout=120)
                    if answer.status != 202:
                        assert answer.document["published"] == messages
                        return answer.status
                    assert answer.headers["retry-after"] == "1"
            finally:
                done.set()

        before = peak = memory(server)
        running = pool.submit(commit)
        waits, seen = [], set()
        while not done.is_set():
            began = time.monotonic()
            assert ask(server.url, "POST", "/v2/queues/mine/messages", {"messages": [{"body": 1}]}).status == 201
            waits.append(time.monotonic() - began)
            stats = ask(server.url, "GET", "/v2/queues/out/stats", headers=RIVAL).document["messages"]
            seen.add(stats["total"])
            peak = max(peak, memory(server))
        assert running.result() == 200
        assert len(waits) >= ANSWERED, waits
        assert sorted(waits)[-3] < GAP, sorted(waits)[-5:]
        assert seen - {0, messages}, "messages become visible slice by slice"
        last = ask(server.url, "GET", "/v2/queues/out/stats", headers=RIVAL).document["messages"]
        assert last["total"] == messages
        assert (peak - before) * 1024 < GROWTH, (before, peak)
