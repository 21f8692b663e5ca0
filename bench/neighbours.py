# SPDX-License-Identifier: Apache-2.0
"""Measure how a tenant's posts slow down beside strangers (attack A4), beside a tenant at ten times its rate, and
beside one that sends the costliest requests (attacks S5, S7, D1, D5).

``python -m bench.neighbours [--store URI] [--engine gunicorn|granian] [--seconds N] [--only ROW]`` prints one line a
row and asserts nothing. Each line has the wall time of the tenant's posts and the processor time that the server takes
while a listing of ten messages is under way, p50 and p99, alone and beside the crowd. A post waits for the disk, and
others rightly use the processor meanwhile. The crowd runs on the same machine, which lengthens the wall time, so it
also sends its requests to a listener that does nothing.
Bounds: 1.2 for strangers, 1.5 for ten times the rate and for sleeping polls, 2 in processor time for costly requests.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import select
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
from typing import Any, Final, NamedTuple

from tests.servers import ZqServer

BODY: Final = 256 * 1024
# Requests a second of all strangers together, and of a tenant.
FLOOD: Final = 1000
RATE: Final = 100
# Requests a second of the tenant that is measured.
MODEST: Final = 50
PROCESSES: Final = 4
# What is added to the niceness of the crowd's processes.
NICE: Final = 10
# Seconds for which each kind of neighbour is measured at a time.
TURN: Final = 3.0
# Seconds for which the crowd asks before the tenant is measured: its polls are to sleep by then.
WARM: Final = 1.5
# Polls and streams that each process holds open, and how often a second it posts or publishes.
POLLS: Final = 25
SLEEPERS: Final = 100
STREAMS: Final = 8
POSTS: Final = 2.0
# Where strangers come from.
OTHER: Final = ("127.0.0.2", 0)
CONFIG: Final = "[DEFAULT]\nauth_strategy = token\n"
PATH: Final = "/v2/queues/jobs/messages"
POSTED: Final = '{"messages": [{"body": "' + "x" * 1000 + '"}]}'
# A post of as many small messages as one may have.
MANY: Final = json.dumps({"messages": [{"body": 1, "ttl": 3600}] * 1000})
# A post of messages of 1 kB each.
LARGE: Final = json.dumps({"messages": [{"body": "x" * 1000, "ttl": 3600}] * 240})
# Queues with 60 kB of metadata, and posts of that kind to one queue.
QUEUES: Final = 200
FILLED: Final = 40
# Messages of a stage, in posts of that kind.
STAGED: Final = 4
CLIENT: Final = "30387f00c63a4a30ac1f3e2cf1b0c3a1"
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

    def goes(self) -> bool:
        """Whether the crowd is to ask now."""
        return self.go.is_set() and not self.over.is_set()


def token(store: str, project: str, *options: str) -> str:
    command = [
        sys.executable,
        "-m",
        "zq.serving.server",
        "token",
        "create",
        "--project",
        project,
        *options,
        "--store",
        store,
    ]
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
    headers = {"Authorization": f"Bearer {credential}", "Client-ID": CLIENT}
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


def commits(port: int, signals: Signals, credential: str) -> None:
    """Stage some thousand messages and commit them, again and again."""
    call, name = asking(port, credential), f"job-{os.getpid()}"
    for batch in itertools.count():
        for _ in range(STAGED):
            if signals():
                return
            call("POST", f"/v2/queues/committed/messages?stage={name}-{batch}", MANY)
        commit = {"producer": name, "batch": batch, "publish": [f"{name}-{batch}"]}
        call("POST", "/v2/commits", json.dumps(commit))
        signals.count()
        call("POST", "/v2/queues/committed/purge", None)


def held(path: str, count: int, posted: tuple[str, str] | None = None) -> Callable[..., None]:
    """Hold so many GETs open, send each anew when it is answered, and post this meanwhile."""
    return partial(_held, path, count, posted)


def _held(path: str, count: int, posted: tuple[str, str] | None, port: int, signals: Signals, credential: str) -> None:
    post = asking(port, credential)
    while not signals():
        marker, due = "", time.monotonic()
        requests = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(count)]
        for each in requests:
            each.sendall(_head(path, credential, marker))
        while signals.goes():
            if posted is not None and time.monotonic() > due:
                due = time.monotonic() + 1 / POSTS
                post("POST", *posted)
            for each in select.select(requests, (), (), 0.02)[0]:
                answer = each.recv(1 << 20)
                signals.count()
                if not answer:  # the listener that does nothing, or a stream that was refused
                    requests.remove(each)
                elif posted is None or "stream" not in path:
                    found = re.search(rb"marker=([0-9a-f]+)", answer)
                    marker = found[1].decode() if found else marker
                    each.sendall(_head(path, credential, marker))
        for each in requests:
            each.close()


def _head(path: str, credential: str, marker: str) -> bytes:
    path += f"&marker={marker}" if marker else ""
    lines = f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {credential}", f"Client-ID: {CLIENT}"
    return "\r\n".join([*lines, "", ""]).encode()


def insist(call: Callable[[str, str, str | None], int], method: str, path: str, body: str | None) -> None:
    """Send a request until it is let in."""
    while (status := call(method, path, body)) == TOO_MANY:
        time.sleep(0.2)
    assert status < 400, (method, path, status)


def prepare(port: int, credential: str) -> None:
    """Make what the costly requests are about: queues with large metadata, and queues with many messages."""
    ask = partial(insist, asking(port, credential))
    metadata = json.dumps({"text": "x" * 60_000})
    for number in range(QUEUES):
        ask("PUT", f"/v2/queues/large{number}", metadata)
    for _ in range(FILLED):
        ask("POST", "/v2/queues/filled/messages", MANY)
    for _ in range(5):
        ask("POST", "/v2/queues/paged/messages", LARGE)
    for name in ("past", "again"):
        ask("PUT", f"/v2/queues/{name}", json.dumps({"_history_ttl": 3600}))
        for _ in range(2):
            ask("POST", f"/v2/queues/{name}/messages", MANY)
            ask("DELETE", f"/v2/queues/{name}/messages?pop=1000", None)


def limit_rate(port: int, credential: str, project: str) -> None:
    """Allow a project ``RATE`` requests a second; ``credential`` is an administrator's."""
    body = json.dumps({"limits": {"requests": RATE}})
    insist(asking(port, credential), "PUT", f"/v2/admin/project?project={project}", body)


def poster(port: int, credential: str) -> Callable[[], float]:
    """Posts a message; how long it took, in milliseconds."""
    send = asking(port, credential)

    def call() -> float:
        began = time.monotonic()
        send("POST", PATH, POSTED)
        return (time.monotonic() - began) * 1e3

    return call


def posts(server: ZqServer, credential: str, seconds: float) -> tuple[list[float], list[float]]:
    """Post and list in turn as a tenant within its rate; return the wall time of each post and the server's processor
    time during each listing, in milliseconds."""
    call, end = poster(server.port, credential), time.monotonic() + seconds
    show = asking(server.port, credential)
    wall, taken = list[float](), list[float]()
    workers = server.worker_pids

    def measure() -> None:
        wall.append(call())
        before = seconds_of(workers)
        show("GET", f"{PATH}?echo=true", None)
        taken.append((seconds_of(workers) - before) * 1e3)

    paced(MODEST, lambda: time.monotonic() > end, measure)
    return wall, taken


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


def seconds_of(pids: Sequence[int]) -> float:
    """Processor time that these processes have taken so far, by their clocks (CPUCLOCK_SCHED)."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


@contextlib.contextmanager
def crowd(work: Callable[..., None], port: int, credential: str) -> Iterator[Signals]:
    """Processes that ask a port, while they are told to."""
    context = multiprocessing.get_context("spawn")
    signals = Signals(context.Event(), context.Event(), context.Value("q", 0))
    processes = [context.Process(target=member, args=(work, port, signals, credential)) for _ in range(PROCESSES)]
    for each in processes:
        each.start()
    try:
        yield signals
    finally:
        signals.over.set()
        signals.go.set()
        for each in processes:
            each.join()


def member(work: Callable[..., None], port: int, signals: Signals, credential: str) -> None:
    """Run one process of the crowd, at a lower priority than the client that is measured.

    Otherwise the client waits for the processor after its answer has come, and the server's work of that time counts.
    """
    os.nice(NICE)
    work(port, signals, credential)


def row(
    name: str, work: Callable[..., None], server: ZqServer, dummy: int, seconds: float, names: Sequence[str]
) -> None:
    """Print how the one tenant's posts slow down beside the other, or beside strangers: in turns of some seconds, so
    that other load of the machine is the same for all."""
    wall = dict[str, list[float]](alone=[], dummy=[], beside=[])
    taken = dict[str, list[float]](alone=[], dummy=[], beside=[])
    busy, asked, answers = 0.0, 0.0, 0
    with crowd(work, dummy, names[1]) as elsewhere, crowd(work, server.port, names[1]) as here:
        for turn in range(1 + max(1, round(seconds / TURN))):
            for kind, signals in (("alone", None), ("dummy", elsewhere), ("beside", here)):
                workers = server.worker_pids
                before, began, count = seconds_of(workers), time.monotonic(), here.answered.value
                if signals is not None:
                    signals.go.set()
                    time.sleep(WARM)
                found = posts(server, names[0], TURN)
                if signals is not None:
                    signals.go.clear()
                if turn:  # the first is for the processes to begin
                    wall[kind] += found[0]
                    taken[kind] += found[1]
                if turn and kind == "beside":
                    asked += time.monotonic() - began
                    busy += seconds_of(workers) - before
                    answers += here.answered.value - count
                time.sleep(0.5)
    alone, dummy_, beside = (f"{_p50(each):.1f}, {_p99(each):.1f}" for each in wall.values())
    before_, during = (f"{_p50(taken[kind]):.2f}, {_p99(taken[kind]):.2f}" for kind in ("alone", "beside"))
    times = ", ".join(f"{measure(taken['beside']) / measure(taken['alone']):.2f}" for measure in (_p50, _p99))
    print(
        f"{name:20} processor ms p50, p99: {before_} before, {during} during: {times} times; "
        f"wall ms: alone {alone}, beside a crowd at a listener that does nothing {dummy_}, beside one here {beside}: "
        f"p99 {_p99(wall['beside']) / _p99(wall['dummy']):.2f} times; "
        f"{answers / asked:.0f} answers/s to the crowd, the server takes {busy / asked:.0%} of a processor",
        flush=True,
    )


def _p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


ROWS: Final[dict[str, Callable[..., None]]] = {
    "strangers": strangers,
    "ten times its rate": greedy,
    "posts of 1,000": costly(("POST", "/v2/queues/many/messages", MANY), ("POST", "/v2/queues/many/purge", None)),
    "filtered listings": costly(("GET", "/v2/queues?nothere=1", None)),
    "large pages": costly(("GET", "/v2/queues/paged/messages?limit=1000&echo=true", None)),
    "history pages": costly(("GET", "/v2/queues/past/history?limit=1000", None)),
    "replays": costly(
        ("POST", "/v2/queues/again/history/replay", '{"limit": 1000}'), ("POST", "/v2/queues/again/purge", None)
    ),
    "commits": commits,
    "woken polls": held("/v2/queues/polled/messages?wait=30&echo=true", POLLS, ("/v2/queues/polled/messages", POSTED)),
    "sleeping polls": held("/v2/queues/empty/messages?wait=30&echo=true", SLEEPERS),
    "streams": held("/v2/topics/told/stream", STREAMS, ("/v2/topics/told/messages", MANY)),
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
    names = [token(given.store, name) for name in ("modest", "greedy", "costly")]
    administrator = token(given.store, "operators", "--admin")
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    dummy = context.Process(target=listener, args=(port,), daemon=True)
    dummy.start()
    asked = port.get()
    with ZqServer(given.store, engine=given.engine, config=CONFIG, forked=False) as server:
        limit_rate(server.port, administrator, "greedy")
        prepare(server.port, names[2])
        for name, work in ROWS.items():
            if given.only in ("", name):
                other = names[1] if work is greedy else names[2]
                row(name, work, server, asked, given.seconds, (names[0], other))
    dummy.terminate()


if __name__ == "__main__":
    main()
