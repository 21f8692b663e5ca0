# SPDX-License-Identifier: Apache-2.0
"""Slow clients: partial heads, partial bodies, and responses that are not read.

They use the address 127.0.0.2, so that a limit on the connections of one peer affects only them.
"""

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

from tests.servers import CLIENT, ask

HEADS = 64
BODIES = 64
UNREAD = 70
# Characters of a message: a response with ten such messages exceeds all socket buffers.
LARGE = 200_000
PEER = "127.0.0.2"
PROJECT = "loiterers"
IDENTITY = {"X-Project-ID": PROJECT}
LISTING = "/v2/queues/large/messages?limit=10&echo=true"


def furnish(url: str) -> None:
    """Create the queue whose listing is never read."""
    for _ in range(10):
        answer = ask(url, "POST", "/v2/queues/large/messages", {"messages": [{"body": "x" * LARGE}]}, headers=IDENTITY)
        assert answer.status == 201, answer


def head(method: str, path: str, more: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nClient-ID: {CLIENT}\r\nX-Project-ID: {PROJECT}\r\n{more}\r\n"
    ).encode()


def loiter(port: int, sent: bytes) -> socket.socket:
    """Open a connection, send some bytes, and read nothing."""
    made = socket.socket()
    with contextlib.suppress(OSError):  # a server may reject this peer
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(2)
        made.bind((PEER, 0))
        made.connect(("127.0.0.1", port))
        made.sendall(sent)
    return made


@contextlib.contextmanager
def loitering(url: str) -> Iterator[None]:
    """Keep a crowd of slow clients connected to a server within the block."""
    port = urlsplit(url).port
    assert port is not None
    half_head = head("POST", "/v2/queues/small/messages")[:40]
    half_body = head("POST", "/v2/queues/small/messages", "Content-Length: 1000\r\n") + b'{"messages": ['
    unread = head("GET", LISTING)
    with ExitStack() as stack:
        for sent in [half_head] * HEADS + [half_body] * BODIES + [unread] * UNREAD:
            stack.enter_context(loiter(port, sent))
        yield
