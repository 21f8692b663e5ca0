# SPDX-License-Identifier: Apache-2.0
"""Clients that send half a request, send nothing, or do not read: under Granian they delay no other client.

gunicorn has a proxy in front of it for that: see ``test_nginx``.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.slow import HALF_BODY, HALF_HEAD, IDENTITY, SlowClients, page_of, seconds
from tests.servers import Lost, ZqServer, ask, wait_for

pytestmark = pytest.mark.parametrize("engine", ["granian"])
QUICK = {
    "OS_SERVER__HEAD_TIMEOUT": "1",
    "OS_SERVER__BODY_TIMEOUT": "1",
    "OS_SERVER__SEND_TIMEOUT": "1",
    "OS_SERVER__KEEPALIVE": "1",
}
# Seconds that a busy machine may add to a deadline.
SLACK = 45.0


@pytest.fixture
def begin(engine: str, tmp_path: Path) -> Iterator[Callable[..., ZqServer]]:
    """Return a function that starts a server of the engine with these variables."""
    with ExitStack() as stack:
        yield lambda env: stack.enter_context(ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, env=env))


def fill(server: ZqServer, queue: str, count: int = 20) -> None:
    """Post ``count`` messages of 250 kB."""
    message = {"messages": [{"body": "x" * 250_000, "ttl": 3600}]}
    for _ in range(count):
        assert ask(server.url, "POST", f"/v2/queues/{queue}/messages", message).status == 201


def connect(server: ZqServer, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), 60)
    connection.sendall(sent)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Return all further bytes until the server closes the connection."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    return got


def trickle(connection: socket.socket, piece: bytes, until: float) -> None:
    """Send a piece ten times a second until the server closes the connection or the time is over."""
    with suppress(ConnectionResetError, BrokenPipeError):
        while time.monotonic() < until:
            connection.sendall(piece)
            time.sleep(0.1)


@pytest.mark.parametrize("sent", [HALF_HEAD, HALF_BODY], ids=["head", "body"])
def test_half_a_request_is_answered_408_at_its_deadline(begin: Callable[..., ZqServer], sent: bytes) -> None:
    """The server closes the connection after the response."""
    server = begin(QUICK)
    began = time.monotonic()
    with connect(server, sent) as connection:
        answer = rest(connection)
    assert 0.9 < time.monotonic() - began < 1 + SLACK
    if sent == HALF_HEAD:
        assert answer == b""  # Granian's parser closes the connection itself
        return
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"connection: close" in answer.lower()


def test_the_deadline_is_for_the_whole_head(begin: Callable[..., ZqServer]) -> None:
    """A byte at intervals does not extend the deadline."""
    server = begin(QUICK)
    began = time.monotonic()
    with connect(server, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ") as connection:
        trickle(connection, b"a", began + 1 + SLACK)
    assert time.monotonic() - began < 1 + SLACK


def test_a_body_must_come_at_a_least_rate(begin: Callable[..., ZqServer]) -> None:
    """Bytes at less than 10 kB a second extend the deadline only by their own time."""
    server = begin(QUICK)
    head = f"POST /v2/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}Content-Length: 200000\r\n\r\n"
    began = time.monotonic()
    with connect(server, head.encode()) as connection:
        trickle(connection, b" " * 100, began + 1 + SLACK)
    assert time.monotonic() - began < 1 + SLACK


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"], ids=["silent", "idle"])
def test_a_connection_that_says_nothing_is_closed(begin: Callable[..., ZqServer], sent: bytes) -> None:
    """A new connection is closed at the deadline for headers, and a used one after ``keepalive``."""
    server = begin(QUICK)
    began = time.monotonic()
    with connect(server, sent) as connection:
        assert b" 408 " not in rest(connection)
    assert 0.5 < time.monotonic() - began < 1 + SLACK


def test_who_does_not_take_the_answer_is_hung_up_on(begin: Callable[..., ZqServer]) -> None:
    """Bytes in the kernel's buffers can still be read, but the response is incomplete."""
    server = begin(QUICK)
    fill(server, "large")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(page_of("large"))

        def cut() -> bool:
            page = ask(server.url, "GET", "/metrics").body.decode()
            return 'zq_refused_total{reason="send_timeout"} 1.0' in page

        wait_for(cut, 1 + SLACK, "the server has hung up")
        assert len(rest(connection)) < 20 * 250_000


def test_who_takes_the_answer_slowly_gets_all_of_it(begin: Callable[..., ZqServer]) -> None:
    """The deadline is for progress: the client reads 5 MB in one and a half times the allowed pause."""
    server = begin({**QUICK, "OS_SERVER__SEND_TIMEOUT": "2", "OS_TRANSPORT__MAX_ANSWER_BYTES": str(10**7)})
    fill(server, "large")
    with connect(server, page_of("large").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as connection:
        got = b""
        while piece := connection.recv(200_000):
            got += piece
            time.sleep(3 / 25)
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert len(json.loads(body)["messages"]) == 20


def test_a_refused_body_is_not_read_on(begin: Callable[..., ZqServer]) -> None:
    """Bodies that are announced as too large are refused at once, although they outnumber the threads.

    The connections end after the responses.
    """
    server = begin({})
    head = f"POST /v2/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}Content-Length: {10**11}\r\n\r\nx"
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server, head.encode())) for _ in range(70)]
        began = time.monotonic()
        assert ask(server.url, "GET", "/v2/limits").status == 200
        assert time.monotonic() - began < 9, "others wait until what was refused has been read"
        for client in clients:
            answer = rest(client)
            assert answer.split(b" ", 2)[1] in {b"400", b"413"}, answer


def test_requests_behind_each_other_on_a_connection_are_all_answered(begin: Callable[..., ZqServer]) -> None:
    """Requests with and without bodies are sent at once and answered in order, even if the last comes in two pieces."""
    server = begin({})
    body = b'{"messages":[{"body":1}]}'
    head = f"POST /v2/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}Content-Length: {len(body)}\r\n\r\n"
    get = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    last = get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with connect(server, b"".join([head.encode(), body, get] * 50) + last[:20]) as connection:
        connection.sendall(last[20:])
        got = rest(connection)
    assert got.count(b"HTTP/1.1 201 ") == 50
    assert got.count(b"HTTP/1.1 200 ") == 51


def test_new_connections_take_the_place_of_silent_ones(begin: Callable[..., ZqServer]) -> None:
    """With 16 slots and 40 silent clients that reconnect, other clients are served."""
    server = begin({"OS_SERVER__MAX_CONNECTIONS": "16"})
    answered = 0
    with SlowClients(server, silent=(12, b"")), SlowClients(server, heads=(28, HALF_HEAD)):
        for _ in seconds(60):
            with suppress(Lost):  # no slot at present
                answered += ask(server.url, "GET", "/v2/limits", timeout=5).status == 200
            if answered:
                break
    assert answered >= 1
    assert ask(server.url, "GET", "/healthz").status == 200


def test_one_address_may_have_so_many_requests_under_way(begin: Callable[..., ZqServer]) -> None:
    """A further request gets 503; behind a proxy, the proxy must limit addresses."""
    server = begin({"OS_SERVER__MAX_CONNECTIONS_PER_ADDRESS": "4"})
    wait = "/v2/queues/q/messages?wait=15&echo=true"
    request = f"GET {wait} HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}\r\n".encode()
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(server, request))
        refused = wait_for(lambda: refusal(server), 60, "the four wait")
    assert "retry-after: 1" in refused.lower()
    assert "application/json" in refused


def refusal(server: ZqServer) -> str:
    """Return the response to another request if it is a 503, else ""."""
    with connect(server, b"GET /v2/limits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") as connection:
        answer = rest(connection).decode()
    return answer if answer.startswith("HTTP/1.1 503 ") else ""
