# SPDX-License-Identifier: Apache-2.0
"""The shutdown of a server next to other servers: traffic moves there, and no request fails.

Granian serves directly; gunicorn has a proxy in front, which repeats refused requests.
"""

import os
import re
import signal
import socket
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.rotation import CAMPAIGN
from tests.servers import CLIENT, PROJECT, ZqServer, ask, stopped, wait_for
from tests.stores import RedisServer

pytestmark = pytest.mark.parametrize("engine", ["granian"])
HEADERS = {"Client-ID": CLIENT, "X-Project-ID": PROJECT}
# Seconds between two posts of a producer.
PAUSE = 0.0 if CAMPAIGN else 0.02
BODY = b'{"messages":[{"body":1}]}'


def test_a_stopping_server_refuses_new_connections_at_once(engine: str, tmp_path: Path) -> None:
    """The client can use another server at once, even while the first server completes its last request."""
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine) as server:
        upload = HTTPConnection("127.0.0.1", server.port, timeout=30)
        upload.putrequest("POST", "/v2/queues/q/messages")
        for name, value in {**HEADERS, "Content-Length": str(len(BODY))}.items():
            upload.putheader(name, value)
        upload.endheaders(BODY[:5])
        assert ask(server.url, "GET", "/healthz").status == 200
        os.kill(server.pid, signal.SIGTERM)
        wait_for(lambda: not server.accepts(), 60, "new connections are refused")
        assert server.worker_pids, "the upload is not over"
        upload.send(BODY[5:])
        answer = upload.getresponse()
        assert answer.status == 201
        assert answer.getheader("Connection") == "close"
        upload.close()
        assert server.wait(60) == 0, server.output


def test_a_draining_server_says_so_and_serves_on(engine: str, tmp_path: Path) -> None:
    """For ``drain_delay`` seconds readiness fails, health does not, and each response closes its connection."""
    config = "[server]\ndrain_delay = 5\n"
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, config=config) as server:
        kept = HTTPConnection("127.0.0.1", server.port, timeout=30)
        kept.request("GET", "/v2/limits", headers=HEADERS)
        first = kept.getresponse()
        first.read()
        assert first.getheader("Connection") != "close"
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        unready = wait_for(lambda: (got := ask(server.url, "GET", "/readyz")).status == 503 and got, 4, "it says so")
        assert unready.document["title"] == "Stopping"
        assert unready.headers["retry-after"] == "1"
        assert ask(server.url, "GET", "/healthz").status == 200
        kept.request("POST", "/v2/queues/q/messages", BODY, HEADERS)
        answer = kept.getresponse()
        assert answer.status == 201
        assert answer.getheader("Connection") == "close"
        assert server.wait(60) == 0, server.output
        took = time.monotonic() - began
        drained = re.findall(r"The server has ended \(SIGTERM\) after draining for (\d+\.\d) seconds\.", server.output)
        assert 5 <= float(*drained) <= took + 0.1


class Producer:
    """A producer that posts to one of two servers and tries the other if a connection is refused."""

    def __init__(self, ports: list[int], *, keeps: bool, pause: float = PAUSE) -> None:
        self._ports = ports
        self._pause = pause
        self._keeps = keeps
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self.posted = 0
        self.port = 0  # of the last post
        self.failures: list[str] = []

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def is_beyond(self, posted: int) -> bool:
        """Return whether the producer has posted more messages than ``posted``."""
        return self.posted > posted

    def _go_on(self) -> None:
        turn, connection = 0, None
        while not self._over.wait(self._pause):
            if connection is None:
                connection = HTTPConnection("127.0.0.1", self._ports[turn % 2], timeout=30)
                try:
                    connection.connect()
                except ConnectionRefusedError:
                    connection, turn = None, turn + 1
                    time.sleep(0.01)
                    continue
            try:
                status, last = self._post(connection)
            except (OSError, HTTPException) as error:
                status, last = repr(error), True
            if status != 201:
                self.failures.append(f"{time.monotonic():.3f} port {connection.port}: {status}")
            self.port = connection.port
            self.posted += status == 201
            if last or not self._keeps:
                connection.close()
                connection, turn = None, turn + 1

    def _post(self, connection: HTTPConnection) -> tuple[int | str, bool]:
        connection.request("POST", "/v2/queues/q/messages", BODY, HEADERS)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.will_close


def test_a_rolling_restart_fails_no_request(engine: str, store: RedisServer) -> None:
    """Two servers on a store are restarted in turn, one of them with a drain.

    Some producers keep their connections, others do not.
    """
    with ExitStack() as stack:
        configs = [f"[server]\ndrain_delay = {seconds}\n" for seconds in (0, 1)]
        servers = [stack.enter_context(ZqServer(store.uri, engine=engine, config=config)) for config in configs]
        ports = [server.port for server in servers]
        with ExitStack() as load:
            producers = [load.enter_context(Producer(ports, keeps=number % 4 > 0)) for number in range(8)]
            for server in [*servers, servers[0]]:
                before = {producer: producer.posted for producer in producers}
                assert server.terminate() == 0, server.output
                server.start()
                for producer, posted in before.items():
                    wait_for(partial(producer.is_beyond, posted), 60, "the producer goes on")
        assert [failure for producer in producers for failure in producer.failures] == []
        with socket.create_connection(("127.0.0.1", ports[0]), 5):
            pass


def is_to_end(pid: int) -> bool:
    """Return whether SIGTERM waits for a process that is stopped."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["ShdPnd"], 16) & 1 << signal.SIGTERM - 1)


def connected(server: ZqServer) -> HTTPConnection:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.connect()
    return connection


def post(connection: HTTPConnection) -> tuple[int, str | None]:
    connection.request("POST", "/v2/queues/q/messages", BODY, HEADERS)
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.getheader("Connection")


def test_who_is_connected_when_the_end_begins_is_heard(engine: str, tmp_path: Path) -> None:
    """The request is answered and the connection closes, for kept, new and not yet accepted connections."""
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine) as server, ExitStack() as stack:
        connections = [stack.enter_context(closing(connected(server))) for _ in range(10)]
        assert {post(kept)[0] for kept in connections[:5]} == {201}
        with stopped(*server.worker_pids):
            connections += [stack.enter_context(closing(connected(server))) for _ in range(5)]
            os.kill(server.pid, signal.SIGTERM)
            wait_for(lambda: all(map(is_to_end, server.worker_pids)), 60, "the master has handed the signal on")
        assert [post(connection) for connection in connections] == [(201, "close")] * 15
        assert server.wait(60) == 0, server.output
        assert "foresaw" not in server.output
