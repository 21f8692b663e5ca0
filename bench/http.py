# SPDX-License-Identifier: Apache-2.0
"""Requests per second over HTTP, compared with an empty Falcon application on the same engine, and with a backlog.

``python -m bench.http [--seconds N] [--rounds N] [--backlog N] [--engine E]`` needs wrk on PATH. It prints two tables
and asserts nothing; only results of one run may be compared, because of the machine's other load. All runs are
interleaved (A B A B), and each result is the median of its rounds.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.empty import EmptyServer
from tests.abilities import demand
from tests.servers import ZqServer

SCRIPT = Path(__file__).with_name("load.lua")
CONNECTIONS = 16
QUEUES = 8
HEADERS = {"Client-ID": "5d0c1f7e4f1e4d3c8a56b8b0f3a1c2d5", "X-Project-ID": "bench"}
# Number of messages in one request of a fill.
FILL = 500
LARGEST_FILL = 200_000
"""Maximum bytes of bodies in one request of a fill."""
BODY = {"event": "backup", "node": 17, "pad": "x" * 100}


class Row(NamedTuple):
    """A kind of request on a queue; ``drain``: number of messages that one request takes out of it."""

    name: str
    method: str
    path: str
    body: str
    drain: int


ROWS = (
    Row("post 1", "POST", "/v2/queues/{}/messages", json.dumps({"messages": [{"body": BODY}]}), 0),
    Row("list 10", "GET", "/v2/queues/{}/messages?limit=10", "", 0),
    Row("claim 10", "POST", "/v2/queues/{}/claims?limit=10", '{"ttl": 300, "grace": 60}', 10),
    Row("pop 10", "DELETE", "/v2/queues/{}/messages?pop=10", "", 10),
)


class Rate(NamedTuple):
    """The results of wrk."""

    per_second: float
    p50: float
    p99: float
    failed: int


def measure(url: str, row: Row, queue: str, seconds: int, connections: int = CONNECTIONS, queues: int = QUEUES) -> Rate:
    """Load the server with one kind of request. ``{n}`` in ``queue`` counts to ``queues``."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(SCRIPT), url, "--"]
    command += [row.method, row.path.format(queue), *([row.body] if row.body else [])]
    env = {**os.environ, "QUEUES": str(queues)}
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 60, env=env).stdout
    rate, p50, p99, failed = next(line for line in printed.splitlines() if line.startswith("RATE")).split()[1:]
    return Rate(float(rate), float(p50), float(p99), int(failed))


def fill(
    url: str, queue: str, count: int, *, body: object = BODY, headers: Mapping[str, str] = {}, **fields: int
) -> None:
    """Post ``count`` messages in large requests."""
    connection = HTTPConnection(urlsplit(url).netloc)
    at_once = max(1, min(FILL, LARGEST_FILL // len(json.dumps(body))))
    for start in range(0, count, at_once):
        posted = json.dumps({"messages": [{"body": body, **fields}] * min(at_once, count - start)})
        connection.request("POST", f"/v2/queues/{queue}/messages", posted, {**HEADERS, **headers})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 201, answer.status
    connection.close()


def make_delayed(url: str, queue: str) -> None:
    """Create a queue with a default delay, which each message may override."""
    connection = HTTPConnection(urlsplit(url).netloc)
    connection.request("PUT", f"/v2/queues/{queue}", json.dumps({"_default_message_delay": 900}), HEADERS)
    assert connection.getresponse().status == 201
    connection.close()


def against_empty(arguments: argparse.Namespace) -> None:
    """Measure zq and an empty application, in turn."""
    print(
        f"\n| {CONNECTIONS} connections, {arguments.engine} | zq, requests/s | p50 ms | p99 ms | empty | zq / empty |"
    )
    print("|---|---|---|---|---|---|")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(ZqServer(f"rocksdb://{folder}/store", engine=arguments.engine))
        empty = stack.enter_context(EmptyServer(arguments.engine))
        for row in ROWS:
            ours, theirs = [], []
            for _ in range(arguments.rounds):
                fill(server.url, "flat", max(1000, 4000 * row.drain // 10 * arguments.seconds * 10), ttl=3600)
                ours.append(measure(server.url, row, "flat", arguments.seconds))
                theirs.append(measure(empty.url, row, "flat", arguments.seconds).per_second)
            rate, base = median(each.per_second for each in ours), median(theirs)
            p50, p99 = median(each.p50 for each in ours), median(each.p99 for each in ours)
            failed = sum(each.failed for each in ours)
            note = f" ({failed} failed)" if failed else ""
            print(
                f"| {row.name}{note} | {rate:.0f} | {p50:.1f} | {p99:.1f} | {base:.0f} | {rate / base:.2f} |",
                flush=True,
            )


def with_backlog(arguments: argparse.Namespace) -> None:
    """Measure a queue without and a queue with a backlog of delayed messages in front of the ready ones, in turn."""
    print(f"\n| {arguments.backlog:,} delayed in the queue | none | backlog | ratio, median of the pairs |")
    print("|---|---|---|---|")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(ZqServer(f"rocksdb://{folder}/store", engine=arguments.engine))
        for queue in ("flat", "deep"):
            make_delayed(server.url, queue)
        fill(server.url, "deep", arguments.backlog, ttl=86400)
        for row in ROWS:
            pairs = []
            for _ in range(max(5, arguments.rounds)):
                pair = []
                for queue in ("flat", "deep"):
                    need = max(1000, 4000 * row.drain // 10 * arguments.seconds * 10)
                    fill(server.url, queue, need, ttl=3600, delay=0)
                    pair.append(measure(server.url, delayed(row), queue, arguments.seconds).per_second)
                pairs.append(pair)
            flat, deep = (median(pair[side] for pair in pairs) for side in (0, 1))
            print(f"| {row.name} | {flat:.0f} | {deep:.0f} | {median(b / a for a, b in pairs):.2f} |", flush=True)


def delayed(row: Row) -> Row:
    """Return the request for a delayed queue, where it posts ready messages."""
    if not row.name.startswith("post"):
        return row
    return row._replace(body=json.dumps({"messages": [{"body": BODY, "delay": 0}]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each kind; the backlog takes 5 at least")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="delayed messages in the deep queue; 0 = skip")
    parser.add_argument("--engine", choices=["gunicorn", "granian"], default="gunicorn")
    arguments = parser.parse_args()
    demand("wrk")
    steps: list[Callable[[argparse.Namespace], None]] = [against_empty]
    if arguments.backlog:
        steps.append(with_backlog)
    for step in steps:
        step(arguments)


if __name__ == "__main__":
    main()
