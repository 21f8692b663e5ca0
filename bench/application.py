# SPDX-License-Identifier: Apache-2.0
"""Processor time of the application without an HTTP server, called in a loop by one or more threads.

``python -m bench.application [--store URI] [--count N] [--threads N]`` prints a table with the mean µs of each request
and its ratio to an empty Falcon application in the same run. The default store is memory. ``bench.table`` uses the same
measurement to divide a request's processor time into application, store driver and HTTP server.
"""

import argparse
import io
import json
import sys
import time
from collections.abc import Callable, Mapping
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
WARM_UP: Final = 50
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
    """Processor time of one request in µs: of the program, and of the kernel on its behalf."""

    user: float
    system: float


def call(app: Application, request: Request) -> bytes:
    """Send a request and return the body of the response. Raises ``RuntimeError`` if the request fails."""
    statuses: list[str] = []
    answer = b"".join(app(create_environ(*request), lambda status, _headers, _error=None: statuses.append(status)))
    if statuses[0] >= "3":
        raise RuntimeError(f"{request.method} {request.path}: {statuses[0]} {answer!r}")
    return answer


def measure_all(app: Application, requests: list[Request], threads: int) -> tuple[Spent, list[bytes]]:
    """Send the requests. Return the mean of those after the warm-up, and the bodies of all responses, in order."""
    answers = [call(app, request) for request in requests[:WARM_UP]]
    later = requests[WARM_UP:]
    size = ceil(len(later) / threads)
    parts = [later[start : start + size] for start in range(0, len(later), size)]
    with ThreadPoolExecutor(threads) as pool:
        before = getrusage(RUSAGE_SELF)
        for part in pool.map(lambda part: [call(app, request) for request in part], parts):
            answers += part
        after = getrusage(RUSAGE_SELF)
    seconds = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return Spent(*(each / len(later) * 1e6 for each in seconds)), answers


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
    try:
        return measure_requests(create_app(Broker(storage, ManualClock(time.time()))), count, threads)
    finally:
        storage.close()


def measure_requests(app: Application, count: int, threads: int) -> Mapping[str, Spent]:
    """Return the processor time of each request to an application on an empty store."""
    queues = [f"/v2/queues/q{number % QUEUES}" for number in range(count + WARM_UP)]
    one, ten = (json.dumps({"messages": [{"body": BODY, "ttl": 3600}] * number}).encode() for number in (1, 10))
    found: dict[str, Spent] = {}
    for name, body in (("post 1", one), ("post 10", ten), ("post 10", ten)):  # for the claims and the pops
        posts = [Request("POST", f"{queue}/messages", body=body) for queue in queues]
        found[name], _ = measure_all(app, posts, threads)
    lists = [Request("GET", f"{queue}/messages", "limit=10&echo=true") for queue in queues]
    found["list 10"], _ = measure_all(app, lists, threads)
    claims = [Request("POST", f"{queue}/claims", "limit=10", CLAIM) for queue in queues]
    found["claim 10"], answers = measure_all(app, claims, threads)
    found["settle 10"], _ = measure_all(app, list(map(create_settle, queues, answers)), threads)
    pops = [Request("DELETE", f"{queue}/messages", "pop=10") for queue in queues]
    found["pop 10"], _ = measure_all(app, pops, threads)
    return found


def create_settle(queue: str, answer: bytes) -> Request:
    """Return the request that deletes all messages of a new claim. ``answer`` is the response to its creation."""
    messages = json.loads(answer)["messages"]
    claim = messages[0]["href"].partition("claim_id=")[2]
    body = json.dumps({"delete": [message["id"] for message in messages]}).encode()
    return Request("POST", f"{queue}/claims/{claim}/settle", body=body)


def measure_empty(count: int) -> Spent:
    """Return the processor time of a request to an empty Falcon application."""
    requests = [Request("GET", "/v2/queues/q/messages")] * (count + WARM_UP)
    return measure_all(empty.app, requests, 1)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="memory:", help="URI of an empty store")
    parser.add_argument("--count", type=int, default=1000, help="calls of each request")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    bare = sum(measure_empty(arguments.count))
    print(f"| {arguments.store} | µs | / empty application ({bare:.1f} µs) |\n|---|--:|--:|")
    for name, spent in measure(arguments.store, arguments.count, arguments.threads).items():
        print(f"| {name} | {sum(spent):.1f} | {sum(spent) / bare:.1f} |")


if __name__ == "__main__":
    main()
