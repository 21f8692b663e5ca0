# SPDX-License-Identifier: Apache-2.0
"""A large commit on a real server and its effect on another tenant; ``bench.commits`` measures more."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench.commits import memory
from tests.servers import ZqServer, ask

POST = 1000
# Number of messages for which commit 31fb2b5 would have held 110 MB more on the embedded store: 1.8 kB for each.
MESSAGES = {"rocksdb": 60_000}
FEWER = 12_000
# Maximum growth of the server during a commit, in bytes.
GROWTH = 100_000_000
RIVAL = {"X-Project-ID": "rival"}
# Maximum wait of another tenant in seconds, except for two pauses of the machine: on commit 31fb2b5 a commit ten times
# as large stopped it for longer.
GAP = 5.0
# Minimum number of requests of the other tenant that are answered before the commit is done.
ANSWERED = 10


def test_others_are_served_while_a_large_commit_runs(store_uri: str) -> None:
    """Other requests run between the commit's slices, and the server's memory is bounded (S4, S6).

    The messages become visible in order during the commit.
    """
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
