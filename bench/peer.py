# SPDX-License-Identifier: Apache-2.0
"""zq compared with Zaqar on the same store, and zq's queues with 1,000 and with 200,000 waiting messages.

``python -m bench.peer [--store mongodb|redis|both] [--seconds N] [--rounds N] ...`` needs wrk on PATH, and installs
Zaqar into its own folder (``--venv``). It asserts nothing; only results of one run may be compared. All runs are
interleaved, and each result is the median of its rounds.
"""

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench.http import BODY, HEADERS, Row, fill, measure
from bench.zaqar import FOLDER, ZaqarServer, environment
from tests.abilities import able, demand
from tests.servers import ZqServer
from tests.stores import MongoServer, RedisServer

QUEUES = 8
# wrk uses the queues bq0 to bq7 in turn.
EACH = "bq{n}"
SHALLOW = 1000
# Requests of one client in each measurement on a shallow and on a deep queue.
TURNS = 40


def rows(echo: str = "&echo=true") -> tuple[Row, ...]:
    one, ten = (json.dumps({"messages": [{"body": BODY, "ttl": 3600}] * count}) for count in (1, 10))
    return (
        Row("post 1", "POST", "/v2/queues/{}/messages", one, 0),
        Row("post 10", "POST", "/v2/queues/{}/messages", ten, 0),
        Row("list 10", "GET", f"/v2/queues/{{}}/messages?limit=10{echo}", "", 0),
        Row("claim 10", "POST", "/v2/queues/{}/claims?limit=10", '{"ttl": 300, "grace": 60}', 10),
        Row("pop 10", "DELETE", "/v2/queues/{}/messages?pop=10", "", 10),
    )


@contextmanager
def store(kind: str) -> Iterator[tuple[str, str]]:
    """Start a new server and yield zq's URI for it and the plain one for Zaqar."""
    if kind == "mongodb":
        with MongoServer(ttl_seconds=60) as mongo:
            yield mongo.uri, f"mongodb://{mongo.address}"
    else:
        with RedisServer("redis-server" if able("redis-server") else None) as redis:
            yield redis.uri, redis.uri.removesuffix("/0")


def workers(count: int) -> str:
    return f"[server]\nworkers = {count}\nthreads = 16\n"


def beside_the_peer(kind: str, arguments: argparse.Namespace, venv: Path) -> None:
    """Measure both services on one store server, in turn."""
    print(f"\n| {kind}, {arguments.engine}, 16 connections, 8 queues", end=" | ")
    print("zq, requests/s | p50 ms | p99 ms | Zaqar | p99 ms | zq / Zaqar |")
    print("|---|---|---|---|---|---|---|")
    with ExitStack() as stack:
        uri, plain = stack.enter_context(store(kind))
        ours = stack.enter_context(ZqServer(uri, engine=arguments.engine, config=workers(arguments.workers)))
        theirs = stack.enter_context(ZaqarServer(venv, plain))
        for row in rows():
            rates: dict[str, list] = {ours.url: [], theirs.url: []}
            for _ in range(arguments.rounds):
                for url, fastest in ((ours.url, 2500), (theirs.url, 250)):
                    for number in range(QUEUES):
                        fill(url, f"bq{number}", max(500, fastest * row.drain * arguments.seconds // QUEUES), ttl=3600)
                    rates[url].append(measure(url, row, EACH, arguments.seconds))
            report(row, rates[ours.url], rates[theirs.url])


def report(row: Row, ours: list, theirs: list) -> None:
    """Print a row of the table."""
    rate, base = median(each.per_second for each in ours), median(each.per_second for each in theirs)
    p50, p99 = median(each.p50 for each in ours), median(each.p99 for each in ours)
    slowest = median(each.p99 for each in theirs)
    failed = sum(each.failed for each in ours), sum(each.failed for each in theirs)
    note = f" (failed: {failed[0]}, {failed[1]})" if any(failed) else ""
    figures = f"{rate:.0f} | {p50:.1f} | {p99:.1f} | {base:.0f} | {slowest:.1f} | {rate / base:.1f}"
    print(f"| {row.name}{note} | {figures} |", flush=True)


def shallow_and_deep(kind: str, arguments: argparse.Namespace) -> None:
    """Measure one client on a queue with 1,000 and on one with many waiting messages, in turn."""
    print(f"\n| {kind}, one client, requests/s | {SHALLOW:,} waiting | {arguments.waiting:,} waiting | ratio |")
    print("|---|---|---|---|")
    with ExitStack() as stack:
        uri = stack.enter_context(store(kind))[0]
        server = stack.enter_context(ZqServer(uri, engine=arguments.engine, config=workers(1)))
        for queue, waiting in (("shallow", SHALLOW), ("deep", arguments.waiting)):
            fill(server.url, queue, waiting, ttl=86400)
        for row in rows():
            pairs = []
            for _ in range(max(5, arguments.rounds)):
                pair = []
                for queue in ("shallow", "deep"):
                    pair.append(pace(server.url, row, queue))
                    fill(server.url, queue, row.drain * TURNS, ttl=86400)
                pairs.append(pair)
            few, many = (median(pair[side] for pair in pairs) for side in (0, 1))
            print(f"| {row.name} | {few:.0f} | {many:.0f} | {median(b / a for a, b in pairs):.2f} |", flush=True)


def pace(url: str, row: Row, queue: str) -> float:
    """Return the requests per second of one client that sends one request after the other."""
    connection = HTTPConnection(urlsplit(url).netloc)
    started = time.monotonic()
    for _ in range(TURNS):
        connection.request(row.method, row.path.format(queue), row.body or None, HEADERS)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 201), answer.status
    elapsed = time.monotonic() - started
    connection.close()
    return TURNS / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["mongodb", "redis", "both"], default="both")
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--workers", type=int, default=2, help="zq's processes beside Zaqar's two")
    parser.add_argument(
        "--engine", choices=["gunicorn", "granian"], default="gunicorn", help="zq's; Zaqar has gunicorn"
    )
    parser.add_argument("--waiting", type=int, default=200_000, help="messages in the deep queue; 0 = skip")
    parser.add_argument("--venv", type=Path, default=FOLDER, help="Zaqar's environment")
    parser.add_argument("--alone", action="store_true", help="only the table of waiting messages, without Zaqar")
    arguments = parser.parse_args()
    demand("wrk")
    for kind in ("mongodb", "redis") if arguments.store == "both" else (arguments.store,):
        if not arguments.alone:
            beside_the_peer(kind, arguments, environment(arguments.venv))
        if arguments.waiting:
            shallow_and_deep(kind, arguments)


if __name__ == "__main__":
    main()
