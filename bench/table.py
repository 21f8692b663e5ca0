# SPDX-License-Identifier: Apache-2.0
"""Benchmark of zq and of services that it is compared with, on each store: the tables of ``api-ref/performance.md``.

``python -m bench.table [--stores rocksdb,redis,mongodb] [--engines granian,gunicorn] [--rounds 3] [--seconds 2]
[--sides zq,limit,empty,zaqar] [--rows "post 1,claim 10"] [--json FILE] [--plots FOLDER]`` needs wrk on PATH. ``limit``
is ``bench.limit_service`` on a store of its own, ``empty`` an empty Falcon application, ``zaqar`` the peer. Sides
take turns in each round; a figure is the median of its rounds, a ratio the median of the rounds' ratios.

What else a run may vary, one at a time, the others as they are first: ``--connections 16,1,64 --size 100,10000
--queues 8,1,1000 --tenants 1,1000 --backlog 0,1000000 --processes 1,2``. ``half`` columns: the latency of zq at half of
the rate of the row, with 64 connections that send at random moments; the share of the full rate stands beside it.
Columns in µs are processor time per request, of the server and of its store. ``settle 10`` is measured alone, on claims
that were made before it; ``long-poll hand-over`` is the time from a post to the answer of a claim that waits.
``devstack/bench`` runs all of it.

If ``limit`` is one of the sides, a second table divides the processor time of both services (``bench.profile``). A
third one compares the ratios and the latency with their targets, and a sentence explains each missed target. Targets
apply to the default values on Granian. On MongoDB, ``--servers 1,2,3`` adds the tables of ``bench.posters``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import ceil, nan
from pathlib import Path
from signal import SIGINT
from statistics import median, quantiles
from time import sleep
from typing import Any, Final, NamedTuple

from bench import posters, profile
from bench.http import SCRIPT, fill
from bench.polls import handed_over
from bench.sides import ENGINES, NAMES, STORES, Side, available, choice, seconds_of, sides, used_by
from tests.abilities import demand
from tests.servers import wait_for

# Requests a second that no row of any side is expected to pass: so many are there to be taken.
FASTEST: Final = {"zq": 8000, "limit": 20_000, "zaqar": 250, "Redis Streams": 20_000, "pgmq": 5000, "beanstalkd": 1500}
CONNECTIONS_AT_HALF: Final = 64
# Claims that are settled alone were made before, for so many times as long as they are settled.
CLAIMING: Final = 4
HAND_OVERS: Final = 20
"""In each second of a round."""
# Number of measurements that find the pause for a rate.
CALIBRATIONS: Final = 2
# Messages that are stocked for a paced measurement, relative to those that it takes.
PACED_STOCK: Final = 1.5
CONNECTIONS: Final = 16
# Sides that are compared by their rates alone.
OTHERS: Final = ("empty", "zaqar")
# zq's rate relative to the limit's, by store and row.
TARGETS: Final[Mapping[str, Mapping[str, float]]] = {
    "rocksdb": {"post 1": 0.80, "post 10": 0.65, "list 10": 0.50, "claim 10": 0.55, "pop 10": 0.65},
    "redis": {"post 1": 0.55, "post 10": 0.55, "list 10": 0.45, "claim 10": 0.40, "pop 10": 0.50},
    "mongodb": {"post 1": 0.60, "post 10": 0.60, "list 10": 0.60, "claim 10": 0.75, "pop 10": 0.80},
}
# Maximum p99 at half load, relative to p50, by store.
MAX_TAILS: Final = {"rocksdb": 4.0, "redis": 4.0}


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


# The values to which targets apply.
FIRST: Final = Case(connections=CONNECTIONS, size=100, queues=8, tenants=1, backlog=0, processes=1)


class Measured(NamedTuple):
    """One round of one side. Microseconds of processor time are for each request."""

    per_second: float
    p50: float
    p99: float
    p999: float
    failed: int
    answer: float
    server: float
    kernel: float
    """The kernel's part of ``server``."""
    store: float
    dry: float
    """Whether, or how often, nothing was left to be taken."""

    @property
    def tail(self) -> float:
        """p99 relative to p50."""
        return self.p99 / self.p50 if self.p50 else nan

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
        before, store_before = used_by(side.leaders), seconds_of(side.store)
        told = wrk(side, row, case, connections, seconds, CLAIMS=claims.name, PAUSE=f"{pause:.3f}", **more)
    rate, p50, p99, failed = told["RATE"]
    p999, answer, dry = told["TAIL"]
    requests = max(1.0, rate * seconds)
    after, store_after = used_by(side.leaders), seconds_of(side.store)
    spent = (sum(after) - sum(before), after.system - before.system, store_after - store_before)
    if row.method != "SETTLE":  # whose answers are small
        dry = float(answer < row.drain * case.size)
    return Measured(rate, p50, p99, p999, int(failed), answer, *(each / requests * 1e6 for each in spent), dry)


def load_at(side: Side, row: Row, case: Case, seconds: float, rate: float, rounds: int) -> Measured:
    """Return the median of the rounds at ``rate`` requests per second, after the measurements that find the pause."""
    pause = CONNECTIONS_AT_HALF / rate * 1000
    found: list[Measured] = []
    for _ in range(CALIBRATIONS + rounds):
        if row.drain:  # claims that are settled alone are made at full speed
            stock(side, row, case, seconds, None if row.method == "SETTLE" else PACED_STOCK * rate)
        found.append(load(side, row, case, seconds, pause))
        if len(found) <= CALIBRATIONS:
            pause = corrected_pause(pause, found[-1].per_second, rate)
    return Measured.middle(found[CALIBRATIONS:])


def corrected_pause(pause: float, achieved: float, rate: float) -> float:
    """Return the pause between an answer and the next request, in milliseconds, for ``rate`` requests per second.

    With ``pause``, the connections achieved ``achieved`` requests per second: the rest of their time is the latency.
    """
    if not achieved:
        return pause
    latency = CONNECTIONS_AT_HALF / achieved * 1000 - pause
    return max(0.1, CONNECTIONS_AT_HALF / rate * 1000 - latency)


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
    before, store_before = used_by(side.leaders), seconds_of(side.store)
    took = [seconds * 1000 for seconds in handed_over(side, side, count)]
    after, store_after = used_by(side.leaders), seconds_of(side.store)
    spent = (sum(after) - sum(before), after.system - before.system, store_after - store_before)
    cuts = quantiles(took, n=1000, method="inclusive")
    return Measured(0, cuts[499], cuts[989], cuts[998], 0, 0, *(each / len(took) * 1e6 for each in spent), 0)


def stock(side: Side, row: Row, case: Case, seconds: float, rate: float | None = None) -> None:
    """Post more messages than the row takes at ``rate``, by default at a rate that it does not reach, or lists."""
    if side.name == "empty":
        return
    fastest = rate or FASTEST[side.name] * min(1, 1000 / case.size)
    count = max(20 * case.queues, int(fastest * row.drain * seconds))
    for number in range(case.queues):
        tenant = {"X-Project-ID": f"bench{number % case.tenants}"} if case.tenants > 1 else {}
        fill(side.url, f"bq{number}", count // case.queues + 1, body=body(case.size), headers=tenant, ttl=3600)


def table(store: str, engine: str, case: Case, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Print one table. Return its figures row by row."""
    print(
        f"\n**{store}, {engine}**: " + ", ".join(f"{value:,} {name}" for name, value in case._asdict().items()) + "\n"
    )
    print(heads(arguments.sides))
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
            calm = at_half(taking[0], row, case, arguments, rounds) if row.path else None
            told.append(line(store, engine, case, row, rounds, calm, arguments.sides))
            told[-1] |= examine(told[-1], taking, row, case, arguments, rounds)
    return told


def examine(
    told: Mapping[str, Any],
    taking: Sequence[Side],
    row: Row,
    case: Case,
    arguments: argparse.Namespace,
    rounds: Mapping[str, list[Measured]],
) -> dict[str, Any]:
    """Measure what explains missed targets, while the servers run: libraries, and the limit's latency."""
    found: dict[str, Any] = {}
    by_name = {side.name: side for side in taking}
    for target in targets_of(told):
        if target.is_met:
            continue
        if target.name == RATIO:
            if row.drain:
                stock(by_name["zq"], row, case, arguments.seconds)
            work = partial(load, by_name["zq"], row, case, arguments.seconds)
            found["libraries"] = profile.sample(by_name["zq"].leaders, work)
        elif "limit" in by_name:
            calm = at_half(by_name["limit"], row, case, arguments, rounds)
            found["limit_tail"] = calm.tail
    return found


def one_round(side: Side, row: Row, case: Case, seconds: float, first: bool) -> Measured:
    """Of one side."""
    if not row.path:
        return hand_over(side, max(5, int(HAND_OVERS * seconds)))
    if row.drain or first:
        stock(side, row, case, seconds)
    return load(side, row, case, seconds)


def at_half(
    side: Side, row: Row, case: Case, arguments: argparse.Namespace, rounds: Mapping[str, list[Measured]]
) -> Measured:
    """Measure the side at half of the rate of its rounds."""
    full = median(each.per_second for each in rounds[side.name])
    return load_at(side, row, case, arguments.seconds, full / 2, arguments.rounds)


def heads(names: Sequence[str]) -> str:
    """Return the first two lines of a table."""
    titles = ["zq /s", "p50", "p99 ms", "half p50", "p99", "p99.9", "p99 / p50", "at load", "zq µs", "store µs"]
    titles += ["limit /s", "limit µs", "store µs"] if "limit" in names else []
    titles += [f"{name} /s" for name in OTHERS if name in names]
    titles += ["zq / limit", "zq µs / limit µs"] if "limit" in names else []
    titles += ["zq / zaqar"] if "zaqar" in names else []
    return f"| | {' | '.join(titles)} |\n|---|" + "--:|" * len(titles)


def line(
    store: str,
    engine: str,
    case: Case,
    row: Row,
    rounds: Mapping[str, list[Measured]],
    calm: Measured | None,
    names: Sequence[str],
) -> dict[str, Any]:
    """Print a line of the table. Return its figures."""
    middles = {name: Measured.middle(its) for name, its in rounds.items()}

    def ratio(other: str, of: str = "per_second") -> float | None:
        """Return the median of zq's figure relative to the other's, or ``None`` if the other has no such row."""
        pairs = zip(rounds["zq"], rounds.get(other, []), strict=False)
        ratios = [getattr(mine, of) / getattr(its, of) for mine, its in pairs]
        return median(ratios) if ratios else None

    zq, limit, relative = middles["zq"], middles.get("limit"), ratio("limit")
    cells = [
        *(f"{zq.per_second:.0f}" if zq.per_second else "", f"{zq.p50:.1f}", f"{zq.p99:.1f}"),
        *((f"{calm.p50:.1f}", f"{calm.p99:.1f}", f"{calm.p999:.1f}") if calm else ("", "", "")),
        *((f"{calm.tail:.1f}", f"{calm.per_second / zq.per_second:.0%}") if calm else ("", "")),
        *(f"{zq.server:.0f}", f"{zq.store:.0f}"),
    ]
    if "limit" in names:
        cells += [f"{limit.per_second:.0f}", f"{limit.server:.0f}", f"{limit.store:.0f}"] if limit else [""] * 3
    cells += [f"{middles[name].per_second:.0f}" if name in middles else "" for name in OTHERS if name in names]
    if "limit" in names:
        cells += [text(relative), text(ratio("limit", "server"))]
    if "zaqar" in names:
        cells.append(text(ratio("zaqar")))
    print(f"| {row.name}{note(rounds)} | " + " | ".join(cells) + " |", flush=True)
    figures = {name: middle._asdict() for name, middle in middles.items()} | ({"half": calm._asdict()} if calm else {})
    return {"store": store, "engine": engine, **case._asdict(), "row": row.name, "ratio": relative, "figures": figures}


def text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


class Target(NamedTuple):
    """A bound for a figure of a row: a minimum ratio to the limit, or a maximum tail of the latency at half load."""

    name: str
    figure: float
    bound: float
    is_met: bool


RATIO: Final = "zq / limit"
TAIL: Final = "p99 / p50 at half load"


def targets_of(told: Mapping[str, Any]) -> list[Target]:
    """Return the targets that apply to the figures of a row."""
    bound = TARGETS[told["store"]].get(told["row"])
    is_first = all(told[name] == value for name, value in FIRST._asdict().items())
    if bound is None or told["engine"] != "granian" or not is_first:
        return []
    targets = []
    if told["ratio"] is not None:
        targets.append(Target(RATIO, told["ratio"], bound, told["ratio"] >= bound))
    if told["store"] in MAX_TAILS:
        tail, bound = Measured(**told["figures"]["half"]).tail, MAX_TAILS[told["store"]]
        targets.append(Target(TAIL, tail, bound, tail <= bound))
    return targets


def explain(store: str, told: Sequence[Mapping[str, Any]], alone: Mapping[str, Mapping[str, profile.Spent]]) -> None:
    """Print the parts of the processor time of the rows of a table, their targets, and why targets are missed."""
    names = profile.part_names(store)
    print(f"\n| {store}, µs of zq / of the limit | {' | '.join(names)} |\n|---|" + "--:|" * len(names))
    sentences, verdicts = [], []
    for each in told:
        if each["row"] not in alone["zq"] or "limit" not in each["figures"]:
            continue
        zq, limit = (parts_of(each, name, alone[name]) for name in ("zq", "limit"))
        cells = " | ".join(f"{mine:.0f} / {its:.0f}" for mine, its in zip(zq, limit, strict=True))
        print(f"| {each['row']} | {cells} |")
        for target in targets_of(each):
            result = "met" if target.is_met else "missed"
            verdicts.append(f"| {each['row']} | {target.name} | {target.figure:.2f} | {target.bound:.2f} | {result} |")
            if not target.is_met:
                why = reason(target, each, zq, limit)
                sentences.append(f"- {store}, {each['row']}: {target.name} is {target.figure:.2f}. {why}")
    if verdicts:
        print(f"\n| {store} | figure | measured | target | result |\n|---|---|--:|--:|---|", *verdicts, sep="\n")
    if sentences:
        print("", *sentences, sep="\n")
    sys.stdout.flush()


def parts_of(told: Mapping[str, Any], side: str, alone: Mapping[str, profile.Spent]) -> profile.Parts:
    return profile.divide(alone[told["row"]], *(told["figures"][side][key] for key in ("server", "kernel", "store")))


def reason(target: Target, told: Mapping[str, Any], zq: profile.Parts, limit: profile.Parts) -> str:
    """Return why the target is missed."""
    if target.name == TAIL:
        return f"The limit's is {told['limit_tail']:.2f}." if "limit_tail" in told else ""
    rates = [told["figures"][name]["per_second"] for name in ("zq", "limit")]
    busy = [rate * sum(parts) / 1e6 for rate, parts in zip(rates, (zq, limit), strict=True)]
    cores = f"zq and its store use {busy[0]:.1f} cores, the limit and its store {busy[1]:.1f}."
    return " ".join(filter(None, (profile.explain(told["store"], zq, limit), cores, told.get("libraries", ""))))


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
    for name, number in FIRST._asdict().items():
        parser.add_argument(f"--{name}", default=str(number), metavar="N,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--servers", default="1,2,3", metavar="N,...", help="on MongoDB; '' measures one server alone")
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
        for engine in arguments.engines:
            first = next(cases(arguments))
            for case in cases(arguments):
                rows = table(store, engine, case, arguments)
                told += rows
                if arguments.json:  # each time, for the next table may fail
                    arguments.json.write_text(json.dumps(told, indent=1))
                if case == first and "limit" in arguments.sides:
                    explain(store, rows, profile.measure_alone(store))
        if store == "mongodb" and arguments.servers:
            posters.compare(
                posters.Plan([*map(int, arguments.servers.split(","))], arguments.seconds, arguments.rounds)
            )
    if arguments.plots:
        plot(told, arguments.plots)


if __name__ == "__main__":
    main()
