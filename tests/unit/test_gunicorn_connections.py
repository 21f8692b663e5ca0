# SPDX-License-Identifier: Apache-2.0
"""The connections of a worker: who has a place, when descriptors are given to others again."""

import socket
from types import SimpleNamespace
from typing import Any

from zq.engines.gthread.connections import Connection, ConnectionLimits, Connections

BOUNDS = ConnectionLimits(head=10, body_time=10, send=10, idle=10, body=1024)


def connection(sock: Any, address: str) -> Connection:
    return Connection(sock, (address, 1), None, None, BOUNDS)


def test_closing_a_connection_twice_leaves_the_next_one_open() -> None:
    """The kernel gives its descriptor to the next one, which must stay known, or nobody would hear it ever again."""
    chosen: Any = SimpleNamespace(max_connections=100, max_connections_per_address=10, behind_proxy=False)
    places = Connections(chosen)
    left, right = socket.socketpair()
    first = connection(left, "192.0.2.1")
    second = connection(SimpleNamespace(fileno=lambda: first.fd, close=right.close), "192.0.2.2")
    assert places.take(first)
    places.close(first)
    assert places.take(second)
    places.close(first)
    assert places.has(second)
    assert not places.has(first)
    places.close(second)
    assert not places.taken
