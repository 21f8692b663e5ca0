# SPDX-License-Identifier: Apache-2.0
"""What a tenant feels of strangers, and of another tenant at ten times its rate (tenancy 10): p99 before and meanwhile.

``python -m tests.bench.neighbours [--store URI] [--engine gunicorn|granian] [--seconds N]`` prints both, and asserts
nothing. Who floods runs on the same machine, so the same flood goes against a listener that does nothing as well: what
the tenant feels beyond that is the server's doing. Bounds of the contract: 1.2 for strangers, 1.5 for the other tenant.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

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
# What the listener that does nothing answers a stranger, and a tenant.
REFUSED: Final = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
DONE: Final = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


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


def strangers(port: int, over: Event, answered: Any, _: str) -> None:
    """A part of the flood, from another address: who fails too often is refused by address."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), BODY)

    def call() -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, OTHER) as stranger:
            stranger.sendall(head + b"x" * BODY)
            if stranger.recv(1000):
                with answered.get_lock():
                    answered.value += 1

    paced(FLOOD / PROCESSES, over.is_set, call)


def greedy(port: int, over: Event, answered: Any, credential: str) -> None:
    """A part of what a tenant asks beyond its rate."""
    post = poster(port, credential)

    def call() -> None:
        post()
        with answered.get_lock():
            answered.value += 1

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
                if len(body) >= len(POSTED):
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
def crowd(work: Callable[..., None], port: int, credential: str) -> Iterator[Callable[[], int]]:
    """Processes that ask a port; tells how many answers they have had."""
    context = multiprocessing.get_context("spawn")
    over, answered = context.Event(), context.Value("q", 0)
    processes = [context.Process(target=work, args=(port, over, answered, credential)) for _ in range(PROCESSES)]
    for each in processes:
        each.start()
    time.sleep(3)
    yield lambda: int(answered.value)
    over.set()
    for each in processes:
        each.join()


def row(
    name: str, work: Callable[..., None], server: ZqServer, dummy: int, seconds: float, names: Sequence[str]
) -> None:
    """Print what the one tenant feels of the other, or of strangers."""
    modest, other = names
    alone = p99(server.port, modest, seconds)
    with crowd(work, dummy, other):
        elsewhere = p99(server.port, modest, seconds)
    with crowd(work, server.port, other) as answers:
        before, began, count = seconds_of(server), time.monotonic(), answers()
        beside = p99(server.port, modest, seconds)
        rate = (answers() - count) / (time.monotonic() - began)
        busy = (seconds_of(server) - before) / (time.monotonic() - began)
    print(
        f"{name:20} p99 alone {alone:7.2f} ms, with a listener that does nothing {elsewhere:7.2f}, "
        f"with this server {beside:7.2f}: {beside / elsewhere:.2f} times ({beside / alone:.2f} of alone); "
        f"{rate:5.0f} answers/s to them, the server takes {busy:.0%} of a processor"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="rocksdb:/tmp/zq-neighbours")
    parser.add_argument("--engine", default="gunicorn")
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    names = token(given.store, "modest"), token(given.store, "greedy")
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    dummy = context.Process(target=listener, args=(port,), daemon=True)
    dummy.start()
    asked = port.get()
    with ZqServer(given.store, engine=given.engine, config=CONFIG) as server:
        for name, work in (("strangers", strangers), ("ten times its rate", greedy)):
            row(name, work, server, asked, given.seconds, names)
    dummy.terminate()


if __name__ == "__main__":
    main()
