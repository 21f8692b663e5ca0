# SPDX-License-Identifier: Apache-2.0
"""Waiting requests on servers: woken across processes, and answered at once when the server stops."""

import os
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.campaign.histories.runs import embedded
from tests.faults.test_slow_clients_granian import gauge
from tests.servers import CLIENT, PROJECT, Answer, ZqServer, ask, soon, wait_for

WAIT = 25
# Seconds within which a request is woken on a busy machine: less than the five seconds between polls.
WOKEN = 4.0
MEASURED = 7
POST = {"messages": [{"body": "here"}]}

Sent = Callable[..., Future[Answer]]


@pytest.fixture
def send() -> Iterator[Sent]:
    """Return a function that sends a claim and returns once it waits at the server."""
    sent: dict[str, list[Future[Answer]]] = defaultdict(list)
    with ThreadPoolExecutor(16) as pool:

        def begin(server: ZqServer, queue: str = "jobs", wait: int = WAIT) -> Future[Answer]:
            running = pool.submit(ask, server.url, "POST", f"/v2/queues/{queue}/claims?wait={wait}", {}, timeout=60)
            sent[server.url].append(running)
            waiting = sum(not future.done() for future in sent[server.url])
            wait_for(lambda: gauge(server, "zq_waiters ") >= waiting, 60, "it waits")
            return running

        yield begin


def test_a_post_to_one_server_wakes_who_waits_at_another(store_uri: str, send: Sent) -> None:
    """Extensions 2: Wake-ups cross processes. (The embedded store has one process.)"""
    with ZqServer(store_uri) as first, nullcontext(first) if embedded(store_uri) else ZqServer(store_uri) as second:
        waiting: list[Future[Answer]] = []

        def woken(queue: str) -> None:
            assert ask(first.url, "POST", f"/v2/queues/{queue}/messages", POST).status == 201
            assert waiting[-1].result(WAIT).status == 201

        for number in range(MEASURED):
            queue = f"jobs{number}"
            soon(WOKEN, partial(woken, queue), before=lambda queue=queue: waiting.append(send(second, queue)))


@pytest.mark.store_of_the_day
def test_a_delay_that_runs_out_wakes(store_uri: str, send: Sent) -> None:
    """No message is posted at that time: a timer wakes the request."""
    with ZqServer(store_uri) as server:
        ask(server.url, "PUT", "/v2/queues/jobs", {"_default_message_delay": 1})
        waiting: list[Future[Answer]] = []

        def woken() -> None:
            began = time.monotonic()
            assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
            assert waiting[-1].result(WAIT).status == 201
            assert time.monotonic() - began > 0.9

        soon(WOKEN, woken, before=lambda: waiting.append(send(server)))


@pytest.mark.store_of_the_day
def test_the_end_of_a_server_does_not_wait_for_its_waiters(store_uri: str, engine: str, send: Sent) -> None:
    """Extensions 2: Shutdown ends all waits at once."""
    with ZqServer(store_uri, engine=engine) as server:
        running = [send(server, queue) for queue in ("jobs", "jobs", "other")]
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert [future.result(WAIT).status for future in running] == [204] * 3
        assert time.monotonic() - began < WAIT - 5
        assert server.wait(40) == 0


def hang_up_on(server: ZqServer, method: str, path: str) -> None:
    """Send a request that waits, and disconnect."""
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port)) as caller:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nClient-ID: {CLIENT}\r\nX-Project-ID: {PROJECT}\r\n"
        caller.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
        time.sleep(0.3)


def test_nothing_is_taken_for_a_caller_that_has_hung_up(tmp_path: Path) -> None:
    """Messages posted afterwards go to other callers: no claim holds them, and no pop has lost them."""
    queue = "/v2/queues/jobs"
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        hang_up_on(server, "POST", f"{queue}/claims?wait={WAIT}")
        hang_up_on(server, "PUT", f"{queue}/claims/job.1?wait={WAIT}")
        hang_up_on(server, "DELETE", f"{queue}/messages?pop=1&wait={WAIT}")
        for _ in range(3):
            assert ask(server.url, "POST", f"{queue}/messages", POST).status == 201
            time.sleep(0.1)
        assert ask(server.url, "GET", f"{queue}/stats").document["messages"]["free"] == 3


@pytest.mark.store_of_the_day
def test_waiters_leave_threads_for_work(store_uri: str, send: Sent) -> None:
    """If a project uses all its slots, other requests and probes find a thread, and another wait is refused at once."""
    with ZqServer(store_uri, config="[server]\nthreads = 24\nmax_waiters = 16\n") as server:
        running = [send(server) for _ in range(4)]
        turned_away = ask(server.url, "POST", f"/v2/queues/jobs/claims?wait={WAIT}", {})
        assert (turned_away.status, turned_away.headers["retry-after"]) == (204, "1")
        assert server.ready()
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", {"messages": [{"body": n} for n in range(4)]})
        wait_for(lambda: any(future.done() for future in running), 20, "a waiter is served")
        for _ in range(3):
            ask(server.url, "POST", "/v2/queues/jobs/messages", {"messages": [{"body": n} for n in range(10)]})
        assert [future.result(40).status for future in running] == [201] * 4


def test_a_server_with_too_few_threads_is_refused() -> None:
    """The start fails with an error message."""
    server = ZqServer("rocksdb:unused", config="[server]\nthreads = 20\nmax_waiters = 13\n")
    server.launch()
    assert server.wait(60) == 2
    assert "max_waiters + max_streams must be at most threads - 8" in server.stderr
