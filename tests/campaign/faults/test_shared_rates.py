# SPDX-License-Identifier: Apache-2.0
"""The rate limit of a project across several servers, or several workers of one server (tenancy 10).

``tests/unit/test_rates.py`` tests the exact sharing with a manual clock.
"""

import contextlib
import threading
import time
from pathlib import Path

import pytest

from tests.faults.test_neighbours import bearer, until
from tests.faults.test_tenants_of_a_server import Deployment
from tests.servers import ZqServer, ask
from tests.stores import Stores

# Requests per second of a project.
RATE = 100
# Seconds until servers share the rate, length of a window in which responses are counted, and number of windows.
SETTLED, WINDOW, WINDOWS = 2.0, 6.0, 10
CONFIG = f"[DEFAULT]\nauth_strategy = token\n[quota]\nrequests = {RATE}\n"
# Corresponding values for the workers of one server.
WORKERS_RATE, WORKERS_SETTLED, WORKERS_WINDOW, WORKERS_WINDOWS = 30, 5.0, 5.0, 8


@pytest.mark.parametrize("kind", ["redis", "mongodb"])
def test_three_servers_keep_the_rate_of_a_project_together(kind: str, stores: Stores, tmp_path: Path) -> None:
    """Three servers under excess load together grant the rate within 10 % after two seconds.

    Each server starts with a burst of two seconds, which only sufficient load uses up. A machine that is too busy for
    that, or for an exchange every second, may reach the rate in a later window.
    """
    uri = stores.empty(kind, tmp_path, "a")
    headers = bearer(uri, "acme")
    moments: list[float] = []
    over = threading.Event()
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(ZqServer(uri, config=CONFIG)) for _ in range(3)]

        def get(url: str) -> None:
            if ask(url, "GET", "/v2/queues", headers=headers).status == 200:
                moments.append(time.monotonic())

        threads = [until(over, 0.01, lambda url=server.url: get(url)) for server in servers for _ in range(3)]
        over.wait(SETTLED)
        rates: list[float] = []
        while len(rates) < WINDOWS and not (rates and 0.9 * RATE <= rates[-1] <= 1.1 * RATE):
            begun = time.monotonic()
            over.wait(WINDOW)
            rates.append(sum(begun <= moment < begun + WINDOW for moment in moments) / WINDOW)
        over.set()
        for thread in threads:
            thread.join()
    assert 0.9 * RATE <= rates[-1] <= 1.1 * RATE, rates
    print(f"{kind}: {rates} a second, in windows of {WINDOW:g} s")  # noqa: T201


def test_processes_of_one_store_keep_a_rate_together(tmp_path: Path, stores: Stores) -> None:
    """Two workers of a server share the project's rate, in the first window in which the load exceeds it."""
    deployment = Deployment(tmp_path, "gunicorn", stores.empty("redis", tmp_path, "a"))
    deployment.write(requests=WORKERS_RATE, workers=2)
    moments: list[float] = []
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.02):
            if deployment.ask("GET", "/v2/queues").status == 200:
                moments.append(time.monotonic())

    with deployment.server:
        callers = [threading.Thread(target=work) for _ in range(6)]
        for caller in callers:
            caller.start()
        over.wait(WORKERS_SETTLED)
        rates: list[float] = []
        while len(rates) < WORKERS_WINDOWS and not (rates and 0.8 * WORKERS_RATE <= rates[-1] <= 1.2 * WORKERS_RATE):
            begun = time.monotonic()
            over.wait(WORKERS_WINDOW)
            rates.append(sum(begun <= moment < begun + WORKERS_WINDOW for moment in moments) / WORKERS_WINDOW)
        over.set()
        for caller in callers:
            caller.join()
    assert 0.8 * WORKERS_RATE <= rates[-1] <= 1.2 * WORKERS_RATE, rates
