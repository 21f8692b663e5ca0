# SPDX-License-Identifier: Apache-2.0
"""The proof of pipelines: events go through while drivers and servers are killed, and each arrives exactly once.

A few thousand events, one driver and one server die, unless told otherwise: ``ZQ_KILL_RUN_EVENTS=1000000``,
``ZQ_KILL_RUN_KILLS=3`` (of each), ``ZQ_KILL_RUN_CLUSTER=1``: on a standalone master with two workers of its own.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.servers import ZqServer
from tests.spark.cluster import Cluster, ended
from tests.spark.conftest import LIMITS, prepared
from zq.client import Client
from zq.errors import ZqError

pytest.importorskip("pyspark")

EVENTS = int(os.environ.get("ZQ_KILL_RUN_EVENTS", "6000"))
KILLS = int(os.environ.get("ZQ_KILL_RUN_KILLS", "1"))
CLUSTER = os.environ.get("ZQ_KILL_RUN_CLUSTER") == "1"
BROKEN = 1000
"""Every so many-th event is no JSON."""
ROUND = min(20_000, EVENTS // 6)
PATIENCE = 120 + EVENTS // 500
"""Seconds within which all is to be over."""


class Drivers:
    """One at a time."""

    def __init__(self, url: str, project: str, master: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.kill_run", url, project, master, str(ROUND)]
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """The driver, its JVM and its workers in Python, at once."""
        if self._running is not None:
            ended(self._running)

    def over(self) -> bool:
        """Whether it has ended by itself: all is done. A driver that failed is started again, as a supervisor would."""
        assert self._running is not None
        if self._running.poll() is None:
            return False
        if self._running.returncode:
            assert self.starts < 4 * KILLS + 4, self._log.read_text()[-4000:]
            self.start()
            return False
        return True


@pytest.mark.timeout(PATIENCE + 120)
def test_each_event_arrives_once_whatever_dies(project, tmp_path) -> None:
    """Also events that are none: as dead letters, with a reason."""
    prepared()
    with ExitStack() as stack:
        master = stack.enter_context(Cluster(tmp_path)).url if CLUSTER else "local[2,3]"
        server = stack.enter_context(ZqServer(f"rocksdb://{tmp_path}/store", config=LIMITS))
        client = stack.enter_context(Client(server.url, project))
        drivers = Drivers(server.url, project, master, tmp_path / "drivers.log")
        stack.callback(drivers.kill)
        client.queue("raw").post_many(events(), ttl=86400)
        began = time.monotonic()
        drivers.start()
        for number, place in enumerate(deaths()):
            assert until(client, place, drivers), "all is done before all kills are"
            time.sleep(random.uniform(0, 1))  # somewhere in a round
            if number % 2:
                server.kill()
                server.start()
            else:
                drivers.kill()
                drivers.start()
        assert until(client, EVENTS + 1, drivers) is False
        took = time.monotonic() - began
        seen = Counter(message.body["n"] for message in client.queue("clean").list(page=1000))
        dead = Counter(message.body for message in client.queue("raw-dlq").list(page=1000))
        assert client.queue("raw").stats().total == 0
    told = f"{EVENTS} events, {drivers.starts - 1} drivers anew, {took:.0f} s, {EVENTS / took:.0f} events/s"
    sys.stderr.write(told + "\n")
    assert set(seen.values()) | set(dead.values()) == {1}
    assert len(dead) == len(range(0, EVENTS, BROKEN))
    assert set(seen) == {n for n in range(EVENTS) if n % BROKEN}


def events() -> Iterator[object]:
    """JSON as text, as other programs post it; some are none."""
    for n in range(EVENTS):
        yield json.dumps({"n": n, "kind": "ab"[n % 2]}) if n % BROKEN else f"broken {n}"


def deaths() -> list[int]:
    """After so many events: a driver, a server, and so on."""
    return [EVENTS * number // (2 * KILLS + 1) for number in range(1, 2 * KILLS + 1)]


def until(client: Client, place: int, drivers: Drivers) -> bool:
    """Wait until so many events have arrived. False if the driver says before that all is done."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if drivers.over():
            return False
        with suppress(ZqError):
            if client.queue("clean").stats().total >= place:
                return True
        time.sleep(0.1)
    raise AssertionError(f"{place} events do not arrive.")
