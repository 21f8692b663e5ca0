# SPDX-License-Identifier: Apache-2.0
"""Cost of the console's metrics: ``python -m bench.sampler [queues] [seconds]``.

The command prints how long pages of queues and the points of a queue take, the share of a core that an idle server
uses, and the posts a second: with five viewers, without viewers, and without metrics, in turn.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection

from tests.servers import PROJECT, ZqServer
from zq.client import Client

HEADERS = {"Client-ID": "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "X-Project-ID": PROJECT}
VIEWERS = 5
POSTERS = 4
ROUNDS = 13
TICKS = os.sysconf("SC_CLK_TCK")
POST = b'{"messages": [{"body": {"n": 1}}]}'
LIST, POINTS, OVERVIEW = "/v2/figures/queues?limit=100", "/v2/queues/q00000/figures?window=300", "/v2/figures"


def make(server: ZqServer, queues: int) -> None:
    def some(first: int) -> None:
        with Client(server.url, PROJECT) as client:
            for number in range(first, queues, 4):
                client.queue(f"q{number:05}").create()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(some, range(4)))


def asking(server: ZqServer) -> Callable[[str], None]:
    """Return a function that sends requests over one connection."""
    connection = HTTPConnection("127.0.0.1", server.port)

    def ask(path: str) -> None:
        connection.request("GET", path, headers=HEADERS)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200

    return ask


def milliseconds(ask: Callable[[str], None], path: str, count: int) -> float:
    ask(path)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        ask(path)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


@contextmanager
def viewers(server: ZqServer) -> Iterator[None]:
    """Run five consoles, which request lists and overviews every five seconds and points every two."""
    over = threading.Event()

    def look() -> None:
        ask, turn = asking(server), 0
        while not over.is_set():
            for path, every in ((LIST, 5), (OVERVIEW, 5), (POINTS, 2)):
                if turn % every == 0:
                    ask(path)
            turn += 1
            over.wait(1)

    threads = [threading.Thread(target=look) for _ in range(VIEWERS)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def spent(server: ZqServer) -> float:
    """Return the processor time of the server's processes in seconds."""
    found = 0.0
    for pid in (server.pid, *server.worker_pids):
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        found += (int(fields[11]) + int(fields[12])) / TICKS
    return found


def share(server: ZqServer, seconds: float) -> float:
    """Return the share of a core that the server uses within ``seconds``, in percent."""
    before, began = spent(server), time.monotonic()
    time.sleep(seconds)
    return 100 * (spent(server) - before) / (time.monotonic() - began)


def posts(server: ZqServer, seconds: float) -> float:
    """Return the number of posts in a second, of one message each."""
    until = time.monotonic() + seconds

    def go_on(number: int) -> int:
        connection, count = HTTPConnection("127.0.0.1", server.port), 0
        while time.monotonic() < until:
            connection.request("POST", f"/v2/queues/q{number:05}/messages", POST, HEADERS)
            connection.getresponse().read()
            count += 1
        return count

    with ThreadPoolExecutor(POSTERS) as threads:
        return sum(threads.map(go_on, range(POSTERS))) / seconds


def main(queues: int = 10_000, seconds: float = 1.0) -> None:
    with ZqServer("memory:") as taking, ZqServer("memory:", env={"OS_CONSOLE__ENABLED": "false"}) as without:
        for server in (taking, without):
            make(server, queues)
        ask = asking(taking)
        ask(LIST)
        print(f"{queues:,} queues; a page of 100 {milliseconds(ask, LIST, 30):.1f} ms, ", end="")
        print(f"points {milliseconds(ask, POINTS, 200):.1f} ms, overview {milliseconds(ask, OVERVIEW, 20):.1f} ms")
        idle = share(without, 10)
        time.sleep(12)
        print(f"of a core: without figures {idle:.1f} %, with figures {share(taking, 30):.1f} %", end="")
        with viewers(taking):
            print(f", with {VIEWERS} viewers {share(taking, 20):.1f} %")
        found: dict[str, list[float]] = {"without": [], "with": [], "viewed": []}
        for _ in range(ROUNDS):
            found["without"].append(posts(without, seconds))
            found["with"].append(posts(taking, seconds))
            with viewers(taking):
                found["viewed"].append(posts(taking, seconds))
        medians = {name: statistics.median(values) for name, values in found.items()}
        loss = {name: 100 * (1 - _ratio(found[name], found["without"])) for name in ("with", "viewed")}
        print(
            f"posts/s: without figures {medians['without']:.0f}, with {medians['with']:.0f} (-{loss['with']:.1f} %), ",
            end="",
        )
        print(f"with {VIEWERS} viewers {medians['viewed']:.0f} (-{loss['viewed']:.1f} %)")


def _ratio(some: list[float], others: list[float]) -> float:
    """Return the median ratio of two series of rounds."""
    return statistics.median(one / other for one, other in zip(some, others, strict=True))


if __name__ == "__main__":
    main(*(int(given) for given in sys.argv[1:]))
