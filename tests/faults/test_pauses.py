# SPDX-License-Identifier: Apache-2.0
"""Delayed 429 responses under Granian: a client that retries at once is slowed, and no other client.

No test relies on a fast machine: a pause is the minimum of elapsed time, and its absence is shown by repetition until
one response is earlier.
"""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.faults.test_neighbours import QUEUE, bearer
from tests.rotation import rotated
from tests.servers import CLIENT, ZqServer, wait_for
from zq.http.heads import DELAY

# Requests per second of a project, which a repeating client soon exceeds.
CONFIG = "[DEFAULT]\nauth_strategy = token\n[quota]\nrequests = 1\n"
TOO_MANY = 429
BODY = json.dumps({"messages": [{"body": 1}]})


@pytest.fixture
def credential(tmp_path: Path) -> dict[str, str]:
    return bearer(f"rocksdb://{tmp_path}/store", "greedy") | {"Client-ID": CLIENT}


@pytest.fixture
def other(tmp_path: Path, credential: dict[str, str]) -> dict[str, str]:
    return bearer(f"rocksdb://{tmp_path}/store", "modest") | {"Client-ID": CLIENT}


@pytest.fixture
def server(tmp_path: Path, credential: dict[str, str], other: dict[str, str]) -> Iterator[ZqServer]:
    with ZqServer(f"rocksdb://{tmp_path}/store", engine="granian", config=CONFIG) as running:
        yield running


class Client:
    """A connection with a project's credential."""

    def __init__(self, server: ZqServer, headers: dict[str, str]) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
        self._connection.connect()
        self._headers = headers

    @property
    def socket(self) -> socket.socket:
        assert self._connection.sock is not None
        return self._connection.sock

    def send(self, method: str = "GET", path: str = "/v2/queues", body: str | None = None) -> None:
        self._connection.request(method, path, body, self._headers)

    def status(self) -> int:
        reply = self._connection.getresponse()
        reply.read()
        return reply.status

    def ask(self) -> int:
        self.send()
        return self.status()

    def refused(self) -> float:
        """Send requests until one is refused, and return its start time."""
        while True:
            began = time.monotonic()
            if self.ask() == TOO_MANY:
                return began


def test_a_refused_connection_is_served_again_after_a_pause(server: ZqServer, credential: dict[str, str]) -> None:
    """Each refusal has a pause of its own; a request sent during the pause is read completely."""
    client = Client(server, credential)
    for _ in range(3):
        began = client.refused()
        client.send("POST", f"{QUEUE}/messages", BODY)
        assert client.status() in (201, TOO_MANY)
        assert time.monotonic() - began >= DELAY


def test_pipelined_requests_pause_too(server: ZqServer, credential: dict[str, str]) -> None:
    """Requests sent before the refusal wait as well."""
    client = Client(server, credential)
    client.refused()
    lines = "".join(f"{name}: {value}\r\n" for name, value in credential.items())
    began = time.monotonic()
    client.socket.sendall(f"GET /v2/queues HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode() * 4)
    got = b""
    while got.count(b"HTTP/1.1 ") < 4:
        got += client.socket.recv(65536)
    refusals = got.count(b"HTTP/1.1 429")
    assert refusals >= 2
    assert time.monotonic() - began >= (refusals - 1) * DELAY


def test_a_stop_ends_pauses(server: ZqServer, credential: dict[str, str]) -> None:
    """The ending process answers requests on paused connections."""
    clients = [Client(server, credential) for _ in range(5)]
    for client in clients:
        client.refused()
    for client in clients:
        client.send()
    os.kill(server.pid, signal.SIGTERM)
    assert {client.status() for client in clients} <= {200, TOO_MANY}
    assert server.wait(40) == 0


def test_a_paused_connection_that_is_closed_is_forgotten(server: ZqServer, credential: dict[str, str]) -> None:
    """The slot is free after the pause, and the worker continues."""
    pid = server.worker_pids[0]

    def sockets() -> int:
        return sum("socket:" in str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())

    before = sockets()
    clients = [Client(server, credential) for _ in range(20)]
    for client in clients:
        client.refused()
        client.socket.close()
    del clients
    wait_for(lambda: sockets() <= before, 60, "all have been closed")
    assert Client(server, credential).ask() in (200, TOO_MANY)


@pytest.mark.parametrize("proxy", rotated([False, True], 1))
def test_under_granian_refusals_wait_and_hold_nobody_up(
    tmp_path: Path, credential: dict[str, str], other: dict[str, str], proxy: bool
) -> None:
    """The refusals outnumber the threads. This also holds behind a proxy, whose connections have many projects."""
    config = CONFIG + f"[server]\nthreads = 9\nbehind_proxy = {proxy}\n"
    with ZqServer(f"rocksdb://{tmp_path}/store", config=config, engine="granian") as server:
        crowd = [Client(server, credential) for _ in range(20)]
        for client in crowd:
            began = client.refused()
            assert time.monotonic() - began >= DELAY

        def sooner() -> bool:
            """Return whether another project got its response while the refused clients waited."""
            modest = Client(server, other)
            for client in crowd:
                client.send()
            served = modest.ask() == 200
            waiting = [client for client in crowd if not select.select([client.socket], [], [], 0)[0]]
            refused = [client.status() for client in crowd].count(TOO_MANY)
            return served and len(waiting) == len(crowd) and refused >= len(crowd) - 1

        wait_for(sooner, 60, "another project is served while refusals wait")
