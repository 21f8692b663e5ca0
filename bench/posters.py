# SPDX-License-Identifier: Apache-2.0
"""Measure posts of one, two and three servers on one MongoDB, and how many transactions they discard.

``python -m bench.posters [--servers 1,2,3] [--connections 16] [--seconds N] [--rounds N] [--engine E]`` needs wrk on
PATH; ``bench.table`` prints the same tables. The servers of a row post to the same eight queues, and share the
connections. Each row has queues of its own:

- *exclusive*: ``drawn_sequences = false``;
- *drawn*: the default options;
- *routed*: the default options, and each queue has one server, as with ``hash`` in ``etc/nginx.conf``. The load
  generator chooses the server, so the proxy costs nothing.

Another table compares listings with and without ``drawn_sequences``, by their processor time in server and mongod.
Rounds of all rows take turns, and each row shows the median of its rounds. Only figures of one run may be compared.
"""

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, NamedTuple

from bench.http import fill, measure
from bench.peer import QUEUES, rows, workers
from bench.sides import seconds_of
from tests.abilities import demand
from tests.servers import ZqServer
from tests.stores import QUIET, MongoServer

POST, LIST = (next(row for row in rows() if row.name == name) for name in ("post 1", "list 10"))
EXCLUSIVE, DRAWN, ROUTED = "exclusive", "drawn", "routed"
CONFIGS: Final = {EXCLUSIVE: workers(1) + "[storage:mongodb]\ndrawn_sequences = false\n", DRAWN: workers(1)}
# Posts relative to those of one server, by kind and number of servers.
TARGETS: Final[Mapping[tuple[str, int], float]] = {(DRAWN, 2): 0.9, (DRAWN, 3): 0.8, (ROUTED, 2): 1.2}
MAX_ABORTED: Final = 0.01
# Processor time of a listing with drawn sequences, relative to one without.
MAX_LISTING: Final = 1.05
# Messages in each queue that is listed.
LISTED: Final = 100


class Plan(NamedTuple):
    """How much is measured."""

    counts: Sequence[int] = (1, 2, 3)
    seconds: float = 3
    rounds: int = 3
    connections: int = 16
    engine: str = "granian"


class Posted(NamedTuple):
    """One measurement: requests per second, the slowest p99 in milliseconds, and transactions per post."""

    per_second: float
    p99: float
    committed: float
    aborted: float


class Listed(NamedTuple):
    """One measurement: requests per second, and µs of processor time per request in server and mongod."""

    per_second: float
    microseconds: float


def counted(store: MongoServer) -> dict[str, Any]:
    with store.client() as client:
        found: dict[str, Any] = client.admin.command("serverStatus")["transactions"]
    return found


def post(store: MongoServer, servers: Sequence[ZqServer], kind: str, plan: Plan, seconds: int) -> Posted:
    before = counted(store)
    share, prefix = plan.connections // len(servers), f"{kind}{len(servers)}"

    def load(number: int) -> Any:
        if kind != ROUTED:
            return measure(servers[number].url, POST, f"{prefix}q{{n}}", seconds, connections=share)
        queues = len(range(number, QUEUES, len(servers)))
        return measure(servers[number].url, POST, f"{prefix}s{number}q{{n}}", seconds, share, queues)

    with ThreadPoolExecutor(len(servers)) as pool:
        rates = list(pool.map(load, range(len(servers))))
    after = counted(store)
    rate = sum(one.per_second for one in rates)
    committed, aborted = (
        (after[name] - before[name]) / max(1.0, rate * seconds) for name in ("totalCommitted", "totalAborted")
    )
    return Posted(rate, max(one.p99 for one in rates), committed, aborted)


def list_messages(store: MongoServer, server: ZqServer, plan: Plan, seconds: int) -> Listed:
    leaders = (server.pid, store.pid)
    before = seconds_of(leaders)
    rate = measure(server.url, LIST, "listedq{n}", seconds, plan.connections).per_second
    return Listed(rate, (seconds_of(leaders) - before) / max(1.0, rate * seconds) * 1e6)


def compare(plan: Plan) -> None:
    """Measure, and print the tables."""
    kinds = [
        (kind, count) for count in plan.counts for kind in (EXCLUSIVE, DRAWN, ROUTED) if kind != ROUTED or count > 1
    ]
    posted: dict[tuple[str, int], list[Posted]] = {kind: [] for kind in kinds}
    listed: dict[str, list[Listed]] = {name: [] for name in CONFIGS}
    seconds = max(1, round(plan.seconds))
    with ExitStack() as stack:
        store = stack.enter_context(MongoServer(*QUIET))
        servers = {
            name: [
                stack.enter_context(ZqServer(store.uri, engine=plan.engine, config=config))
                for _ in range(max(plan.counts))
            ]
            for name, config in CONFIGS.items()
        }

        def measure_posts(kind: str, count: int, seconds: int) -> Posted:
            return post(store, servers[EXCLUSIVE if kind == ROUTED else kind][:count], kind, plan, seconds)

        for each in kinds:
            measure_posts(*each, 1)
        for _ in range(plan.rounds):
            for each in kinds:
                posted[each].append(measure_posts(*each, seconds))
        for number in range(QUEUES):
            fill(servers[EXCLUSIVE][0].url, f"listedq{number}", LISTED, ttl=3600)
        for turn in range(1 + plan.rounds):
            for name in CONFIGS:
                found = list_messages(store, servers[name][0], plan, seconds if turn else 1)
                listed[name] += [found] if turn else []  # the first turn warms up
    print_posts(posted, plan)
    print_lists(listed)


def print_posts(posted: Mapping[tuple[str, int], Sequence[Posted]], plan: Plan) -> None:
    heads = "posts/s | of one server | target | p99 ms | commits | aborts | target | result"
    print(f"\n| mongodb, servers, {plan.connections} connections | {heads} |\n|---|" + "--:|" * 7 + "---|")
    for (kind, count), its in posted.items():
        one = Posted(*map(median, zip(*its, strict=True)))
        first = posted[EXCLUSIVE, plan.counts[0]]
        ratio = median(each.per_second / other.per_second for each, other in zip(its, first, strict=True))
        target = TARGETS.get((kind, count))
        bound = MAX_ABORTED if target is not None else None
        figures = f"{one.per_second:.0f} | {ratio:.2f} | {show(target)} | {one.p99:.0f} | {one.committed:.3f}"
        print(f"| {count} {kind} | {figures} | {one.aborted:.3f} | {show(bound)} | {verdict(target, ratio, one)} |")


def show(bound: float | None) -> str:
    return "" if bound is None else f"{bound:.2f}"


def verdict(target: float | None, ratio: float, posted: Posted) -> str:
    """Return whether a row meets its targets, or "" if it has none."""
    if target is None:
        return ""
    missed = [] if ratio >= target else ["posts"]
    missed += [] if posted.aborted < MAX_ABORTED else ["aborts"]
    return f"missed: {', '.join(missed)}" if missed else "met"


def print_lists(listed: Mapping[str, Sequence[Listed]]) -> None:
    print("\n| mongodb, list 10 | requests/s | µs of server and mongod | / exclusive | target | result |")
    print("|---|--:|--:|--:|--:|---|")
    for name, its in listed.items():
        one = Listed(*map(median, zip(*its, strict=True)))
        pairs = zip(its, listed[EXCLUSIVE], strict=True)
        ratio = median(each.microseconds / other.microseconds for each, other in pairs)
        result = "" if name == EXCLUSIVE else "met" if ratio <= MAX_LISTING else "missed"
        target = show(None if name == EXCLUSIVE else MAX_LISTING)
        print(f"| {name} | {one.per_second:.0f} | {one.microseconds:.0f} | {ratio:.2f} | {target} | {result} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="1,2,3")
    parser.add_argument("--connections", type=int, default=Plan().connections)
    parser.add_argument("--seconds", type=int, default=Plan().seconds, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=Plan().rounds, help="measurements of each kind")
    parser.add_argument("--engine", choices=["gunicorn", "granian"], default=Plan().engine)
    arguments = parser.parse_args()
    demand("wrk")
    counts = [int(number) for number in arguments.servers.split(",")]
    compare(Plan(counts, arguments.seconds, arguments.rounds, arguments.connections, arguments.engine))


if __name__ == "__main__":
    main()
