# SPDX-License-Identifier: Apache-2.0
"""The tables of ``api-ref/capacity.md``: space per message, rates per core, memory, a backlog, and expiry.

``python -m bench.capacity [--stores rocksdb,redis,mongodb] [--write api-ref/capacity.md] [--quick]`` needs wrk on PATH.
It prints the tables. With ``--write``, it replaces those of the page, each of which lies between ``<!-- NAME -->`` and
``<!-- / -->``, if all parts and stores have been measured. It takes about 15 minutes and 3 GB of memory and disk.

Bodies are random, so that no store compresses them. Processor time is that of all processes of the server and of the
store, so rates per core depend little on other work of the machine. Latencies depend on it.
"""

import argparse
import base64
import json
import os
import platform
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bench import table
from bench.expiry import crowd
from bench.http import HEADERS, fill
from bench.sides import STORES, Side, available, choice, on_store, sides
from bench.table import Case, Measured, Row
from bench.weight import memory_of, stored
from tests.abilities import demand
from tests.servers import ZqServer, wait_for
from zq import __version__
from zq.model.expiry import Expiry, Steps

SIZES: Final = (100, 1000, 10_000)
NAMES: Final = {"rocksdb": "embedded", "redis": "Redis", "mongodb": "MongoDB"}
# Bytes of bodies that are posted for a measurement of space, and minimum and maximum number of messages.
FILLED: Final = 100_000_000
COUNTS: Final = (10_000, 100_000)
# Bytes of bodies in one request.
LARGEST_POST: Final = 200_000
# Lifetime of posted messages in seconds.
TTL: Final = 86_400
ROWS: Final = tuple(row for row in table.ROWS if row.name in ("post 1", "post 10", "claim 10", "claim+settle 10"))
# Requests per second that a server process does not reach, with messages to be claimed for so many.
MAX_RATE: Final = 3000
CASE: Final = Case(connections=16, size=100, queues=8, tenants=1, backlog=0, processes=1)
# Part of the full load at which latencies are measured, and number of rounds that find the pause for it.
SHARE: Final = 0.5
CALIBRATIONS: Final = 2
DEPTHS: Final = (10_000, 100_000, 1_000_000)
# Requests of one client on a backlog.
TURNS: Final = 200
QUEUES: Final = 1000
WAITERS: Final = 500
LISTED: Final = "/v2/queues/deep/messages?limit=10"
CLAIMED: Final = "/v2/queues/deep/claims?limit=10"
CLAIM: Final = '{"ttl": 300, "grace": 60}'
# The worked example: messages per second, their lifetime in seconds, and the size of a body.
EXAMPLE: Final = (200, 3 * 86_400, 1000)
# Files may need twice the space of the messages while a compaction rewrites them.
COMPACTION: Final = 2
# Redis's memory for a message, relative to that of its data.
REDIS_RESERVE: Final = 1.3
BILLION: Final = 1_000_000_000


class Plan(NamedTuple):
    """How much is measured."""

    filled: int = FILLED
    counts: tuple[int, int] = COUNTS
    seconds: float = 2.0
    rounds: int = 3
    depths: Sequence[int] = DEPTHS
    expired: int = 200_000


QUICK: Final = Plan(filled=1, counts=(2000, 2000), seconds=0.5, rounds=1, depths=(1000, 2000), expired=1000)


def random_body(size: int) -> str:
    """Return a JSON string of ``size`` bytes that cannot be compressed to less than three quarters."""
    return base64.b64encode(os.urandom(size))[: size - 2].decode()


def post(url: str, queue: str, count: int, size: int) -> None:
    """Post messages with random bodies, in large requests."""
    connection = HTTPConnection(urlsplit(url).netloc)
    at_once = max(1, min(500, LARGEST_POST // size))
    for start in range(0, count, at_once):
        messages = [{"body": random_body(size), "ttl": TTL} for _ in range(min(at_once, count - start))]
        request(connection, "POST", f"/v2/queues/{queue}/messages", json.dumps({"messages": messages}))
    connection.close()


def request(connection: HTTPConnection, method: str, path: str, body: str | None = None) -> float:
    """Send a request that succeeds. Return its duration in milliseconds."""
    began = time.perf_counter()
    connection.request(method, path, body, HEADERS)
    answer = connection.getresponse()
    answer.read()
    assert answer.status < 300, answer.status
    return (time.perf_counter() - began) * 1000


def count_of(size: int, plan: Plan) -> int:
    fewest, most = plan.counts
    return max(fewest, min(most, plan.filled // size))


def space(store: str, size: int, plan: Plan) -> float:
    """Return the bytes of a waiting message with its indexes in the store; on disk, or in Redis's memory."""
    count = count_of(size, plan)
    with on_store(store) as (uri, _, _):
        with ZqServer(uri, engine="granian", forked=False) as server:
            post(server.url, "weighed", 1000, size)
            before = stored(store, uri)
            post(server.url, "weighed", count, size)
            after = stored(store, uri)
        if store == "rocksdb":  # the next start moves the write-ahead log, which has a bounded size, to the table files
            with ZqServer(uri, engine="granian", forked=False):
                pass
            after = stored(store, uri)
        return (after - before) / count


def space_table(stores: Sequence[str], plan: Plan) -> tuple[str, dict[str, list[float]]]:
    """Return the table, and the bytes per message by store."""
    found = {store: [space(store, size, plan) for size in SIZES] for store in stores}
    rows = [(NAMES[store], *(f"{bytes:,.0f}" for bytes in each)) for store, each in found.items()]
    return render(("Store", *(f"{size:,} bytes" for size in SIZES)), rows), found


def example(found: Mapping[str, Sequence[float]]) -> str:
    """Return the formulas with numbers, from the bytes per message by store."""
    rate, lifetime, size = EXAMPLE
    texts = []
    if "rocksdb" in found:
        bytes = round(found["rocksdb"][SIZES.index(size)])
        texts.append(
            f"{rate} messages of {size:,} bytes per second that live {lifetime // 86_400} days need\n"
            f"`{rate} * {lifetime} * {bytes} * {COMPACTION}` bytes = "
            f"{rate * lifetime * bytes * COMPACTION / 1e9:,.0f} GB in the embedded store.\n"
        )
    if "redis" in found:
        bytes = round(found["redis"][0])
        texts.append(
            f"A billion messages of {SIZES[0]} bytes need `1e9 * {bytes} * {REDIS_RESERVE}` bytes = "
            f"{BILLION * bytes * REDIS_RESERVE / 1e9:,.0f} GB in Redis.\n"
        )
    return "".join(texts)


def expiry(plan: Plan) -> str:
    """Measure how fast a sweep of the embedded store removes expired messages, without requests."""
    rates = []
    with crowd.store("rocksdb") as (uri, _), crowd.opened(uri, Expiry(delete_on_read=False)) as storage:
        for number in range(1, plan.rounds + 1):
            expires = storage.now() + number * TTL
            crowd.post(storage, crowd.QUEUE, [TTL] * plan.expired, expires - TTL)
            began = time.perf_counter()
            removed = storage.maintain(expires, None, Steps(1000, 1 << 40))
            rates.append(removed / (time.perf_counter() - began))
            assert removed == plan.expired, removed
    return expiry_sentence(median(rates))


def expiry_sentence(rate: float) -> str:
    hours = BILLION / rate / 3600
    return f"The embedded store sweeps {rate:,.0f} messages per second, a billion in {hours:.0f} hours.\n"


def rates(store: str, plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind of request."""
    with sides(store, "granian", ["zq"], 1) as (side,):
        for row in ROWS:
            full = load(side, row, plan, MAX_RATE)
            paced = load(side, row, plan, full.per_second * SHARE, is_paced=True)
            yield (
                f"{NAMES[store]}: {row.name}",
                f"{full.per_second:,.0f}",
                f"{1e6 / full.server:,.0f}",
                f"{1e6 / full.store:,.0f}" if full.store else "-",
                f"{paced.p99:.0f}",
                f"{paced.per_second / full.per_second:.0%}",
            )


def load(side: Side, row: Row, plan: Plan, rate: float, is_paced: bool = False) -> Measured:
    """Return the median of the rounds at full load or, if ``is_paced``, at ``rate`` requests per second.

    The server never reaches ``rate`` at full load.
    """
    pause = table.CONNECTIONS_AT_HALF / rate * 1000 if is_paced else 0.0
    calibrations = CALIBRATIONS if is_paced else 0
    rounds: list[Measured] = []
    for _ in range(calibrations + plan.rounds):
        for number in range(CASE.queues):
            count = int(1.5 * rate * row.drain * plan.seconds / CASE.queues) + 20
            fill(side.url, f"bq{number}", count, body=table.body(CASE.size), ttl=TTL)
        rounds.append(table.load(side, row, CASE, plan.seconds, pause))
        assert not rounds[-1].failed, f"{row.name} failed."
        if len(rounds) <= calibrations:
            pause = corrected_pause(pause, rounds[-1].per_second, rate)
    return Measured.middle(rounds[calibrations:])


def corrected_pause(pause: float, achieved: float, rate: float) -> float:
    """Return the pause between an answer and the next request, in milliseconds, for ``rate`` requests per second.

    With ``pause``, the connections achieved ``achieved`` requests per second: the rest of their time is the latency.
    """
    latency = table.CONNECTIONS_AT_HALF / achieved * 1000 - pause
    return max(0.1, table.CONNECTIONS_AT_HALF / rate * 1000 - latency)


def rates_table(stores: Sequence[str], plan: Plan) -> str:
    heads = ("Requests", "per second", "per server core", "per store core", "p99 (ms)", "at load")
    return render(heads, [row for store in stores for row in rates(store, plan)])


def memory_table(plan: Plan) -> str:
    """Measure the memory of a server with the embedded store."""
    config = f"[server]\nmax_waiters = {WAITERS}\n[quota]\nshare = 100\n"
    with on_store("rocksdb") as (uri, _, _), ZqServer(uri, engine="granian", config=config, forked=False) as server:
        connection = HTTPConnection(urlsplit(server.url).netloc)
        request(connection, "POST", "/v2/queues/first/messages", '{"messages": [{"body": 1}]}')
        idle = memory_of(server.pid)
        for number in range(QUEUES):
            request(connection, "PUT", f"/v2/queues/q{number}")
        queues = memory_of(server.pid)
        with waiting(server):
            waiters = memory_of(server.pid)
    rows = [
        ("idle server", f"{idle / 1e6:.0f} MB"),
        (f"{QUEUES:,} queues", f"{(queues - idle) / 1e6:.1f} MB"),
        ("waiting request, with its connection", f"{(waiters - queues) / WAITERS / 1e3:.0f} kB"),
    ]
    return render(("Server, embedded store", "Memory"), rows)


@contextmanager
def waiting(server: ZqServer) -> Iterator[None]:
    """Keep claims waiting at the server, each on a connection of its own."""
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    asked = (
        f"POST /v2/queues/q0/claims?wait=20 HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(CLAIM)}\r\n\r\n"
    )
    probe = HTTPConnection(urlsplit(server.url).netloc)

    def are_all_waiting() -> bool:
        probe.request("GET", "/metrics")
        return f"zq_waiters {WAITERS:.1f}" in probe.getresponse().read().decode()

    with ExitStack() as ends:
        for _ in range(WAITERS):
            each = ends.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            each.sendall((asked + CLAIM).encode())
        wait_for(are_all_waiting, 15, "the requests wait")
        yield


def backlog(store: str, plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield a row for lists and a row for claims, with the median duration by number of waiting messages."""
    listed, claimed = [], []
    with on_store(store) as (uri, _, _), ZqServer(uri, engine="granian", forked=False) as server:
        before = 0
        for depth in plan.depths:
            post(server.url, "deep", depth - before, CASE.size)
            before = depth
            connection = HTTPConnection(urlsplit(server.url).netloc)
            listed.append(median(request(connection, "GET", LISTED + "&echo=true") for _ in range(TURNS)))
            claimed.append(median(request(connection, "POST", CLAIMED, CLAIM) for _ in range(TURNS // 10)))
            connection.close()
    for name, each in (("list 10", listed), ("claim 10", claimed)):
        yield f"{NAMES[store]}: {name}", *(f"{milliseconds:.1f}" for milliseconds in each)


def backlog_table(stores: Sequence[str], plan: Plan) -> str:
    heads = ("Median in ms", *(f"{depth:,} waiting" for depth in plan.depths))
    return render(heads, [row for store in stores for row in backlog(store, plan)])


def machine() -> str:
    """Describe the machine."""
    cpu = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    name = cpu[1] if cpu else platform.machine()
    return f"{os.cpu_count()} cores of {name}, {memory:.0f} GB of memory, Python {platform.python_version()}"


def render(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. All columns but the first are numbers."""
    first, *others = (f"| {' | '.join(cells)} |\n" for cells in [heads, *rows])
    return "".join([first, f"|---|{'--:|' * (len(heads) - 1)}\n", *others])


def replace(page: str, name: str, text: str) -> str:
    """Replace a generated part of the page. Raises ``ValueError`` if the page has no such part."""
    replaced, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- / -->)", lambda found: f"{found[1]}\n{text}\n{found[2]}", page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"The page has {count} parts {name}.")
    return replaced


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=",".join(STORES), type=choice("store", STORES))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose tables to replace; all parts and stores")
    parser.add_argument("--parts", default=",".join(PARTS), type=choice("part", PARTS))
    parser.add_argument("--quick", action="store_true", help="measure next to nothing, to try the command")
    arguments = parser.parse_args()
    demand("wrk")
    plan, stores = QUICK if arguments.quick else Plan(), [*available(arguments.stores)]
    if arguments.write and not (arguments.quick or ({*arguments.parts} == {*PARTS} and {*stores} == {*STORES})):
        parser.error("--write needs all parts and stores, because the page has one date for all tables.")
    loads, texts = [os.getloadavg()[0]], {}
    for part in arguments.parts:
        for name, text in PARTS[part](stores, plan).items():
            print(f"{name}\n\n{text}", flush=True)
            loads.append(os.getloadavg()[0])
            texts[name] = text
    if arguments.write:
        texts["machine"] = (
            f"Measured on {datetime.now(UTC):%Y-%m-%d} with zq {__version__}:\n{machine()}.\n"
            f"The load average was {min(loads):.0f} to {max(loads):.0f}.\n"
        )
        page = arguments.write.read_text()
        for name, text in texts.items():
            page = replace(page, name, text)
        arguments.write.write_text(page)


def space_parts(stores: Sequence[str], plan: Plan) -> dict[str, str]:
    text, found = space_table(stores, plan)
    return {"space": text, "example": example(found)}


PARTS: Final[dict[str, Callable[[Sequence[str], Plan], dict[str, str]]]] = {
    "space": space_parts,
    "rates": lambda stores, plan: {"rates": rates_table(stores, plan)},
    "memory": lambda _, plan: {"memory": memory_table(plan)},
    "backlog": lambda stores, plan: {"backlog": backlog_table(stores, plan)},
    "expiry": lambda _, plan: {"expiry": expiry(plan)},
}


if __name__ == "__main__":
    main()
