# SPDX-License-Identifier: Apache-2.0
"""Isolation of tenants (tenancy 10): rates apply to all servers of a store together.

``python -m bench.neighbours`` prints latencies, which no test could assert on a busy machine.
``tests/unit/test_rates.py`` tests the exact sharing of a rate among servers with a clock of its own.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import new_token
from tests.servers import Lost, ZqServer, ask, wait_for
from zq.turns import SWITCH_INTERVAL

# Requests per second of a project, which even a busy machine exceeds.
RATE = 10
CONFIG = f"[DEFAULT]\nauth_strategy = token\n[quota]\nrequests = {RATE}\n"
QUEUE = "/v2/queues/jobs"


def bearer(uri: str, project: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {new_token(uri, project)}", "X-Project-ID": project}


def until(over: threading.Event, pause: float, work: Callable[[], object]) -> threading.Thread:
    """Start a thread that repeats this work until ``over`` is set."""

    def run() -> None:
        while not over.wait(pause):
            with contextlib.suppress(Lost):
                work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.store_of_the_day
def test_a_tenant_beyond_its_rate_takes_nothing_of_anothers(store_uri: str) -> None:
    """A tenant that exceeds its rate several times gets 429; another within its rate gets every response."""
    greedy, modest = bearer(store_uri, "greedy"), bearer(store_uri, "modest")
    statuses: dict[str, Counter[int]] = {"greedy": Counter(), "modest": Counter()}
    over = threading.Event()
    with ZqServer(store_uri, config=CONFIG) as server:

        def post(name: str, headers: dict[str, str]) -> None:
            posted = {"messages": [{"body": "x" * 1000}]}
            statuses[name][ask(server.url, "POST", f"{QUEUE}/messages", posted, headers=headers).status] += 1

        threads = [until(over, 0.0, lambda: post("greedy", greedy)) for _ in range(6)]
        threads.append(until(over, 0.2, lambda: post("modest", modest)))
        began = time.monotonic()
        over.wait(5)
        try:
            wait_for(lambda: statuses["greedy"][429] and statuses["modest"][201] > 5, 60, "it is told 429")
        finally:
            over.set()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
    assert statuses["modest"].keys() == {201}, statuses
    assert statuses["modest"][201] > 5
    assert statuses["greedy"].keys() <= {201, 429}, statuses
    assert statuses["greedy"][201] <= RATE * (seconds + 2) * 1.1, statuses
    assert statuses["greedy"][429] > 0, statuses


TELLING = """\
import atexit, os, sys
atexit.register(lambda: open(f"{os.environ['ZQ_TEST_FOLDER']}/{os.getpid()}", "w").write(str(sys.getswitchinterval())))
"""


def test_threads_take_short_turns(tmp_path: Path) -> None:
    """A large request does not hold the interpreter for Python's default interval of five milliseconds."""
    (tmp_path / "sitecustomize.py").write_text(TELLING)
    env = {"PYTHONPATH": str(tmp_path), "ZQ_TEST_FOLDER": str(tmp_path)}
    with ZqServer("memory:", env=env) as server:
        worker = server.worker_pids[0]
        assert server.terminate() == 0
    assert float((tmp_path / str(worker)).read_text()) == pytest.approx(SWITCH_INTERVAL)
