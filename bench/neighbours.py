# SPDX-License-Identifier: Apache-2.0
"""Slowdown of a tenant's posts by other clients.

The other clients are unauthenticated (attack A4), a tenant that sends ten times its rate, or one that sends the most
expensive requests (attacks S5, S7, D1, D5).

``python -m bench.neighbours [--store URI] [--engine gunicorn|granian] [--seconds N] [--only ROW]`` prints one line a
row and asserts nothing. Each line has p50 and p99, without and with the other clients, of the wall time of the tenant's
posts and of the server's processor time during a listing of ten messages. A post waits for the disk, and other requests
may use the processor in that time. The clients run on the same machine, which increases the wall time, so they also
send their requests to a dummy listener.

Limits: 1.2 for unauthenticated clients, 1.5 for ten times the rate and for idle polls, 2 in processor time for
expensive requests.
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
# Requests a second of all unauthenticated clients together, and the rate limit of a tenant.
FLOOD: Final = 1000
RATE: Final = 100
# Requests a second of the measured tenant.
MODEST: Final = 50
PROCESSES: Final = 4
# Increase of the niceness of the other clients' processes.
NICE: Final = 10
# Seconds of each measurement.
TURN: Final = 3.0
# Seconds for which the other clients run before the measurement, so that their polls are waiting by then.
WARM: Final = 1.5
# Number of open polls and streams of each process, and number of its posts or publishes a second.
POLLS: Final = 25
SLEEPERS: Final = 100
STREAMS: Final = 8
POSTS: Final = 2.0
# Source address of the unauthenticated clients.
OTHER: Final = ("127.0.0.2", 0)
CONFIG: Final = "[DEFAULT]\nauth_strategy = token\n"
PATH: Final = "/v2/queues/jobs/messages"
POSTED: Final = '{"messages": [{"body": "' + "x" * 1000 + '"}]}'
# A post with the maximum number of messages, all small.
MANY: Final = json.dumps({"messages": [{"body": 1, "ttl": 3600}] * 1000})
# A post of messages of 1 kB each.
LARGE: Final = json.dumps({"messages": [{"body": "x" * 1000, "ttl": 3600}] * 240})
# Number of queues with 60 kB of metadata, and number of posts of each kind to one queue.
QUEUES: Final = 200
FILLED: Final = 40
# Number of posts to a stage.
STAGED: Final = 4
CLIENT: Final = "30387f00c63a4a30ac1f3e2cf1b0c3a1"
TOO_MANY: Final = 429
LENGTH: Final = re.compile(rb"Content-Length: (\d+)")
# Responses of the dummy listener to an unauthenticated client and to a tenant.
REFUSED: Final = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
DONE: Final = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


class Signals(NamedTuple):
    """Signals to a group of clients: ``go`` while they send, ``over`` at the end; and the number of responses."""

    go: Event
    over: Event
    answered: Any

    def __call__(self) -> bool:
        """Wait until the clients may send, and return whether the measurement is over."""
        self.go.wait()
        return self.over.is_set()

    def count(self) -> None:
        """Count a response."""
        with self.answered.get_lock():
            self.answered.value += 1

    def goes(self) -> bool:
        """Return whether the clients may send now."""
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
    """Call ``call`` at ``rate`` a second, or as often as possible."""
    due = time.monotonic()
    while not over():
        due = max(due + 1 / rate, time.monotonic() - 0.1)
        time.sleep(max(0.0, due - time.monotonic()))
        call()


def strangers(port: int, signals: Signals, _: str) -> None:
    """Send a part of the unauthenticated requests from another address, because repeated failures block an address."""
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), BODY)

    def call() -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, OTHER) as stranger:
            stranger.sendall(head + b"x" * BODY)
            if stranger.recv(1000):
                signals.count()

    paced(FLOOD / PROCESSES, signals, call)


def greedy(port: int, signals: Signals, credential: str) -> None:
    """Send a part of a tenant's requests beyond its rate."""
    post = poster(port, credential)

    def call() -> None:
        post()
        signals.count()

    paced(10 * RATE / PROCESSES, signals, call)


def asking(port: int, credential: str) -> Callable[[str, str, str | None], int]:
    """Return a function that sends a request on its own connection and returns the status."""
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
    """Return a function that sends these requests in turn, as often as the server admits."""
    return partial(_costly, requests)


def _costly(requests: Sequence[tuple[str, str, str | None]], port: int, signals: Signals, credential: str) -> None:
    call, turn = asking(port, credential), itertools.cycle(requests)

    def ask() -> None:
        call(*next(turn))
        signals.count()

    paced(RATE / PROCESSES, signals, ask)


def commits(port: int, signals: Signals, credential: str) -> None:
    """Stage some thousand messages and commit them, repeatedly."""
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
    """Return a function that keeps ``count`` GETs open, repeats each after its response, and sends the posts."""
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
                if not answer:  # the dummy listener, or a refused stream
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
    """Repeat a request until it is admitted."""
    while (status := call(method, path, body)) == TOO_MANY:
        time.sleep(0.2)
    assert status < 400, (method, path, status)


def prepare(port: int, credential: str) -> None:
    """Create the data of the expensive requests: queues with large metadata, and queues with many messages."""
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
    """Limit a project to ``RATE`` requests a second; ``credential`` is an administrator's."""
    body = json.dumps({"limits": {"requests": RATE}})
    insist(asking(port, credential), "PUT", f"/v2/admin/project?project={project}", body)


def poster(port: int, credential: str) -> Callable[[], float]:
    """Return a function that posts a message and returns the duration in milliseconds."""
    send = asking(port, credential)

    def call() -> float:
        began = time.monotonic()
        send("POST", PATH, POSTED)
        return (time.monotonic() - began) * 1e3

    return call


def posts(server: ZqServer, credential: str, seconds: float) -> tuple[list[float], list[float]]:
    """Post and list in turn as a tenant within its rate.

    Return the wall time of each post and the server's processor time during each listing, in milliseconds.
    """
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
    """Run a dummy server that responds as quickly as possible.

    A tenant's slowdown while the other clients send to it is caused by their own use of the machine.
    """

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
    """Return the processor time of these processes, by their clocks (CPUCLOCK_SCHED)."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


@contextlib.contextmanager
def crowd(work: Callable[..., None], port: int, credential: str) -> Iterator[Signals]:
    """Run processes that send requests to a port while the signals allow it."""
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
    """Run one process of the other clients, at a lower priority than the measured client.

    Otherwise the client would wait for the processor after its response has arrived, and the server's work in that time
    would count.
    """
    os.nice(NICE)
    work(port, signals, credential)


def row(
    name: str, work: Callable[..., None], server: ZqServer, dummy: int, seconds: float, names: Sequence[str]
) -> None:
    """Print the slowdown of the tenant's posts by the other clients.

    The measurements take turns of some seconds, so that other load of the machine is the same for all.
    """
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
                if turn:  # the first turn is for the start of the processes
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
