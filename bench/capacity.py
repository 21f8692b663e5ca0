# SPDX-License-Identifier: Apache-2.0
"""The tables of ``api-ref/capacity.md``: space per message, rates per core, memory, expiry, and long queues.

``python -m bench.capacity [--stores rocksdb,redis,mongodb] [--write api-ref/capacity.md] [--quick]`` needs wrk on PATH.
It prints the tables. With ``--write``, it replaces those of the page, each of which lies between ``<!-- NAME -->`` and
``<!-- / -->``, if all parts and stores have been measured. It takes about 15 minutes and 3 GB of memory and disk.

``python -m bench.capacity --backlog 1000000,10000000 [--stores ...] [--write api-ref/capacity.md]`` measures only
queues of such lengths, and writes only their table, which has a date of its own. It is a command of its own, because
it takes about 40 minutes more, in which it fills each store with 11 million messages. The driver posts the messages,
without syncs. If a store lacks memory or disk for a length, the command prints a sentence and skips the length. The
figures for the lengths of ``EXTRAPOLATED`` are computed from the last two measured lengths.

Bodies are random, so that no store compresses them. Processor time is that of all processes of the server and of the
store, so rates per core depend little on other work of the machine. Latencies depend on it.
"""

import argparse
import base64
import json
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bench import table
from bench.expiry import crowd
from bench.http import HEADERS
from bench.sides import STORES, Side, available, choice, on_store, sides
from bench.table import Measured, Row
from bench.weight import memory_of, stored
from tests.abilities import demand
from tests.servers import ZqServer, wait_for
from zq import __version__
from zq.model import Draft, QueueRef, new_ids
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
# Requests per second that a server process does not reach.
MAX_RATE: Final = 4500
CASE: Final = table.FIRST
# Parts of the full load at which latencies are measured.
SHARES: Final = (0.5, 0.8)
QUEUES: Final = 1000
WAITERS: Final = 500
LISTED: Final = "/v2/queues/deep/messages?limit=10"
CLAIMED: Final = "/v2/queues/deep/claims?limit=10"
CLAIM: Final = '{"ttl": 300, "grace": 60}'
POSTED: Final = "/v2/queues/deep/messages"
# Messages in one call of the driver, and number of requests of one client on a long queue.
BATCH: Final = 500
LONG_TURNS: Final = 500
# Bytes that a store may need for a message of a long queue, with what a compaction or a fork needs.
RESERVED: Final = 1000
# Lengths of queues that are not measured.
EXTRAPOLATED: Final = (100_000_000,)
STREAM: Final = "/v2/topics/news/stream"
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
    expired: int = 200_000


QUICK: Final = Plan(filled=1, counts=(2000, 2000), seconds=0.5, rounds=1, expired=1000)


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
            full = load(side, row, plan)
            latencies = []
            for share in SHARES:
                paced = table.load_at(side, row, CASE, plan.seconds, full.per_second * share, plan.rounds)
                assert not paced.failed, f"{row.name} failed."
                print(f"{NAMES[store]}, {row.name}: p99 at {paced.per_second / full.per_second:.0%}", file=sys.stderr)
                latencies.append(f"{paced.p99:.0f}")
            yield (
                f"{NAMES[store]}: {row.name}",
                f"{full.per_second:,.0f}",
                f"{1e6 / full.server:,.0f}",
                f"{1e6 / full.store:,.0f}" if full.store else "-",
                *latencies,
            )


def load(side: Side, row: Row, plan: Plan) -> Measured:
    """Return the median of the rounds at full load."""
    rounds: list[Measured] = []
    for _ in range(plan.rounds):
        table.stock(side, row, CASE, plan.seconds, MAX_RATE)
        rounds.append(table.load(side, row, CASE, plan.seconds))
        assert not rounds[-1].failed, f"{row.name} failed."
    return Measured.middle(rounds)


def rates_table(stores: Sequence[str], plan: Plan) -> str:
    latencies = (f"p99 at {100 * share:.0f} % (ms)" for share in SHARES)
    heads = ("Requests", "per second", "per server core", "per store core", *latencies)
    return render(heads, [row for store in stores for row in rates(store, plan)])


def memory_table(plan: Plan) -> str:
    """Measure the memory of a server with the embedded store."""
    config = (
        f"[server]\nmax_waiters = {WAITERS}\nmax_streams = {WAITERS}\nmax_connections_per_address = {3 * WAITERS}\n"
        "[quota]\nshare = 100\n[websocket]\nenabled = true\n"
        + "".join(f"max_connections{each} = {2 * WAITERS}\n" for each in ("", "_per_address", "_per_project"))
    )
    used = []
    for opened in (waiting, streaming, subscribed):  # each on a server of its own, because servers keep freed memory
        with on_store("rocksdb") as (uri, _, _), ZqServer(uri, engine="granian", config=config, forked=False) as server:
            connection = HTTPConnection(urlsplit(server.url).netloc)
            request(connection, "POST", "/v2/queues/first/messages", '{"messages": [{"body": 1}]}')
            request(connection, "POST", "/v2/topics/news/messages", '{"messages": [{"body": 1}]}')
            before = memory_of(server.pid)
            with opened(server):
                used.append((memory_of(server.pid) - before) / WAITERS)
    with on_store("rocksdb") as (uri, _, _), ZqServer(uri, engine="granian", forked=False) as server:
        connection = HTTPConnection(urlsplit(server.url).netloc)
        request(connection, "POST", "/v2/queues/first/messages", '{"messages": [{"body": 1}]}')
        idle = memory_of(server.pid)
        for number in range(QUEUES):
            request(connection, "PUT", f"/v2/queues/q{number}")
        queues = memory_of(server.pid)
    rows = [
        ("idle server", f"{idle / 1e6:.0f} MB"),
        (f"{QUEUES:,} queues", f"{(queues - idle) / 1e6:.1f} MB"),
        ("waiting request, with its connection", f"{used[0] / 1e3:.0f} kB"),
        ("stream of server-sent events, with its connection", f"{used[1] / 1e3:.0f} kB"),
        ("WebSocket connection with a subscription", f"{used[2] / 1e3:.0f} kB"),
    ]
    return render(("Server, embedded store", "Memory"), rows)


@contextmanager
def waiting(server: ZqServer) -> Iterator[None]:
    """Keep claims waiting at the server, each on a connection of its own."""
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    asked = (
        f"POST /v2/queues/q0/claims?wait=20 HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {len(CLAIM)}\r\n\r\n"
    )
    with connected(server, [(asked + CLAIM).encode()] * WAITERS):
        wait_for(lambda: counts(server, "waiters", WAITERS), 15, "the requests wait")
        yield


@contextmanager
def streaming(server: ZqServer) -> Iterator[None]:
    """Keep streams of a topic open, each on a connection of its own."""
    head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    asked = f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode()
    with connected(server, [asked] * WAITERS):
        wait_for(lambda: counts(server, "streams", WAITERS), 60, "the streams are open")
        yield


@contextmanager
def subscribed(server: ZqServer) -> Iterator[None]:
    """Keep WebSocket connections open, each of which is subscribed to a queue of its own."""
    key = base64.b64encode(os.urandom(16)).decode()
    asked = (
        "GET /v2/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
    with connected(server, [asked.encode()] * WAITERS) as connections:
        for number, each in enumerate(connections):
            assert b" 101 " in each.recv(4096), "The handshake failed."
            action = {"action": "subscription_create", "body": {"queue_name": f"q{number}", "ttl": 3600}}
            each.sendall(frame(json.dumps({**action, "headers": HEADERS}).encode()))
        for each in connections:
            assert b'"status":201' in each.recv(65_536).replace(b" ", b""), "The subscription failed."
        yield


def frame(text: bytes) -> bytes:
    """Return a masked text frame of WebSocket for 126 to 65,535 bytes. The mask of zeros changes nothing."""
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + b"\0" * 4 + text


@contextmanager
def connected(server: ZqServer, requests: Sequence[bytes]) -> Iterator[list[socket.socket]]:
    """Send each request on a connection of its own, and keep the connections open."""
    with ExitStack() as ends:
        connections = []
        for each in requests:
            connections.append(ends.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)))
            connections[-1].sendall(each)
        yield connections


def counts(server: ZqServer, metric: str, number: int) -> bool:
    """Return whether the server's gauge has the value."""
    probe = HTTPConnection(urlsplit(server.url).netloc)
    probe.request("GET", "/metrics")
    found = f"\nzq_{metric} {number:.1f}\n" in probe.getresponse().read().decode()
    probe.close()
    return found


class LongQueue(NamedTuple):
    """What a queue of ``length`` messages needs: bytes per message, seconds of a start, and bytes of the server.

    ``latencies`` has p50 and p99 of a post, a list and a claim in milliseconds; it is empty for an extrapolated length.
    """

    length: int
    bytes: float
    latencies: tuple[tuple[float, float], ...]
    started: float
    memory: float


def long_queues(store: str, lengths: Sequence[int]) -> Iterator[LongQueue]:
    """Fill a queue step by step. At each length, start a server and measure it."""
    with on_store(store) as (uri, _, _):
        empty = stored(store, uri)
        for before, length in pairwise([0, *lengths]):
            if missing := find_shortage(store, length - before):
                print(f"{NAMES[store]}: {length:,} messages are skipped: {missing}", file=sys.stderr)
                return
            add(uri, length - before)
            began = time.perf_counter()
            with ZqServer(uri, engine="granian", forked=False) as server:
                started = time.perf_counter() - began
                latencies = measure_latencies(server)
                memory = memory_of(server.pid)
                used = stored(store, uri) if store != "rocksdb" else 0
            used = used or stored(store, uri)  # of the embedded store, after the log has been moved to the table files
            yield LongQueue(length, (used - empty) / length, latencies, started, memory)


def find_shortage(store: str, count: int) -> str:
    """Return why there is no space for ``count`` messages, or ""."""
    needed = count * RESERVED
    available = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert available
    free = int(available[1]) * 1024 if store == "redis" else shutil.disk_usage(tempfile.gettempdir()).free
    place = "memory" if store == "redis" else "disk"
    return "" if free > needed else f"they may need {needed / 1e9:.0f} GB of {place}, and {free / 1e9:.0f} GB are free."


def add(uri: str, count: int) -> None:
    """Post messages with random bodies through the driver, without syncs."""
    queue = QueueRef(HEADERS["X-Project-ID"], "deep")
    with crowd.opened(uri) as storage:
        for start in range(0, count, BATCH):
            now, number = storage.now(), min(BATCH, count - start)
            drafts = [
                Draft(id, json.dumps(random_body(CASE.size)).encode(), TTL, 0, "bench") for id in new_ids(number, now)
            ]
            storage.messages.post(queue, drafts, now)


def measure_latencies(server: ZqServer) -> tuple[tuple[float, float], ...]:
    """Return p50 and p99 in milliseconds of a post of one message, a list and a claim, on one connection."""
    connection = HTTPConnection(urlsplit(server.url).netloc)
    one = json.dumps({"messages": [{"body": random_body(CASE.size), "ttl": TTL}]})
    kinds = (("POST", POSTED, one), ("GET", LISTED + "&echo=true", None), ("POST", CLAIMED, CLAIM))
    found = []
    for kind in kinds:
        cuts = quantiles((request(connection, *kind) for _ in range(LONG_TURNS)), n=100, method="inclusive")
        found.append((cuts[49], cuts[98]))
    connection.close()
    return tuple(found)


def extrapolate(found: Sequence[LongQueue], length: int) -> LongQueue:
    """Return what a longer queue needs, if start and memory grow as between the last two lengths."""
    earlier, last = found[-2:]
    times = (length - last.length) / (last.length - earlier.length)

    def grown(before: float, after: float) -> float:
        return after + max(0.0, after - before) * times

    started, memory = grown(earlier.started, last.started), grown(earlier.memory, last.memory)
    return LongQueue(length, last.bytes, (), started, memory)


def long_table(stores: Sequence[str], lengths: Sequence[int]) -> str:
    """Measure, and return the table with its date."""
    rows, sentences, loads = [], [], [os.getloadavg()[0]]
    for store in stores:
        found = []
        for each in long_queues(store, lengths):
            found.append(each)
            loads.append(os.getloadavg()[0])
            print(" | ".join(long_row(store, each)), flush=True)
        rows += [long_row(store, each) for each in found]
        if len(found) > 1:
            longer = [length for length in EXTRAPOLATED if length > found[-1].length]
            sentences += [long_sentence(store, extrapolate(found, length)) for length in longer]
    heads = ("One queue", "bytes", "post 1", "list 10", "claim 10", "start (s)", "MB")
    when = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} with zq {__version__}: load {min(loads):.0f} to {max(loads):.0f}.\n"
    )
    return f"{render(heads, rows)}\n{''.join(sentences)}{when}"


def long_row(store: str, queue: LongQueue) -> tuple[str, ...]:
    latencies = (f"{p50:.1f}/{p99:.1f}" for p50, p99 in queue.latencies)
    figures = (f"{queue.bytes:,.0f}", *latencies, f"{queue.started:.1f}", f"{queue.memory / 1e6:,.0f}")
    return f"{NAMES[store]}: {queue.length:,}", *figures


def long_sentence(store: str, queue: LongQueue) -> str:
    """Return what an extrapolated length needs."""
    return (
        f"{NAMES[store]}, {queue.length:,} messages, extrapolated: {queue.bytes * queue.length / 1e9:,.0f} GB, "
        f"server {queue.memory / 1e6:,.0f} MB.\n"
    )


def measured_on(loads: Sequence[float]) -> str:
    """Return the sentences with date, version, machine and load."""
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} with zq {__version__}:\n{machine()}.\n"
        f"The load average was {min(loads):.0f} to {max(loads):.0f}.\n"
    )


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


def write(page: Path, texts: Mapping[str, str]) -> None:
    """Replace parts of the page."""
    text = page.read_text()
    for name, part in texts.items():
        text = replace(text, name, part)
    page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default=",".join(STORES), type=choice("store", STORES))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose tables to replace; all parts and stores")
    parser.add_argument("--parts", default=",".join(PARTS), type=choice("part", PARTS))
    parser.add_argument("--quick", action="store_true", help="measure next to nothing, to try the command")
    parser.add_argument("--backlog", metavar="N,...", help="measure only queues of such lengths")
    arguments = parser.parse_args()
    if arguments.backlog:
        lengths = sorted(int(length) for length in arguments.backlog.split(","))
        text = long_table([*available(arguments.stores)], lengths)
        print(f"\n{text}")
        if arguments.write:
            write(arguments.write, {"long": text})
        return
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
        write(arguments.write, texts | {"machine": measured_on(loads)})


def space_parts(stores: Sequence[str], plan: Plan) -> dict[str, str]:
    text, found = space_table(stores, plan)
    return {"space": text, "example": example(found)}


PARTS: Final[dict[str, Callable[[Sequence[str], Plan], dict[str, str]]]] = {
    "space": space_parts,
    "rates": lambda stores, plan: {"rates": rates_table(stores, plan)},
    "memory": lambda _, plan: {"memory": memory_table(plan)},
    "expiry": lambda _, plan: {"expiry": expiry(plan)},
}


if __name__ == "__main__":
    main()
