# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: requests in progress are completed, the exit code is 0, and a restart finds all messages."""

import json
import os
import signal
import socket
from http.client import HTTPConnection, HTTPResponse

import pytest

from tests.servers import CLIENT, PROJECT, ZqServer, ask, every_message, wait_for

pytestmark = pytest.mark.store_of_the_day


class Upload:
    """A post whose body is sent in two halves, between which the server is known to process it."""

    def __init__(self, server: ZqServer, body: str) -> None:
        document = json.dumps({"messages": [{"body": body, "ttl": 600}]}).encode()
        self._halves = document[: len(document) // 2], document[len(document) // 2 :]
        self._socket = socket.create_connection(("127.0.0.1", server.port), 30)
        headers = f"POST /v2/queues/slow/messages HTTP/1.1\r\nHost: localhost\r\nClient-ID: {CLIENT}\r\n"
        headers += f"X-Project-ID: {PROJECT}\r\nContent-Length: {len(document)}\r\nExpect: 100-continue\r\n\r\n"
        self._socket.sendall(headers.encode())

    def begin(self) -> None:
        """Send the first half once the server asks for the body."""
        assert self._socket.recv(4096).startswith(b"HTTP/1.1 100")
        self._socket.sendall(self._halves[0])

    def end(self) -> int:
        """Send the rest and return the status of the response."""
        self._socket.sendall(self._halves[1])
        with HTTPResponse(self._socket, method="POST") as reply:
            reply.begin()
            reply.read()
            self._socket.close()
            return reply.status


def listed(server: ZqServer, queue: str) -> list[str]:
    return [message["body"] for message in every_message(server.url, queue)]


def test_sigterm_finishes_a_half_sent_upload_and_loses_nothing(store_uri: str, engine: str) -> None:
    """The upload gets 201 after SIGTERM, and Granian accepts no new connection; a restart finds all messages."""
    with ZqServer(store_uri, engine=engine) as server:
        before = {"messages": [{"body": number, "ttl": 600} for number in range(30)]}
        assert ask(server.url, "POST", "/v2/queues/fast/messages", before).status == 201
        upload = Upload(server, "slow but sure" * 1000)
        upload.begin()
        os.kill(server.pid, signal.SIGTERM)
        if engine == "granian":  # gunicorn closes its socket last
            wait_for(lambda: not server.accepts(), 60, "nothing new is taken after SIGTERM")
        assert upload.end() == 201
        assert server.wait(30) == 0, server.output
        assert "Traceback" not in server.output

        server.start()
        assert listed(server, "slow") == ["slow but sure" * 1000]
        assert listed(server, "fast") == list(range(30))


def test_an_idle_connection_does_not_hold_up_the_end(store_uri: str, engine: str) -> None:
    """A client that keeps its connection open does not make SIGTERM wait for the graceful timeout."""
    with ZqServer(store_uri, engine=engine) as server:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() is not None
        assert server.terminate(within=15) == 0, server.output
        connection.close()
        assert "Traceback" not in server.output
