# SPDX-License-Identifier: Apache-2.0
"""Processor time of the application without an HTTP server, called in a loop by one or more threads.

``python -m bench.application [--store URI] [--count N] [--threads N]`` prints a table with the mean µs of each request,
its parts, and its ratio to an empty Falcon application in the same run. The default store is memory. ``bench.profile``
uses the same measurement.
"""

import argparse
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final, NamedTuple

from bench import empty
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.storage import connect

# Number of calls of each request before its measurement.
WARM_UP: Final = 80
# Number of queues, which the calls use in turn.
QUEUES: Final = 8
BODY: Final = {"event": "backup", "pad": "x" * 68}
CLAIM: Final = b'{"ttl": 300, "grace": 60}'
Application = Callable[[dict[str, Any], Callable[..., Any]], Any]


class Request(NamedTuple):
    """The arguments of ``create_environ``."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""


class Spent(NamedTuple):
    """Processor time of one request in µs: of the application, and of the store's driver without and in the kernel.

    The application hardly calls the kernel, so all of the kernel's time is that of the driver.
    """

    application: float
    driver: float
    kernel: float


class Timed:
    """A wrapper of a store that adds up the processor time of its methods, and of those of its parts.

    Only the outermost call of a thread counts.
    """

    def __init__(self, inner: Any, total: "Total") -> None:
        self._inner = inner
        self._total = total

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if callable(value):
            value = self._total.timed(value)
        elif type(value).__module__.startswith("zq.storage."):
            value = Timed(value, self._total)
        self.__dict__[name] = value
        return value


class Total:
    """Seconds of processor time in a store, of all threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._thread = threading.local()

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if getattr(self._thread, "is_inside", False):
                return function(*args, **options)
            self._thread.is_inside, began = True, time.thread_time()
            try:
                return function(*args, **options)
            finally:
                spent = time.thread_time() - began
                self._thread.is_inside = False
                with self._lock:
                    self.seconds += spent

        return call


def call(app: Application, request: Request) -> bytes:
    """Send a request and return the body of the response. Raises ``RuntimeError`` if the request fails."""
    statuses: list[str] = []
    answer = b"".join(app(create_environ(*request), lambda status, _headers, _error=None: statuses.append(status)))
    if statuses[0] >= "3":
        raise RuntimeError(f"{request.method} {request.path}: {statuses[0]} {answer!r}")
    return answer


def measure_all(
    app: Application, requests: Sequence[Request], pool: ThreadPoolExecutor, threads: int, total: Total
) -> tuple[Spent, list[bytes]]:
    """Send the requests. Return the mean of those after the warm-up, and the bodies of all responses, in order."""

    def send(some: Sequence[Request]) -> list[bytes]:
        size = ceil(len(some) / threads)
        parts = [some[start : start + size] for start in range(0, len(some), size)]
        return [answer for part in pool.map(lambda part: [call(app, each) for each in part], parts) for answer in part]

    answers = send(requests[:WARM_UP])
    later = requests[WARM_UP:]
    before, in_store = getrusage(RUSAGE_SELF), total.seconds
    answers += send(later)
    after, in_store = getrusage(RUSAGE_SELF), total.seconds - in_store
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    spent = (user + kernel - in_store, in_store - kernel, kernel)
    return Spent(*(each / len(later) * 1e6 for each in spent)), answers


def create_environ(method: str, path: str, query: str, body: bytes) -> dict[str, Any]:
    environ: dict[str, Any] = {
        **{"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query, "SCRIPT_NAME": ""},
        **{"RAW_URI": f"{path}?{query}" if query else path, "SERVER_PROTOCOL": "HTTP/1.1"},
        **{"SERVER_NAME": "127.0.0.1", "SERVER_PORT": "8888", "REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "4711"},
        **{"HTTP_HOST": "127.0.0.1:8888", "HTTP_X_PROJECT_ID": "bench", "HTTP_ACCEPT": "*/*"},
        **{"HTTP_CLIENT_ID": "5d0c1f7e4f1e4d3c8a56b8b0f3a1c2d5", "HTTP_USER_AGENT": "bench"},
        **{"wsgi.version": (1, 0), "wsgi.url_scheme": "http", "wsgi.errors": sys.stderr},
        **{"wsgi.multithread": True, "wsgi.multiprocess": False, "wsgi.run_once": False},
        **{"wsgi.input_terminated": True, "wsgi.input": io.BytesIO(body)},
    }
    if body:
        environ |= {"CONTENT_LENGTH": str(len(body)), "CONTENT_TYPE": "application/json"}
    return environ


def measure(uri: str, count: int, threads: int = 1) -> Mapping[str, Spent]:
    """Return the processor time of each request on the store, without the time of the store's own processes."""
    storage = connect(uri, {"sync": "never"} if uri.startswith("rocksdb:") else {})
    total = Total()
    timed: Any = Timed(storage, total)
    try:
        return measure_requests(create_app(Broker(timed, ManualClock(time.time()))), count, threads, total)
    finally:
        storage.close()


def measure_requests(app: Application, count: int, threads: int, total: Total) -> Mapping[str, Spent]:
    """Return the processor time of each request to an application on an empty store, which adds to ``total``."""
    queues = [f"/v2/queues/q{number % QUEUES}" for number in range(count + WARM_UP)]
    one, ten = (json.dumps({"messages": [{"body": BODY, "ttl": 3600}] * number}).encode() for number in (1, 10))
    found: dict[str, Spent] = {}
    with ThreadPoolExecutor(threads) as pool:

        def run(name: str, requests: Sequence[Request]) -> list[bytes]:
            found[name], answers = measure_all(app, requests, pool, threads, total)
            return answers

        for name, body in (("post 1", one), ("post 10", ten), ("post 10", ten)):  # for the claims and the pops
            run(name, [Request("POST", f"{queue}/messages", body=body) for queue in queues])
        run("list 10", [Request("GET", f"{queue}/messages", "limit=10&echo=true") for queue in queues])
        answers = run("claim 10", [Request("POST", f"{queue}/claims", "limit=10", CLAIM) for queue in queues])
        run("settle 10", list(map(create_settle, queues, answers)))
        run("pop 10", [Request("DELETE", f"{queue}/messages", "pop=10") for queue in queues])
    return found


def create_settle(queue: str, answer: bytes) -> Request:
    """Return the request that deletes all messages of a new claim. ``answer`` is the response to its creation."""
    messages = json.loads(answer)["messages"]
    claim = messages[0]["href"].partition("claim_id=")[2]
    body = json.dumps({"delete": [message["id"] for message in messages]}).encode()
    return Request("POST", f"{queue}/claims/{claim}/settle", body=body)


def measure_empty(count: int) -> float:
    """Return the processor time in µs of a request to an empty Falcon application."""
    requests = [Request("GET", "/v2/queues/q/messages")] * (count + WARM_UP)
    with ThreadPoolExecutor(1) as pool:
        return sum(measure_all(empty.app, requests, pool, 1, Total())[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="memory:", help="URI of an empty store")
    parser.add_argument("--count", type=int, default=1000, help="calls of each request")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    bare = measure_empty(arguments.count)
    heads = f"µs | application | driver | kernel | / empty application ({bare:.1f} µs)"
    print(f"| {arguments.store} | {heads} |\n|---|" + "--:|" * 5)
    for name, spent in measure(arguments.store, arguments.count, arguments.threads).items():
        parts = " | ".join(f"{part:.1f}" for part in spent)
        print(f"| {name} | {sum(spent):.1f} | {parts} | {sum(spent) / bare:.1f} |")


if __name__ == "__main__":
    main()
