# SPDX-License-Identifier: Apache-2.0
"""zq beside what bounds it and what it replaces, on each store: the table and the plots of ``api-ref/performance.md``.

``python -m bench.table [--stores rocksdb,redis,mongodb] [--engines granian,gunicorn] [--rounds 3] [--seconds 2]
[--sides zq,limit,empty,zaqar] [--rows "post 1,claim 10"] [--json FILE] [--plots FOLDER]`` needs wrk on PATH. ``limit``
is ``bench.limit_service`` on a store of its own, ``empty`` an empty Falcon application, ``zaqar`` the peer. Sides
take turns in each round; a figure is the median of its rounds, a ratio the median of the rounds' ratios.

What else a run may vary, one at a time, the others as they are first: ``--connections 16,1,64 --size 100,10000
--queues 8,1,1000 --tenants 1,1000 --backlog 0,1000000 --processes 1,2``. ``half`` columns: the latency of zq at half of
the load that it has just taken, each of 64 connections asking at random moments. Processor time stands beside it.
``settle 10`` is measured alone, on claims that were made before it; ``long-poll hand-over`` is the time from a post to
the answer of a claim that waits. ``devstack/bench`` runs all of it.

If ``limit`` is one of the sides, a line per row divides zq's processor time into application, store driver, and HTTP
server. ``bench.application`` measures the first two, on networked stores with as many threads as connections, because
their requests share round trips.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from signal import SIGINT
from statistics import median, quantiles
from time import sleep
from typing import Any, Final, NamedTuple

from bench.application import measure
from bench.http import SCRIPT, fill
from bench.polls import handed_over
from bench.sides import ENGINES, NAMES, STORES, Side, available, choice, on_store, seconds_of, sides
from tests.abilities import demand
from tests.servers import wait_for

# Requests a second that no row of any side is expected to pass: so many are there to be taken.
FASTEST: Final = {"zq": 8000, "limit": 20_000, "zaqar": 250, "Redis Streams": 20_000, "pgmq": 5000, "beanstalkd": 1500}
CONNECTIONS_AT_HALF: Final = 64
# Claims that are settled alone were made before, for so many times as long as they are settled.
CLAIMING: Final = 4
HAND_OVERS: Final = 20
"""In each second of a round."""
# Calls of each request when the application is measured alone.
CALLS_ALONE: Final = 500
CONNECTIONS: Final = 16


def body(size: int) -> dict[str, str]:
    """A message's body of so many bytes."""
    return {"event": "backup", "pad": "x" * (size - 32)}


class Row(NamedTuple):
    """One kind of request: a method of ``load.lua``, its body by the size of messages; ``drain``: what it takes."""

    name: str
    method: str
    path: str
    posts: int = 0
    fields: str = ""
    drain: int = 0
    terms: str = ""
    sides: str = "zq limit empty zaqar"

    def document(self, size: int) -> str:
        """The request's body for messages of so many bytes."""
        if not self.posts:
            return self.terms
        one = f'{{"ttl": 3600, "body": {json.dumps(body(size))}{self.fields}}}'
        return f'{{"messages": [{", ".join([one] * self.posts)}]}}'


QUEUE: Final = "/v2/queues/bq{n}"
CLAIM: Final = '{"ttl": 300, "grace": 60}'
HAND_OVER: Final = "long-poll hand-over"
ROWS: Final = (
    Row("post 1", "POST", f"{QUEUE}/messages", 1),
    Row("post 10", "POST", f"{QUEUE}/messages", 10),
    Row("post 1 delayed", "POST", f"{QUEUE}/messages", 1, ', "delay": 600', sides="zq"),
    Row("publish", "POST", "/v2/topics/bt{n}/messages", 1, sides="zq"),
    Row("list 10", "GET", f"{QUEUE}/messages?limit=10&echo=true"),
    Row("claim 10", "POST", f"{QUEUE}/claims?limit=10", drain=10, terms=CLAIM),
    Row("claim+settle 10", "CLAIM+SETTLE", f"{QUEUE}/claims?limit=10", drain=5, terms=CLAIM, sides="zq limit"),
    Row("settle 10", "SETTLE", f"{QUEUE}/claims?limit=10", drain=10, terms=CLAIM, sides="zq limit"),
    Row("pop 10", "DELETE", f"{QUEUE}/messages?pop=10", drain=10),
    Row(HAND_OVER, "HAND-OVER", "", sides="zq"),
)


class Case(NamedTuple):
    """What a run varies."""

    connections: int
    size: int
    queues: int
    tenants: int
    backlog: int
    processes: int


class Measured(NamedTuple):
    """One round of one side. Microseconds of processor time are for each request."""

    per_second: float
    p50: float
    p99: float
    p999: float
    failed: int
    answer: float
    server: float
    store: float
    dry: float
    """Whether, or how often, nothing was left to be taken."""

    @classmethod
    def middle(cls, rounds: list["Measured"]) -> "Measured":
        """The median of each."""
        return cls(*(median(values) for values in zip(*rounds, strict=True)))  # type: ignore[arg-type]


def load(side: Side, row: Row, case: Case, seconds: float, pause: float = 0.0, **more: str) -> Measured:
    """Have wrk load the side; ``pause``: milliseconds of each connection between two; ``more``: as in ``wrk``."""
    connections = CONNECTIONS_AT_HALF if pause else case.connections
    with tempfile.NamedTemporaryFile() as claims:
        if row.method == "SETTLE":
            wrk(side, row._replace(method="CLAIM+KEEP"), case, case.connections, CLAIMING * seconds, CLAIMS=claims.name)
        before = seconds_of(side.leaders), seconds_of(side.store)
        told = wrk(side, row, case, connections, seconds, CLAIMS=claims.name, PAUSE=f"{pause:.3f}", **more)
    rate, p50, p99, failed = told["RATE"]
    p999, answer, dry = told["TAIL"]
    requests = max(1.0, rate * seconds)
    spent = ((seconds_of(side.leaders) - before[0]) / requests, (seconds_of(side.store) - before[1]) / requests)
    if row.method != "SETTLE":  # whose answers are small
        dry = float(answer < row.drain * case.size)
    return Measured(rate, p50, p99, p999, int(failed), answer, spent[0] * 1e6, spent[1] * 1e6, dry)


def wrk(side: Side, row: Row, case: Case, connections: int, seconds: float, **more: str) -> dict[str, list[float]]:
    """What ``load.lua`` told, by the first word of the line; ``more``: of its environment."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{ceil(seconds)}s", "-s", str(SCRIPT), side.url, "--"]
    command += [row.method, row.path, *([row.document(case.size)] if row.document(case.size) else [])]
    env = {**os.environ, "QUEUES": str(case.queues), "TENANTS": str(case.tenants), **more}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        if seconds % 1:  # wrk takes whole seconds, and a signal to end early, once it is under way
            wait_for(lambda: running.poll() is not None or catches(running.pid, SIGINT), 30, "wrk runs")
            sleep(seconds)
            running.send_signal(SIGINT)
        printed, _ = running.communicate(timeout=seconds + 60)
    if running.returncode:
        sys.exit(f"wrk ended with {running.returncode}: {printed}")
    return {line.split()[0]: list(map(float, line.split()[1:])) for line in printed.splitlines()[-2:]}


def catches(pid: int, signal: int) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal - 1) & 1)


def hand_over(side: Side, count: int) -> Measured:
    """A claim waits on one connection, a post comes on another: milliseconds from there to the claim's answer."""
    before = seconds_of(side.leaders), seconds_of(side.store)
    took = [seconds * 1000 for seconds in handed_over(side, side, count)]
    spent = ((seconds_of(side.leaders) - before[0]) / len(took), (seconds_of(side.store) - before[1]) / len(took))
    cuts = quantiles(took, n=1000, method="inclusive")
    return Measured(0, cuts[499], cuts[989], cuts[998], 0, 0, spent[0] * 1e6, spent[1] * 1e6, 0)


def stock(side: Side, row: Row, case: Case, seconds: float) -> None:
    """Let there be more than can be taken, and something to list."""
    if side.name == "empty":
        return
    fastest = FASTEST[side.name] * min(1, 1000 / case.size)
    count = max(20 * case.queues, int(fastest * row.drain * seconds))
    for number in range(case.queues):
        tenant = {"X-Project-ID": f"bench{number % case.tenants}"} if case.tenants > 1 else {}
        fill(side.url, f"bq{number}", count // case.queues + 1, body=body(case.size), headers=tenant, ttl=3600)


def table(store: str, engine: str, case: Case, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One table; what it says, row by row."""
    print(f"\n**{store}, {engine}**: " + ", ".join(f"{value:,} {name}" for name, value in case._asdict().items()))
    print("\n| | zq /s | p50 | p99 ms | half p50 | p99 | p99.9 | zq µs | store µs | limit /s | µs | empty /s ", end="")
    print("| Zaqar /s | zq / limit | limit µs / zq µs | zq / Zaqar |\n|---|" + "--:|" * 15)
    told = []
    with sides(store, engine, arguments.sides, case.processes) as found:
        if case.backlog:
            fill(found[0].url, "bq0", case.backlog, ttl=86400, delay=3600)
        for row in ROWS:
            if row.name not in arguments.rows:
                continue
            taking = [side for side in found if side.name in row.sides.split()]
            rounds: dict[str, list[Measured]] = {side.name: [] for side in taking}
            for turn in range(arguments.rounds):
                for side in taking if turn % 2 else taking[::-1]:
                    rounds[side.name].append(one_round(side, row, case, arguments.seconds, first=not turn))
            calm = at_half(taking[0], row, case, arguments.seconds, rounds["zq"]) if row.path else None
            told.append(line(store, engine, case, row, rounds, calm))
    return told


def one_round(side: Side, row: Row, case: Case, seconds: float, first: bool) -> Measured:
    """Of one side."""
    if not row.path:
        return hand_over(side, max(5, int(HAND_OVERS * seconds)))
    if row.drain or first:
        stock(side, row, case, seconds)
    return load(side, row, case, seconds)


def at_half(side: Side, row: Row, case: Case, seconds: float, rounds: list[Measured]) -> Measured:
    """At half of the load that was taken."""
    if row.drain:
        stock(side, row, case, seconds)
    full = median(each.per_second for each in rounds)
    return load(side, row, case, seconds, pause=CONNECTIONS_AT_HALF / (full / 2) * 1000)


def line(
    store: str, engine: str, case: Case, row: Row, rounds: Mapping[str, list[Measured]], calm: Measured | None
) -> dict[str, Any]:
    """Print a line of the table; what it says."""
    middles = {name: Measured.middle(its) for name, its in rounds.items()}
    zq, limit = middles["zq"], middles.get("limit")

    def ratio(other: str, of: str = "per_second", turned: bool = False) -> str:
        pairs = zip(rounds["zq"], rounds.get(other, []), strict=False)
        values = [getattr(b, of) / getattr(a, of) if turned else getattr(a, of) / getattr(b, of) for a, b in pairs]
        return f"{median(values):.2f}" if values else ""

    cells = [
        *(f"{zq.per_second:.0f}" if zq.per_second else "", f"{zq.p50:.1f}", f"{zq.p99:.1f}"),
        *((f"{calm.p50:.1f}", f"{calm.p99:.1f}", f"{calm.p999:.1f}") if calm else ("", "", "")),
        *(f"{zq.server:.0f}", f"{zq.store:.0f}"),
        *((f"{limit.per_second:.0f}", f"{limit.server:.0f}") if limit else ("", "")),
        *(f"{middles[name].per_second:.0f}" if name in middles else "" for name in ("empty", "zaqar")),
        *(ratio("limit"), ratio("limit", "server", True), ratio("zaqar")),
    ]
    print(f"| {row.name}{note(rounds)} | " + " | ".join(cells) + " |", flush=True)
    figures = {name: middle._asdict() for name, middle in middles.items()} | ({"half": calm._asdict()} if calm else {})
    return {"store": store, "engine": engine, "row": row.name, **case._asdict(), "figures": figures}


def explain(store: str, told: list[dict[str, Any]]) -> None:
    """Print the parts of zq's processor time for each row of the tables of a store, in µs per request."""
    application = measure("memory:", CALLS_ALONE)
    with on_store(store) as (uri, _, _):
        with_driver = measure(uri, CALLS_ALONE, 1 if store == "rocksdb" else CONNECTIONS)
    print(
        "\n| | engine | zq µs | application | store driver, threads | HTTP server | limit µs |\n|---|---|" + "--:|" * 5
    )
    for each in told:
        name, figures = each["row"], each["figures"]
        if name in application and "limit" in figures:
            whole, alone, driven = figures["zq"]["server"], application[name], with_driver[name]
            parts = (whole, alone, driven - alone, whole - driven, figures["limit"]["server"])
            print(f"| {name} | {each['engine']} | " + " | ".join(f"{part:.0f}" for part in parts) + " |", flush=True)


def note(rounds: Mapping[str, list[Measured]]) -> str:
    """What went wrong."""
    said = [f"{name} ran dry" for name, its in rounds.items() if name != "empty" and any(each.dry for each in its)]
    failed = {name: sum(each.failed for each in its) for name, its in rounds.items()}
    said += [f"{count} failed of {name}" for name, count in failed.items() if count]
    return f" ({', '.join(said)})" if said else ""


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """The first of everything, then each other value by itself."""
    given = [[int(value) for value in getattr(arguments, name).split(",")] for name in Case._fields]
    first = Case(*(values[0] for values in given))
    yield first
    for name, values in zip(Case._fields, given, strict=True):
        for value in values[1:]:
            yield first._replace(**{name: value})


def plot(told: list[dict[str, Any]], folder: Path) -> None:
    """A picture for each engine: zq / limit, and what an empty application leaves."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for engine in sorted({each["engine"] for each in told}):
        mine = [each for each in told if each["engine"] == engine and "limit" in each["figures"]]
        stores = list(dict.fromkeys(each["store"] for each in mine))
        names = list(dict.fromkeys(each["row"] for each in mine))
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot()
        for at, store in enumerate(stores):
            rates = {each["row"]: each["figures"] for each in mine[::-1] if each["store"] == store}
            heights = [
                rates[name]["zq"]["per_second"] / rates[name]["limit"]["per_second"] if name in rates else 0
                for name in names
            ]
            axes.bar([place + at / (len(stores) + 1) for place in range(len(names))], heights, 0.22, label=store)
        axes.set_xticks([place + 0.25 for place in range(len(names))], names)
        axes.set_ylabel("zq / limit, requests a second")
        axes.set_title(f"{engine}, 16 connections, 8 queues")
        axes.legend()
        figure.savefig(folder / f"performance-{engine}.svg", metadata={"Date": None})


def read(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments; ends with a sentence for names that there are not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows = [row.name for row in ROWS]
    parser.add_argument("--stores", default=",".join(STORES), type=choice("store", STORES))
    parser.add_argument("--engines", default="granian", type=choice("engine", ENGINES))
    parser.add_argument("--sides", default="zq,limit,empty", type=choice("side", NAMES))
    parser.add_argument("--rows", default=",".join(rows), type=choice("row", rows))
    first = Case(connections=CONNECTIONS, size=100, queues=8, tenants=1, backlog=0, processes=1)
    for name, number in first._asdict().items():
        parser.add_argument(f"--{name}", default=str(number), metavar="N,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path)
    arguments = parser.parse_args(words)
    if "zq" not in arguments.sides:
        parser.error("zq must be one of the sides: all others are compared with it.")
    return arguments


def main() -> None:
    arguments = read()
    demand("wrk")
    told: list[dict[str, Any]] = []
    for store in available(arguments.stores):
        earlier = len(told)
        for engine in arguments.engines:
            for case in cases(arguments):
                told += table(store, engine, case, arguments)
                if arguments.json:  # each time, for the next table may fail
                    arguments.json.write_text(json.dumps(told, indent=1))
        if "limit" in arguments.sides:
            explain(store, told[earlier:])
    if arguments.plots:
        plot(told, arguments.plots)


if __name__ == "__main__":
    main()
