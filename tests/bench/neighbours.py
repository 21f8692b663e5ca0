# SPDX-License-Identifier: Apache-2.0
"""What a tenant feels of strangers, and of another tenant at ten times its rate (tenancy 10): p99 before and meanwhile.

``python -m tests.bench.neighbours [--store URI] [--engine gunicorn|granian] [--seconds N]`` prints both, and asserts
nothing: who floods runs on the same machine. Bounds of the contract: 1.2 for strangers, 1.5 for the other tenant.
"""

import argparse
import contextlib
import multiprocessing
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from multiprocessing.synchronize import Event
from typing import Final

from tests.servers import ZqServer

BODY: Final = 256 * 1024
# Requests a second of all strangers together, and of a tenant.
FLOOD: Final = 1000
RATE: Final = 100
# Requests a second of the tenant that is measured.
MODEST: Final = 50
PROCESSES: Final = 4
# Where strangers come from.
OTHER: Final = ("127.0.0.2", 0)
CONFIG: Final = f"[DEFAULT]\nauth_strategy = token\n[quota]\nrequests = {RATE}\n"
PATH: Final = "/v2/queues/jobs/messages"
POSTED: Final = '{"messages": [{"body": "' + "x" * 1000 + '"}]}'


def token(store: str, project: str) -> str:
    command = [sys.executable, "-m", "zq.server", "token", "create", "--project", project, "--store", store]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def paced(rate: float, over: Callable[[], bool], call: Callable[[], object]) -> None:
    """Call so often a second, or as often as it can be."""
    due = time.monotonic()
    while not over():
        due = max(due + 1 / rate, time.monotonic() - 0.1)
        time.sleep(max(0.0, due - time.monotonic()))
        call()


def strangers(port: int, over: Event, _: str) -> None:
    """A part of the flood, from another address: who fails too often is refused by address."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), BODY)

    def call() -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, OTHER) as stranger:
            stranger.sendall(head + b"x" * BODY)
            stranger.recv(1000)

    paced(FLOOD / PROCESSES, over.is_set, call)


def greedy(port: int, over: Event, credential: str) -> None:
    """A part of what a tenant asks beyond its rate."""
    call = poster(port, credential)
    paced(10 * RATE / PROCESSES, over.is_set, call)


def poster(port: int, credential: str) -> Callable[[], float]:
    """Posts a message; how long it took, in milliseconds."""
    headers = {"Authorization": f"Bearer {credential}", "Client-ID": "30387f00c63a4a30ac1f3e2cf1b0c3a1"}
    connection = HTTPConnection("127.0.0.1", port, timeout=20)

    def call() -> float:
        began = time.monotonic()
        connection.request("POST", PATH, POSTED, headers | {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        if reply.will_close:
            connection.close()
        return (time.monotonic() - began) * 1e3

    return call


def p99(port: int, credential: str, seconds: float) -> float:
    """Of a tenant within its rate."""
    call, taken, end = poster(port, credential), list[float](), time.monotonic() + seconds
    paced(MODEST, lambda: time.monotonic() > end, lambda: taken.append(call()))
    return statistics.quantiles(taken, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="rocksdb:/tmp/zq-neighbours")
    parser.add_argument("--engine", default="gunicorn")
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    modest, other = token(given.store, "modest"), token(given.store, "greedy")
    context = multiprocessing.get_context("spawn")
    with ZqServer(given.store, engine=given.engine, config=CONFIG) as server:
        for name, work in (("strangers", strangers), ("ten times its rate", greedy)):
            alone = p99(server.port, modest, given.seconds)
            over = context.Event()
            crowd = [context.Process(target=work, args=(server.port, over, other)) for _ in range(PROCESSES)]
            for each in crowd:
                each.start()
            time.sleep(2)
            beside = p99(server.port, modest, given.seconds)
            over.set()
            for each in crowd:
                each.join()
            print(f"{name:20} p99 alone {alone:7.2f} ms, meanwhile {beside:7.2f} ms: {beside / alone:.2f} times")


if __name__ == "__main__":
    main()
