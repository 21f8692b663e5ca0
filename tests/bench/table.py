# SPDX-License-Identifier: Apache-2.0
"""zq beside what bounds it and what it replaces, on each store: the table and the plots of ``api-ref/performance.md``.

``python -m tests.bench.table [--stores rocksdb,redis,mongodb] [--engines granian,gunicorn] [--rounds 3] [--seconds 2]
[--sides zq,limit,empty,zaqar] [--rows "post 1,claim 10"] [--json FILE] [--plots FOLDER]`` needs wrk on PATH. ``limit``
is ``tests.bench.limit_service`` on a store of its own, ``empty`` an empty Falcon application, ``zaqar`` the peer. Sides
take turns in each round; a figure is the median of its rounds, a ratio the median of the rounds' ratios.

What else a run may vary, one at a time, the others as they are first: ``--connections 16,1,64 --size 100,10000
--queues 8,1,1000 --tenants 1,1000 --backlog 0,1000000 --processes 1,2``. ``half`` columns: the latency of zq at half of
the load that it has just taken, each of 64 connections asking at random moments. Processor time stands beside it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from tests.bench.empty import EmptyServer
from tests.bench.http import SCRIPT, fill
from tests.bench.zaqar import ZaqarServer, environment
from tests.servers import Lost, Startable, ZqServer, ask, free_port, spawn, wait_for
from tests.stores import MongoServer, RedisServer

TICKS: Final = os.sysconf("SC_CLK_TCK")
THREADS: Final = 64
# Requests a second that no row of any side is expected to pass: so many are there to be taken.
FASTEST: Final = {"zq": 8000, "limit": 20_000, "zaqar": 250}
CONNECTIONS_AT_HALF: Final = 64


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
ROWS: Final = (
    Row("post 1", "POST", f"{QUEUE}/messages", 1),
    Row("post 10", "POST", f"{QUEUE}/messages", 10),
    Row("post 1 delayed", "POST", f"{QUEUE}/messages", 1, ', "delay": 600', sides="zq"),
    Row("publish", "POST", "/v2/topics/bt{n}/messages", 1, sides="zq"),
    Row("list 10", "GET", f"{QUEUE}/messages?limit=10&echo=true"),
    Row("claim 10", "POST", f"{QUEUE}/claims?limit=10", drain=10, terms=CLAIM),
    Row("claim+settle 10", "CLAIM+SETTLE", f"{QUEUE}/claims?limit=10", drain=5, terms=CLAIM, sides="zq limit"),
    Row("pop 10", "DELETE", f"{QUEUE}/messages?pop=10", drain=10),
)


class Case(NamedTuple):
    """What a run varies."""

    connections: int
    size: int
    queues: int
    tenants: int
    backlog: int
    processes: int


class LimitServer(Startable):
    """``tests.bench.limit_service`` in a process of its own."""

    def __init__(self, uri: str, engine: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._uri = uri
        self._command = {
            "gunicorn": f"gunicorn -k gthread -w 1 --threads {THREADS} --no-control-socket --keep-alive 65"
            f" --log-level warning -b 127.0.0.1:{self._port} tests.bench.limit_service:app",
            "granian": f"granian --interface wsgi --workers 1 --blocking-threads {THREADS}"
            f" --log-level error --port {self._port} tests.bench.limit_service:app",
        }[engine].split()

    def start(self) -> "LimitServer":
        self._process = spawn([sys.executable, "-m", *self._command], env={**os.environ, "LIMIT_STORE": self._uri})
        wait_for(self._answers, 30, "the limit answers")
        return self

    def _answers(self) -> bool:
        try:
            return ask(self.url, "GET", "/v2/queues/bq0/messages").status == 200
        except Lost:
            return False

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


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

    @classmethod
    def middle(cls, rounds: list["Measured"]) -> "Measured":
        """The median of each."""
        return cls(*(median(values) for values in zip(*rounds, strict=True)))  # type: ignore[arg-type]


class Side(NamedTuple):
    """A server that is measured, the processes of it and of its store."""

    name: str
    url: str
    leaders: tuple[int, ...]
    store: tuple[int, ...]


def seconds_of(pids: tuple[int, ...]) -> float:
    """Processor time that these processes, and those of their groups, have used."""
    used = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) in pids:
                used += int(fields[11]) + int(fields[12])
    return used / TICKS


def load(side: Side, row: Row, case: Case, seconds: float, pause: float = 0.0) -> Measured:
    """Have wrk load the side; ``pause``: milliseconds of each connection between two requests."""
    connections = CONNECTIONS_AT_HALF if pause else case.connections
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(SCRIPT), side.url, "--"]
    command += [row.method, row.path, *([row.document(case.size)] if row.document(case.size) else [])]
    env = {**os.environ, "QUEUES": str(case.queues), "TENANTS": str(case.tenants), "PAUSE": f"{pause:.3f}"}
    before = seconds_of(side.leaders), seconds_of(side.store)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 60, env=env)
    lines = {line.split()[0]: list(map(float, line.split()[1:])) for line in done.stdout.splitlines()[-2:]}
    rate, p50, p99, failed = lines["RATE"]
    p999, answer = lines["TAIL"]
    requests = max(1.0, rate * seconds)
    spent = ((seconds_of(side.leaders) - before[0]) / requests, (seconds_of(side.store) - before[1]) / requests)
    return Measured(rate, p50, p99, p999, int(failed), answer, spent[0] * 1e6, spent[1] * 1e6)


@contextmanager
def sides(store: str, engine: str, names: list[str], case: Case) -> Iterator[list[Side]]:
    """The servers, each on a store of its own."""
    with ExitStack() as stack:
        found = []
        for name in names:
            uri, plain, owners = stack.enter_context(on_store(store)) if name != "empty" else ("", "", ())
            if name == "zq":
                config = f"[server]\nworkers = {case.processes}\nthreads = {THREADS}\n"
                server = stack.enter_context(ZqServer(uri, engine=engine, config=config, forked=False))
                found.append(Side(name, server.url, (server.pid,), owners))
            elif name == "limit":
                limit = stack.enter_context(LimitServer(uri, engine))
                found.append(Side(name, limit.url, (limit.pid,), owners))
            elif name == "empty":
                found.append(Side(name, stack.enter_context(EmptyServer(engine)).url, (), ()))
            elif plain:
                peer = ZaqarServer(environment(Path.home() / ".cache" / "zq-peer"), plain)
                found.append(Side(name, stack.enter_context(peer).url, (), owners))
        yield found


@contextmanager
def on_store(store: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """An empty store: its URI, the plain one that Zaqar takes, its processes; nothing where there is none."""
    if store == "rocksdb":
        with tempfile.TemporaryDirectory() as folder:
            yield f"rocksdb://{folder}/store", "", ()
    elif store == "redis":
        with RedisServer(shutil.which("redis-server")) as redis:
            yield redis.uri, redis.uri.removesuffix("/0"), (redis.pid,)
    else:
        with MongoServer(ttl_seconds=60) as mongo:
            yield mongo.uri, f"mongodb://{mongo.address}", (mongo.pid,)


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
    print("\n| | zq /s | p50 | p99 ms | half p50 | p99 | zq µs | store µs | limit /s | µs | empty /s ", end="")
    print("| Zaqar /s | zq / limit | limit µs / zq µs | zq / Zaqar |\n|---|" + "--:|" * 14)
    told = []
    with sides(store, engine, arguments.sides.split(","), case) as found:
        if case.backlog:
            fill(found[0].url, "bq0", case.backlog, ttl=86400, delay=3600)
        for row in ROWS:
            if arguments.rows and row.name not in arguments.rows.split(","):
                continue
            taking = [side for side in found if side.name in row.sides.split()]
            rounds: dict[str, list[Measured]] = {side.name: [] for side in taking}
            for turn in range(arguments.rounds):
                for side in taking if turn % 2 else taking[::-1]:
                    if row.drain or not turn:
                        stock(side, row, case, arguments.seconds)
                    rounds[side.name].append(load(side, row, case, arguments.seconds))
            calm = at_half(taking[0], row, case, arguments.seconds, rounds["zq"])
            told.append(line(store, engine, case, row, rounds, calm))
    return told


def at_half(side: Side, row: Row, case: Case, seconds: float, rounds: list[Measured]) -> Measured:
    """At half of the load that was taken."""
    if row.drain:
        stock(side, row, case, seconds)
    full = median(each.per_second for each in rounds)
    return load(side, row, case, seconds, pause=CONNECTIONS_AT_HALF / (full / 2) * 1000)


def line(
    store: str, engine: str, case: Case, row: Row, rounds: Mapping[str, list[Measured]], calm: Measured
) -> dict[str, Any]:
    """Print a line of the table; what it says."""
    middles = {name: Measured.middle(its) for name, its in rounds.items()}
    zq, limit = middles["zq"], middles.get("limit")

    def ratio(other: str, of: str = "per_second", turned: bool = False) -> str:
        pairs = zip(rounds["zq"], rounds.get(other, []), strict=False)
        values = [getattr(b, of) / getattr(a, of) if turned else getattr(a, of) / getattr(b, of) for a, b in pairs]
        return f"{median(values):.2f}" if values else ""

    dry = " (ran dry)" if min(each.answer for each in rounds["zq"]) < row.drain * case.size else ""
    failed = sum(each.failed for each in rounds["zq"])
    note = dry + (f" ({failed} failed)" if failed else "")
    cells = [
        *(f"{zq.per_second:.0f}", f"{zq.p50:.1f}", f"{zq.p99:.1f}", f"{calm.p50:.1f}", f"{calm.p99:.1f}"),
        *(f"{zq.server:.0f}", f"{zq.store:.0f}"),
        *((f"{limit.per_second:.0f}", f"{limit.server:.0f}") if limit else ("", "")),
        *(f"{middles[name].per_second:.0f}" if name in middles else "" for name in ("empty", "zaqar")),
        *(ratio("limit"), ratio("limit", "server", True), ratio("zaqar")),
    ]
    print(f"| {row.name}{note} | " + " | ".join(cells) + " |", flush=True)
    figures = {name: middle._asdict() for name, middle in middles.items()} | {"half": calm._asdict()}
    return {"store": store, "engine": engine, "row": row.name, **case._asdict(), "figures": figures}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("stores", "rocksdb,redis,mongodb"), ("engines", "granian"), ("sides", "zq,limit,empty")):
        parser.add_argument(f"--{name}", default=value)
    parser.add_argument("--rows", default="")
    first = Case(connections=16, size=100, queues=8, tenants=1, backlog=0, processes=1)
    for name, number in first._asdict().items():
        parser.add_argument(f"--{name}", default=str(number), metavar="N,...")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("This benchmark needs wrk on PATH (apt-get install wrk).")
    told = []
    for store in arguments.stores.split(","):
        for engine in arguments.engines.split(","):
            for case in cases(arguments):
                told += table(store, engine, case, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1))
    if arguments.plots:
        plot(told, arguments.plots)


if __name__ == "__main__":
    main()
