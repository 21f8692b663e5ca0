# SPDX-License-Identifier: Apache-2.0
"""Metrics of several worker processes: each page has the totals of all, including dead ones."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import ZqServer, ask, wait_for
from tests.stores import RedisServer, StoreServer

WORKERS, WAITERS = 2, 7
CONFIG = f"[server]\nworkers = {WORKERS}\nmax_waiters = {WAITERS}\n"
POSTS = "/v2/queues/jobs/messages"
# This many pages include both workers, because each is requested on a connection of its own.
SCRAPES = 8


@pytest.fixture(scope="module")
def store() -> Iterator[StoreServer]:
    with RedisServer() as server:
        yield server


def figures(server: ZqServer) -> dict[str, float]:
    """Return the samples of a page except histograms, by name and labels."""
    page = ask(server.url, "GET", "/metrics", headers={"Accept": "text/plain"})
    assert page.status == 200
    return {
        " ".join([sample.name, *(value for _, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(page.body.decode())
        for sample in family.samples
        if family.type != "histogram"
    }


def post(server: ZqServer, count: int) -> None:
    """Post ``count`` messages, each by a request and a connection of its own."""
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda body: ask(server.url, "POST", POSTS, {"messages": [{"body": body}]}), range(count))
        assert [answer.status for answer in answers] == [201] * count


def agree(server: ZqServer, posted: int) -> None:
    """Assert that every page has these counts of messages and requests, every worker's slots, and one store."""

    def told() -> bool:
        pages = [figures(server) for _ in range(SCRAPES)]
        return all(
            page["zq_messages_posted_total"] == posted
            and page["zq_requests_total POST /v2/queues/{queue}/messages 201"] == posted
            and page["zq_waiters_limit"] == WORKERS * WAITERS
            and page["zq_waiters"] == 0
            and page["zq_store_up"] == 1
            and 60 <= page["zq_queue_messages ready"] <= posted  # ten seconds old
            for page in pages
        )

    wait_for(told, 60, f"every page tells of {posted} messages")


def folder_of(server: ZqServer) -> Path:
    """Return the folder of the workers' counters: the master keeps the owner's file open."""
    opened = [os.path.realpath(link) for link in Path(f"/proc/{server.pid}/fd").iterdir()]
    [owner] = [Path(path) for path in opened if "zq-metrics-" in path]
    return owner.parent


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_workers_are_counted_together(store: StoreServer, engine: str) -> None:
    """Counts survive a killed and replaced worker; in the end no file is left."""
    with ZqServer(f"{store.uri.rpartition('/')[0]}/{len(engine)}", engine=engine, config=CONFIG) as server:
        post(server, 60)
        agree(server, 60)
        victim = server.worker_pids[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: len(set(server.worker_pids) - {victim}) == WORKERS, 60, "another worker is there")
        agree(server, 60)
        post(server, 40)
        agree(server, 100)
        folder = folder_of(server)
        assert folder.is_dir()
        server.terminate()
        assert not folder.exists()
