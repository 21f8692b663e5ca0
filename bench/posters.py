# SPDX-License-Identifier: Apache-2.0
"""Measure posts of one, two and three servers on one MongoDB, and how many transactions they discard.

``python -m bench.posters [--servers 1,2,3] [--connections 16] [--seconds N] [--rounds N] [--engine E] [--drawn]`` needs
wrk on PATH. The servers of a row post to the same eight queues, and share the connections. Each row has queues of its
own. Runs are interleaved, and each row shows the median of its rounds. ``--drawn`` adds rows for servers with
``drawn_sequences``. The command asserts nothing; only figures of one run may be compared.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

from bench.http import measure
from bench.peer import rows, workers
from tests.servers import ZqServer
from tests.stores import QUIET, MongoServer

POST = next(row for row in rows() if row.name == "post 1")


class Posted(NamedTuple):
    """One measurement: requests per second, the slowest p99 in milliseconds, and transactions per post."""

    per_second: float
    p99: float
    committed: float
    aborted: float


def counted(store: MongoServer) -> dict[str, Any]:
    with store.client() as client:
        found: dict[str, Any] = client.admin.command("serverStatus")["transactions"]
    return found


def post(store: MongoServer, servers: Sequence[ZqServer], queue: str, connections: int, seconds: int) -> Posted:
    before = counted(store)
    share = connections // len(servers)
    with ThreadPoolExecutor(len(servers)) as pool:
        rates = list(pool.map(lambda one: measure(one.url, POST, queue, seconds, connections=share), servers))
    after = counted(store)
    rate = sum(one.per_second for one in rates)
    committed, aborted = (
        (after[name] - before[name]) / max(1.0, rate * seconds) for name in ("totalCommitted", "totalAborted")
    )
    return Posted(rate, max(one.p99 for one in rates), committed, aborted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default="1,2,3")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=3, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--engine", choices=["gunicorn", "granian"], default="granian")
    parser.add_argument("--drawn", action="store_true", help="measure servers with drawn_sequences, too")
    arguments = parser.parse_args()
    counts = [int(number) for number in arguments.servers.split(",")]
    configs = {"": workers(1)}
    if arguments.drawn:
        configs[", drawn"] = workers(1) + "[storage:mongodb]\ndrawn_sequences = true\n"
    kinds = [(count, name) for count in counts for name in configs]
    found: dict[tuple[int, str], list[Posted]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        store = stack.enter_context(MongoServer(*QUIET))
        servers = {
            name: [
                stack.enter_context(ZqServer(store.uri, engine=arguments.engine, config=config))
                for _ in range(max(counts))
            ]
            for name, config in configs.items()
        }

        def measured(kind: tuple[int, str], seconds: int) -> Posted:
            count, name = kind
            queue = f"by{count}{name[2:]}q{{n}}"
            return post(store, servers[name][:count], queue, arguments.connections, seconds)

        for kind in kinds:
            measured(kind, 1)
        for _ in range(arguments.rounds):
            for kind in kinds:
                found[kind].append(measured(kind, arguments.seconds))
    print(f"| servers, {arguments.connections} connections | posts/s | of the first row | p99 ms | commits | aborts |")
    print("|---|---|---|---|---|---|")
    for (count, name), its in found.items():
        one = Posted(*map(median, zip(*its, strict=True)))
        ratio = median(each.per_second / first.per_second for each, first in zip(its, found[kinds[0]], strict=True))
        figures = f"{one.per_second:.0f} | {ratio:.2f} | {one.p99:.0f} | {one.committed:.3f} | {one.aborted:.3f}"
        print(f"| {count}{name} | {figures} |")


if __name__ == "__main__":
    main()
