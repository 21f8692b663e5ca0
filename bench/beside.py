# SPDX-License-Identifier: Apache-2.0
"""Requests per second of two trees of zq in the same run, to show whether a change made anything slower.

``python -m bench.beside BEFORE [AFTER] [--stores rocksdb,mongodb,redis] [--rounds N] [--seconds S]`` needs wrk on PATH.
Each tree runs in its own ``.venv``, on its own store. Short rounds alternate (A B, B A, ...), and the result is the
median of the rounds' ratios. The table also has the processor time of the servers' processes per request, which is the
more stable metric on a machine with other work. The command asserts nothing.
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.figures import HERE, interpreter, started
from bench.http import Row, fill, measure
from bench.peer import EACH, QUEUES, rows
from tests.abilities import demand
from tests.servers import ZqServer

FASTEST = 2500
"""Requests per second that no row is expected to exceed, for which messages are posted before the first round."""
TICKS = os.sysconf("SC_CLK_TCK")


def compared() -> tuple[Row, ...]:
    """Return the five rows; claimed messages are deleted in a second request."""
    both = {"claim 10": {"name": "claim+delete 10", "method": "CLAIM+DELETE"}}
    return tuple(row._replace(**both.get(row.name, {})) for row in rows())


class TreeServer(ZqServer):
    """``zq-server`` of another checkout."""

    def __init__(self, tree: Path, uri: str, engine: str) -> None:
        python, environment = interpreter(tree)
        super().__init__(uri, engine=engine, env={**environment, "PYTHONSAFEPATH": "1"})
        self._prefix[0] = python

    def processor_seconds(self) -> float:
        """Return the processor time that all its processes have used."""
        used = 0
        for pid in (self.pid, *self.worker_pids):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        return used / TICKS


class Side(NamedTuple):
    """One measurement of one tree."""

    per_second: float
    microseconds: float
    failed: int


def taken(row: Row) -> int:
    """Return the messages that a request takes out of its queue; a claim and its deletion are two requests."""
    return row.drain // 2 if row.method == "CLAIM+DELETE" else row.drain


def one(server: TreeServer, row: Row, seconds: int) -> Side:
    """Load the server for ``seconds``, and post as many messages as were taken."""
    before = server.processor_seconds()
    rate = measure(server.url, row, EACH, seconds)
    requests = rate.per_second * seconds
    spent = server.processor_seconds() - before
    stock(server, int(requests * taken(row)))
    return Side(rate.per_second, spent / requests * 1e6, rate.failed)


def stock(server: TreeServer, count: int) -> None:
    """Post ``count`` messages, spread over all queues."""
    for number in range(QUEUES if count else 0):
        fill(server.url, f"bq{number}", count // QUEUES + 1, ttl=3600)


def on_store(store: str, arguments: argparse.Namespace) -> None:
    """Print the table of a store."""
    print(f"\n| {store}, {arguments.engine} | before, requests/s | after | ratio (each round) ", end="")
    print("| before, µs/request | after | ratio |\n|---|--:|--:|---|--:|--:|--:|")
    with ExitStack() as stack:
        trees = (arguments.before.resolve(), arguments.after.resolve())
        uris = [stack.enter_context(started(store)) for _ in trees]
        servers = [
            stack.enter_context(TreeServer(tree, uri, arguments.engine)) for tree, uri in zip(trees, uris, strict=True)
        ]
        for row in compared():
            for server in servers:
                stock(server, max(100, FASTEST * arguments.seconds * taken(row)))
            pairs = []
            for turn in range(arguments.rounds):
                order = servers if turn % 2 else servers[::-1]
                sides = {id(server): one(server, row, arguments.seconds) for server in order}
                pairs.append([sides[id(server)] for server in servers])
            report(row, pairs)


def report(row: Row, pairs: list[list[Side]]) -> None:
    """Print a row of the table."""
    ratios = sorted(after.per_second / before.per_second for before, after in pairs)
    costs = sorted(after.microseconds / before.microseconds for before, after in pairs)
    rate = [median(pair[side].per_second for pair in pairs) for side in (0, 1)]
    cost = [median(pair[side].microseconds for pair in pairs) for side in (0, 1)]
    failed = [sum(pair[side].failed for pair in pairs) for side in (0, 1)]
    note = f" (failed: {failed[0]}, {failed[1]})" if any(failed) else ""
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"| {row.name}{note} | {rate[0]:.0f} | {rate[1]:.0f} | **{median(ratios):.2f}** ({each}) ", end="")
    print(f"| {cost[0]:.0f} | {cost[1]:.0f} | **{median(costs):.2f}** |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout to compare with")
    parser.add_argument("after", type=Path, nargs="?", default=HERE, help="another one (default: this one)")
    parser.add_argument("--stores", default="rocksdb,mongodb,redis")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of measurements for each row")
    parser.add_argument("--seconds", type=int, default=2, help="length of one measurement")
    parser.add_argument("--engine", choices=["gunicorn", "granian"], default="gunicorn")
    arguments = parser.parse_args()
    demand("wrk")
    for store in arguments.stores.split(","):
        on_store(store, arguments)


if __name__ == "__main__":
    main()
