# SPDX-License-Identifier: Apache-2.0
"""What a tenant feels of strangers (attack A4), of another tenant at ten times its rate (tenancy 10), and of one that
asks for what costs most (attacks S5, S7): p99 before and meanwhile.

``python -m bench.neighbours [--store URI] [--engine gunicorn|granian] [--seconds N] [--only ROW]`` prints both,
and asserts nothing. Who floods runs on the same machine, so the same flood goes against a listener that does nothing as
well: what the tenant feels beyond that is the server's doing. Bounds of the contract: 1.2 for strangers, 1.5 for the
other tenant.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPConnection
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.servers import ZqServer

BODY: Final = 256 * 1024
# Requests a second of all strangers together, and of a tenant.
FLOOD: Final = 1000
RATE: Final = 100
# Requests a second of the tenant that is measured.
MODEST: Final = 50
PROCESSES: Final = 4
# Seconds for which each kind of neighbour is measured at a time.
TURN: Final = 3.0
# Where strangers come from.
OTHER: Final = ("127.0.0.2", 0)
CONFIG: Final = f"[DEFAULT]\nauth_strategy = token\n[quota]\nrequests = {RATE}\n"
PATH: Final = "/v2/queues/jobs/messages"
POSTED: Final = '{"messages": [{"body": "' + "x" * 1000 + '"}]}'
# A post of as many small messages as one may have.
MANY: Final = json.dumps({"messages": [{"body": 1, "ttl": 3600}] * 1000})
# Queues with 60 kB of metadata, and posts of that kind to one queue.
QUEUES: Final = 200
FILLED: Final = 40
TOO_MANY: Final = 429
LENGTH: Final = re.compile(rb"Content-Length: (\d+)")
# What the listener that does nothing answers a stranger, and a tenant.
REFUSED: Final = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
DONE: Final = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


class Signals(NamedTuple):
    """What a crowd is told, and tells: ``go`` while it is to ask, ``over`` when it is to end, how much was answered."""

    go: Event
    over: Event
    answered: Any

    def __call__(self) -> bool:
        """Whether it is over; waits until it is to ask."""
        self.go.wait()
        return self.over.is_set()

    def count(self) -> None:
        """One answer more."""
        with self.answered.get_lock():
            self.answered.value += 1


def token(store: str, project: str, *options: str) -> str:
    command = [sys.executable, "-m", "zq.server", "token", "create", "--project", project, *options, "--store", store]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def paced(rate: float, over: Callable[[], bool], call: Callable[[], object]) -> None:
    """Call so often a second, or as often as it can be."""
    due = time.monotonic()
    while not over():
        due = max(due + 1 / rate, time.monotonic() - 0.1)
        time.sleep(max(0.0, due - time.monotonic()))
        call()


def strangers(port: int, signals: Signals, _: str) -> None:
    """A part of the flood, from another address: who fails too often is refused by address."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), BODY)

    def call() -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, OTHER) as stranger:
            stranger.sendall(head + b"x" * BODY)
            if stranger.recv(1000):
                signals.count()

    paced(FLOOD / PROCESSES, signals, call)


def greedy(port: int, signals: Signals, credential: str) -> None:
    """A part of what a tenant asks beyond its rate."""
    post = poster(port, credential)

    def call() -> None:
        post()
        signals.count()

    paced(10 * RATE / PROCESSES, signals, call)


def asking(port: int, credential: str) -> Callable[[str, str, str | None], int]:
    """Sends a request on a connection of its own; the status."""
    headers = {"Authorization": f"Bearer {credential}", "Client-ID": "30387f00c63a4a30ac1f3e2cf1b0c3a1"}
    connection = HTTPConnection("127.0.0.1", port, timeout=60)

    def call(method: str, path: str, body: str | None = None) -> int:
        connection.request(method, path, body, headers | {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        if reply.will_close:
            connection.close()
        return reply.status

    return call


def costly(*requests: tuple[str, str, str | None]) -> Callable[..., None]:
    """A part of what a tenant asks that asks for these in turn, as often as it may or can."""
    return partial(_costly, requests)


def _costly(requests: Sequence[tuple[str, str, str | None]], port: int, signals: Signals, credential: str) -> None:
    call, turn = asking(port, credential), itertools.cycle(requests)

    def ask() -> None:
        call(*next(turn))
        signals.count()

    paced(RATE / PROCESSES, signals, ask)


def prepare(port: int, credential: str) -> None:
    """What the costly requests are about: queues with large metadata, and one with many messages of their reader's."""
    call = asking(port, credential)

    def insist(method: str, path: str, body: str) -> None:
        while call(method, path, body) == TOO_MANY:
            time.sleep(0.2)

    metadata = json.dumps({"text": "x" * 60_000})
    for number in range(QUEUES):
        insist("PUT", f"/v2/queues/large{number}", metadata)
    for _ in range(FILLED):
        insist("POST", "/v2/queues/filled/messages", MANY)


def poster(port: int, credential: str) -> Callable[[], float]:
    """Posts a message; how long it took, in milliseconds."""
    send = asking(port, credential)

    def call() -> float:
        began = time.monotonic()
        send("POST", PATH, POSTED)
        return (time.monotonic() - began) * 1e3

    return call


def posts(port: int, credential: str, seconds: float) -> list[float]:
    """What each post of a tenant within its rate took, in milliseconds."""
    call, taken, end = poster(port, credential), list[float](), time.monotonic() + seconds
    paced(MODEST, lambda: time.monotonic() > end, lambda: taken.append(call()))
    return taken


def listener(port: "Queue[int]") -> None:
    """A server that does nothing: it answers the crowd as quickly as can be. What a tenant feels while the crowd asks
    this one is the crowd's own share of the machine."""

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            got = b""
            while piece := connection.recv(65536):
                head, _, body = (got := got + piece).partition(b"\r\n\r\n")
                if b"Authorization" not in head:
                    connection.sendall(REFUSED)
                    return
                length = LENGTH.search(head)
                if len(body) >= (int(length[1]) if length else 0):
                    connection.sendall(DONE)
                    got = b""

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        port.put(listening.getsockname()[1])
        while True:
            threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


def seconds_of(server: ZqServer) -> float:
    """Processor time that the server's workers have taken so far."""
    taken = 0
    for pid in server.worker_pids:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        taken += int(user) + int(system)
    return taken / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def crowd(work: Callable[..., None], port: int, credential: str) -> Iterator[Signals]:
    """Processes that ask a port, while they are told to."""
    context = multiprocessing.get_context("spawn")
    signals = Signals(context.Event(), context.Event(), context.Value("q", 0))
    processes = [context.Process(target=work, args=(port, signals, credential)) for _ in range(PROCESSES)]
    for each in processes:
        each.start()
    try:
        yield signals
    finally:
        signals.over.set()
        signals.go.set()
        for each in processes:
            each.join()


def row(
    name: str, work: Callable[..., None], server: ZqServer, dummy: int, seconds: float, names: Sequence[str]
) -> None:
    """Print what the one tenant feels of the other, or of strangers: in turns of some seconds, so that whatever else
    the machine does is the same for all."""
    taken = dict[str, list[float]](alone=[], dummy=[], beside=[])
    busy, asked, answers = 0.0, 0.0, 0
    with crowd(work, dummy, names[1]) as elsewhere, crowd(work, server.port, names[1]) as here:
        for turn in range(1 + round(seconds / TURN)):
            for kind, signals in (("alone", None), ("dummy", elsewhere), ("beside", here)):
                before, began, count = seconds_of(server), time.monotonic(), here.answered.value
                if signals is not None:
                    signals.go.set()
                    time.sleep(0.5)
                found = posts(server.port, names[0], TURN)
                if signals is not None:
                    signals.go.clear()
                if turn:  # the first is for the processes to begin
                    taken[kind] += found
                if turn and kind == "beside":
                    asked += time.monotonic() - began
                    busy += seconds_of(server) - before
                    answers += here.answered.value - count
                time.sleep(0.5)
    p99 = {kind: statistics.quantiles(each, n=100)[98] for kind, each in taken.items()}
    p50 = {kind: statistics.median(each) for kind, each in taken.items()}
    alone, dummy, beside = (f"{p50[kind]:.1f}, {p99[kind]:.1f}" for kind in taken)
    print(
        f"{name:20} p50, p99 alone {alone} ms, beside a crowd at a listener that does nothing {dummy}, beside one here "
        f"{beside}: p99 {p99['beside'] / p99['dummy']:.2f} times, of alone {p99['beside'] / p99['alone']:.2f}; "
        f"{answers / asked:.0f} answers/s to the crowd, the server takes {busy / asked:.0%} of a processor",
        flush=True,
    )


ROWS: Final[dict[str, Callable[..., None]]] = {
    "strangers": strangers,
    "ten times its rate": greedy,
    "posts of 1,000": costly(("POST", "/v2/queues/many/messages", MANY), ("POST", "/v2/queues/many/purge", None)),
    "filtered listings": costly(("GET", "/v2/queues?nothere=1", None)),
    "own messages listed": costly(("GET", "/v2/queues/filled/messages?limit=1", None)),
    "stats": costly(("GET", "/v2/queues/filled/stats", None)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="rocksdb:/tmp/zq-neighbours")
    parser.add_argument("--engine", default="gunicorn")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", default="", choices=list(ROWS), help="this row alone")
    given = parser.parse_args()
    names = token(given.store, "modest"), token(given.store, "greedy")
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    dummy = context.Process(target=listener, args=(port,), daemon=True)
    dummy.start()
    asked = port.get()
    with ZqServer(given.store, engine=given.engine, config=CONFIG) as server:
        prepare(server.port, names[1])
        for name, work in ROWS.items():
            if given.only in ("", name):
                row(name, work, server, asked, given.seconds, names)
    dummy.terminate()


if __name__ == "__main__":
    main()
