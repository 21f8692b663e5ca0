# SPDX-License-Identifier: Apache-2.0
"""Granian with its adapter: its resistance to hostile clients, and waiting requests without threads."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.slow import IDENTITY, SlowClients, page_of
from tests.rotation import rotated
from tests.servers import Answer, Lost, ZqServer, ask, wait_for
from tests.sse import Stream
from tests.stores import RedisServer

FEW_THREADS = {"OS_SERVER__THREADS": "9"}
MANY = 300
# Seconds that a busy machine may add.
SLACK = 20.0
POST = {"messages": [{"body": 1, "ttl": 3600}]}

Begin = Callable[[dict[str, str]], ZqServer]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a function that starts a server with these variables."""
    with ExitStack() as stack:
        yield lambda env: stack.enter_context(ZqServer(f"rocksdb://{tmp_path}/store", engine="granian", env=env))


def send(server: ZqServer, raw: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 60)
    connection.sendall(raw)
    return connection


def request(method: str, path: str, *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *IDENTITY.splitlines(), *lines, "", ""]
    return "\r\n".join(head).encode()


def answer(connection: socket.socket) -> bytes:
    """Return the received bytes until the first pause."""
    got = connection.recv(65536)
    connection.settimeout(1.0)
    try:
        while piece := connection.recv(65536):
            got += piece
    except TimeoutError:
        pass
    return got


def gauge(server: ZqServer, name: str) -> float:
    """Return a value of the metrics page."""
    page = ask(server.url, "GET", "/metrics").body.decode()
    return next(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def test_hundreds_wait_and_stream_and_nine_threads_are_free(begin: Begin) -> None:
    """Neither uses a thread: posts get responses, wake waiting claims, and are streamed."""
    server = begin(FEW_THREADS)
    with ExitStack() as stack:
        claim = request("POST", "/v2/queues/jobs/claims?limit=1&wait=30", "Content-Length: 0")
        waiting = [stack.enter_context(send(server, claim)) for _ in range(MANY)]
        streams = [stack.enter_context(Stream(server.url, "/v2/topics/news/stream")) for _ in range(20)]
        wait_for(lambda: gauge(server, "zq_waiters ") >= MANY, SLACK, "all wait")
        for _ in range(3):
            assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        wait_for(lambda: gauge(server, "zq_waiters ") <= MANY - 3, SLACK, "three are woken")
        assert gauge(server, "zq_waiters ") == MANY - 3
        assert ask(server.url, "POST", "/v2/topics/news/messages", POST).status == 201
        assert [next(stream.events()).document["body"] for stream in streams] == [1] * 20
        won = [connection for connection in waiting if _has_come(connection)]
        assert [answer(connection).split(b" ")[1] for connection in won] == [b"201"] * 3


def _has_come(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(60)


@pytest.mark.parametrize(
    ("method", "path"),
    rotated([("DELETE", "messages?pop=1&wait=20"), ("POST", "claims?wait=20"), ("PUT", "claims/job.1?wait=20")], 1),
)
def test_nothing_is_taken_for_a_caller_that_hung_up_while_it_waited(begin: Begin, method: str, path: str) -> None:
    """Granian reports the disconnect: the slot is free at once, and later messages stay in the queue."""
    server = begin({})
    with send(server, request(method, f"/v2/queues/jobs/{path}", "Content-Length: 0")):
        wait_for(lambda: gauge(server, "zq_waiters ") == 1, SLACK, "it waits")
    wait_for(lambda: gauge(server, "zq_waiters ") == 0, SLACK, "its place is free")
    assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
    assert ask(server.url, "GET", "/v2/queues/jobs/stats").document["messages"]["free"] == 1


TAKING = [
    request("DELETE", "/v2/queues/jobs/messages?pop=1", "Content-Length: 0"),
    request("POST", "/v2/queues/jobs/claims", "Content-Length: 0"),
    request("PUT", "/v2/queues/jobs/claims/job.1", "Content-Length: 2") + b"{}",
    request("POST", "/v2/queues/jobs/claims", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("sent", rotated(TAKING, 1))
def test_nothing_is_taken_for_a_caller_that_hung_up_in_the_queue_for_a_thread(sent: bytes) -> None:
    """The store hangs, and so do all threads; a caller whose request is queued disconnects.

    When the store responds again, the queued requests run except that one.
    """
    config = "[server]\nthreads = 9\nqueue_timeout = 60\n[transport]\nstorage_timeout = 60\n"
    with ExitStack() as stack:
        store = stack.enter_context(RedisServer())
        server = stack.enter_context(ZqServer(store.uri, engine="granian", config=config))
        for queue in ("jobs", "others"):
            assert ask(server.url, "POST", f"/v2/queues/{queue}/messages", POST).status == 201
        pool = stack.enter_context(ThreadPoolExecutor(9))
        frozen = stack.enter_context(ExitStack())
        frozen.enter_context(store.frozen())
        held = [pool.submit(ask, server.url, "POST", "/v2/queues/others/messages", POST, timeout=60) for _ in range(9)]
        wait_for(lambda: is_stuck(server), SLACK, "no thread is free")
        with send(server, sent) as caller:
            port = caller.getsockname()[1]
            assert is_stuck(server)  # a later disconnect was noticed, so this one was too
        wait_for(lambda: not has_connection(server, port), SLACK, "the server has noticed")
        frozen.close()
        assert [each.result().status for each in held] == [201] * 9
        for _ in range(9):
            assert ask(server.url, "GET", "/v2/limits").status == 200
        assert ask(server.url, "GET", "/v2/queues/jobs/stats").document["messages"]["free"] == 1


def is_stuck(server: ZqServer) -> bool:
    """Return whether even a request without work gets no response."""
    try:
        ask(server.url, "GET", "/v2/limits", timeout=3)
    except Lost:
        return True
    return False


def has_connection(server: ZqServer, port: int) -> bool:
    """Return whether the server still has its end of the connection from a port."""
    established, half_closed = "01", "08"
    ends = (f":{server.port:04X}", f":{port:04X}")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any((row[1][8:], row[2][8:]) == ends and row[3] in (established, half_closed) for row in rows)


@pytest.mark.parametrize("sent", rotated([b"", b"P", b"GET"], 1))
def test_a_connection_that_has_sent_no_line_has_a_deadline(begin: Begin, sent: bytes) -> None:
    """Granian has no deadline for a connection that may become HTTP/2, so the server supports HTTP/1.1 only."""
    server = begin({"OS_SERVER__HEAD_TIMEOUT": "1"})
    began = time.monotonic()
    with send(server, sent) as connection:
        assert connection.recv(100) == b""
    assert time.monotonic() - began < 1 + SLACK


def test_http2_is_refused_at_once(begin: Begin) -> None:
    """A proxy in front supports HTTP/2."""
    server = begin({})
    with send(server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") as connection:
        connection.settimeout(SLACK)
        while got := connection.recv(65536):
            assert got.startswith(b"HTTP/1.1 400 ")


def test_what_answers_that_nobody_takes_hold_in_memory_is_bounded(begin: Begin) -> None:
    """140 clients request 5 MB each and do not read; the server keeps about 128 MiB of it, not 700 MB.

    Posts still work, and readers are served again after a second.
    """
    server = begin(FEW_THREADS)
    large = {"messages": [{"body": "x" * 250_000, "ttl": 3600}]}
    for _ in range(20):
        assert ask(server.url, "POST", "/v2/queues/large/messages", large).status == 201
    page = "/v2/queues/large/messages?limit=20&echo=true"
    for _ in range(5):
        assert ask(server.url, "GET", page).status == 200  # the store's cache is filled by now
    before = peak_memory(server)
    with SlowClients(server, unread=(140, page_of("large"))):
        wait_for(lambda: gauge(server, 'zq_refused_total{reason="memory"}') >= 30, SLACK, "many are given up")
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        refused = until_served(server, page)
    assert peak_memory(server) - before < 400 << 20
    assert all(answer.headers["retry-after"] == "1" for answer in refused)


def until_served(server: ZqServer, path: str) -> list[Answer]:
    """Return the refusals before the first other response, which must be a success."""
    refused, deadline = [], time.monotonic() + SLACK
    while (answer := ask(server.url, "GET", path)).status == 503 and time.monotonic() < deadline:
        refused.append(answer)
        time.sleep(0.1)
    assert answer.status == 200
    return refused


def peak_memory(server: ZqServer) -> int:
    """Return the peak memory in bytes of the server's largest process."""
    peaks = [0]
    for pid in server.worker_pids:
        with suppress(OSError):  # the process has ended
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")]
    return max(peaks)
