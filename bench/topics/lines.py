# SPDX-License-Identifier: Apache-2.0
"""Connections of the benchmark, which do little work: requests are prepared, and events are counted, not parsed."""

import json
import re
import socket
from typing import Final

from tests.servers import CLIENT, ZqServer

MESSAGE: Final = b"event: message\n"
GAP: Final = b"event: gap\n"
PORTION: Final = 1 << 20
LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
END: Final = b"\r\n\r\n"


class Line:
    """A persistent connection."""

    def __init__(self, server: ZqServer, project: str) -> None:
        self._project = project
        self._socket = socket.create_connection(("127.0.0.1", server.port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nClient-ID: {CLIENT}\r\nX-Project-ID: {self._project}\r\n"
        )
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Publisher(Line):
    """A connection that publishes the same batch repeatedly."""

    def __init__(self, server: ZqServer, project: str, topic: str, batch: int, size: int) -> None:
        super().__init__(server, project)
        self.batch = batch
        document = {"messages": [{"body": "x" * size}] * batch}
        self._request = self.request("POST", f"/v2/topics/{topic}/messages", json.dumps(document).encode())
        self._answer = b""

    def send(self) -> None:
        self._socket.sendall(self._request)

    def answered(self) -> bool:
        """Read available data and return whether the response is complete."""
        self._answer += self._socket.recv(PORTION)
        head, end, body = self._answer.partition(END)
        if not end:
            return False
        assert head.startswith(b"HTTP/1.1 201"), self._answer
        length = LENGTH.search(head + b"\r\n")
        assert length is not None, head
        if len(body) < int(length[1]):
            return False
        self._answer = b""
        return True


class Reader(Line):
    """A connection that reads a stream."""

    def __init__(self, server: ZqServer, project: str, path: str) -> None:
        super().__init__(server, project)
        self.gaps = 0
        self._socket.sendall(self.request("GET", path))
        head = b""
        while END not in head:
            head += self._socket.recv(PORTION)
        assert head.startswith(b"HTTP/1.1 200"), head
        self._rest = b""

    def messages(self) -> int:
        """Read available data and return the number of messages in it."""
        read = self._socket.recv(PORTION)
        assert read, "the stream has ended"
        data = self._rest + read
        self._rest = data[-len(MESSAGE) + 1 :]  # too short to be counted twice
        self.gaps += data.count(GAP)
        return data.count(MESSAGE)
