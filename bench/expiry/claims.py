# SPDX-License-Identifier: Apache-2.0
"""Claims over HTTP while a million messages fall due, compared with the time before and after (S-B5).

The due messages are in another queue, or spread over the queue of the claims. Latencies are those of requests that
began in the phase; *during* ends when no expired message is left.
"""

import argparse
import itertools
import statistics
import threading
import time
from typing import NamedTuple

from bench.expiry.crowd import QUEUE, fill, opened, post, store
from bench.polls import Line
from tests.servers import ZqServer, ask, wait_for
from zq.model import QueueRef
from zq.model.expiry import Expiry

OTHER = QueueRef(QUEUE.project, "other")
CLAIM = f"/v2/queues/{QUEUE.name}/claims?limit=10"
LEASE = {"ttl": 60, "grace": 60}
# Messages to claim if the due ones are in another queue; otherwise one of them follows every ``SHARE`` due ones.
LIVING = 300_000
SHARE = 9
WARM = 5.0
# Seconds between counts of the expired messages, which cost the store time.
LOOK = 5.0
# Messages a second that a slow machine can post.
LOADING = 9_000


class Sample(NamedTuple):
    """A claim: its start and its duration."""

    began: float
    took: float


class Claimers:
    """Clients with their own connections that claim repeatedly; a context manager that starts and joins them."""

    def __init__(self, server: ZqServer, connections: int, rate: int) -> None:
        self.samples: list[Sample] = []
        self.over = threading.Event()
        self._pause = connections / rate if rate else 0.0
        self._threads = [threading.Thread(target=self._work, args=(Line(server),)) for _ in range(connections)]

    def __enter__(self) -> "Claimers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, line: Line) -> None:
        planned = time.perf_counter()
        while not self.over.is_set():
            began = time.perf_counter()
            status = line.ask("POST", CLAIM, LEASE)
            self.samples.append(Sample(began, time.perf_counter() - began))
            assert status in (201, 204), status
            planned += self._pause
            time.sleep(max(0.0, planned - time.perf_counter()) if self._pause else 0)

    def between(self, first: float, last: float) -> list[float]:
        """Return the durations of claims in a phase, in milliseconds."""
        return [sample.took * 1e3 for sample in self.samples if first <= sample.began < last]


def run(arguments: argparse.Namespace) -> None:
    print(f"\n| {arguments.store}: {arguments.due:,} due | claims/s before, during, after | p50 ms | p99 ms ", end="")
    print("| p50 ratio | p99 ratio | gone after s |")
    print("|---|---|---|---|---|---|---|")
    for number in range(arguments.rounds):
        for queue in (OTHER, QUEUE):
            measure(arguments, number, queue)


def measure(arguments: argparse.Namespace, number: int, queue: QueueRef) -> None:
    """Print a row of the table."""
    with store(arguments.store) as (uri, _):
        due = load(arguments, uri, queue)
        with ZqServer(uri) as server:
            # Earlier, the clients would claim many of the messages that are to fall due.
            wait_for(lambda: time.time() >= due - arguments.seconds - WARM, 3600, "the moment before")
            with Claimers(server, arguments.connections, arguments.rate) as claimers:
                time.sleep(WARM)
                marks = [time.perf_counter()]
                wait_for(lambda: time.time() >= due, 3600, "the moment at which all fall due")
                marks.append(time.perf_counter())
                gone = until_gone(server, arguments.patience)
                marks.append(time.perf_counter())
                time.sleep(arguments.seconds)
                marks.append(time.perf_counter())
        phases = [claimers.between(*pair) for pair in itertools.pairwise(marks)]
    lengths = [last - first for first, last in itertools.pairwise(marks)]
    where = "in the claimed queue" if queue == QUEUE else "in another queue"
    row(f"{where}, round {number + 1}", phases, lengths, gone)


def load(arguments: argparse.Namespace, uri: str, queue: QueueRef) -> float:
    """Fill both queues and return the time at which the messages fall due, some time after the return."""
    with opened(uri, Expiry(sweep=False)) as storage:
        now = storage.now()
        ttl = int(arguments.due / LOADING + 2 * WARM + arguments.seconds) + 60
        if queue == QUEUE:
            pattern = [ttl] * SHARE + [86400]
            for _ in range(0, arguments.due, SHARE * 5000):
                post(storage, queue, pattern * 5000, now)
        else:
            fill(storage, QUEUE, LIVING, now, 86400)
            fill(storage, queue, arguments.due, now, ttl)
        left = now + ttl - storage.now() - arguments.seconds - WARM
        assert left > 0, f"Loading took {-left:.0f} s more than there were."
        return now + ttl


def until_gone(server: ZqServer, patience: float) -> float:
    """Return the seconds until no expired message is left, at most ``patience``."""
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < patience:
        time.sleep(LOOK)
        told = ask(server.url, "GET", "/metrics").body.decode()
        waiting = [float(line.split()[-1]) for line in told.splitlines() if line.startswith("zq_expired_waiting")]
        if waiting and sum(waiting) == 0:
            return time.perf_counter() - began
    return took


def row(name: str, phases: list[list[float]], lengths: list[float], gone: float) -> None:
    rates = [f"{len(phase) / length:.0f}" for phase, length in zip(phases, lengths, strict=True)]
    cuts = [statistics.quantiles(phase, n=100) for phase in phases]
    p50, p99 = ([cut[at] for cut in cuts] for at in (49, 98))
    shown = [" ".join(rates), *(" ".join(f"{value:.1f}" for value in each) for each in (p50, p99))]
    ratios = [f"{each[1] / each[0]:.2f}" for each in (p50, p99)]
    print(f"| {name} | {' | '.join([*shown, *ratios])} | {gone:.0f} |", flush=True)
