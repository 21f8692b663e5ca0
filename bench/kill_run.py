# SPDX-License-Identifier: Apache-2.0
"""A test of pipelines while drivers and servers are killed: each event must arrive exactly once.

``python -m bench.kill_run [--events 1000000] [--kills 3] [--cluster] [--store URI]`` kills drivers and servers
``--kills`` times each. Servers need a persistent store, by default the embedded one. With ``--cluster``, it uses a
standalone master with two workers. It prints the results, or the error.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.spark_cluster import Cluster, ended
from tests.servers import ZqServer
from tests.spark.conftest import LIMITS, prepared
from zq.client import Client
from zq.errors import ZqError

PROJECT = "kills"
# Maximum number of messages of a round.
LARGEST = 20_000
# Distance between events that are not JSON.
BROKEN = 1000


class Drivers:
    """The driver, restarted one process at a time."""

    def __init__(self, url: str, master: str, most: int, log: Path) -> None:
        self._command = [sys.executable, "-m", "bench.kill_run_driver", url, PROJECT, master, str(most)]
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None
        self.starts = self.failures = 0

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill the driver, its JVM and its Python workers at once."""
        if self._running is not None:
            ended(self._running)

    def over(self) -> bool:
        """Return whether the driver has ended successfully. A driver that failed is restarted, as by a supervisor."""
        assert self._running is not None
        if self._running.poll() is None:
            return False
        if self._running.returncode:
            self.failures += 1
            assert self.failures < 10, self._log.read_text()[-4000:]
            self.start()
            return False
        return True


class Run:
    """A run with ``count`` events."""

    def __init__(self, events: int, kills: int, client: Client, drivers: Drivers, server: ZqServer) -> None:
        self.count = events
        self.kills = kills
        self.client = client
        self.drivers = drivers
        self.server = server
        self.patience = 300 + events // 300

    def fill(self) -> None:
        """Post JSON as text, like other programs; one event in ``BROKEN`` is not JSON."""
        texts = (json.dumps({"n": n, "kind": "ab"[n % 2]}) if n % BROKEN else f"broken {n}" for n in range(self.count))
        self.client.queue("raw").post_many(texts, ttl=86400)

    def kill(self) -> None:
        """Kill a driver and a server in turn, evenly over the events, and at a random time of a round."""
        for number in range(1, 2 * self.kills + 1):
            place = self.count * number // (2 * self.kills + 1)
            assert self.until(place), "all is done before all kills are"
            time.sleep(random.uniform(0, 2))
            if number % 2:
                print(f"{place} events: the driver is killed", flush=True)
                self.drivers.kill()
                self.drivers.start()
            else:
                print(f"{place} events: the server is killed", flush=True)
                self.server.kill()
                self.server.start()

    def until(self, place: int) -> bool:
        """Wait until ``place`` events have arrived. Return False if the driver ends before."""
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            if self.drivers.over():
                return False
            with suppress(ZqError):
                if self.client.queue("clean").stats().total >= place:
                    return True
            time.sleep(0.2)
        raise AssertionError(f"{place} events do not arrive.")

    def check_history(self) -> None:
        """Assert that each event is stored once: in ``clean`` or, if it is not JSON, in the dead-letter queue."""
        seen = Counter(message.body["n"] for message in self.client.queue("clean").list(page=1000))
        dead = Counter(message.body for message in self.client.queue("raw-dlq").list(page=1000))
        assert self.client.queue("raw").stats().total == 0
        assert set(seen.values()) | set(dead.values()) == {1}
        assert len(dead) == len(range(0, self.count, BROKEN))
        assert set(seen) == {n for n in range(self.count) if n % BROKEN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--store", default="")
    given = parser.parse_args()
    prepared()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = stack.enter_context(Cluster(folder)).url if given.cluster else "local[2,3]"
        server = stack.enter_context(ZqServer(given.store or f"rocksdb://{folder}/store", config=LIMITS))
        client = stack.enter_context(Client(server.url, PROJECT))
        drivers = Drivers(server.url, master, min(LARGEST, given.events // 6), folder / "drivers.log")
        stack.callback(drivers.kill)
        run = Run(given.events, given.kills, client, drivers, server)
        run.fill()
        began = time.monotonic()
        drivers.start()
        run.kill()
        assert run.until(given.events + 1) is False
        took = time.monotonic() - began
        run.check_history()
    print(
        f"{given.events} events, {given.kills} drivers and as many servers killed, {drivers.failures} drivers failed: "
        f"each event exactly once. {took:.0f} s, {given.events / took:.0f} events/s"
    )


if __name__ == "__main__":
    main()
