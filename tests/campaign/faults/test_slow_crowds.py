# SPDX-License-Identifier: Apache-2.0
"""Crowds of clients that are slow or silent, do not read responses, or send tiny chunks; other clients are served."""

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.faults.slow import HALF_BODY, HALF_HEAD, IDENTITY, SlowClients, page_of, seconds
from tests.faults.test_slow_clients import begin, connect, fill  # noqa: F401
from tests.servers import ZqServer, ask


@pytest.mark.parametrize("engine", ["granian"], indirect=True)
def test_slow_clients_of_every_kind_hold_up_nobody(
    begin: Callable[..., ZqServer],  # noqa: F811
) -> None:
    """Health checks and posts succeed, most of them quickly, despite slow clients and while these are closed.

    The slow clients are 64 partial heads, 64 partial bodies, 1,010 silent sockets and 70 unread responses. With
    gunicorn, a proxy must handle slow clients.
    """
    server = begin({})
    fill(server, "large")
    kinds = {
        "heads": (64, HALF_HEAD),
        "bodies": (64, HALF_BODY),
        "silent": (1010, b""),
        "unread": (70, page_of("large")),
    }
    took = []
    with SlowClients(server, **kinds) as clients:
        assert clients.opened >= 1208
        for began in seconds(12):
            assert ask(server.url, "GET", "/healthz").status == 200
            took.append(time.monotonic() - began)
            assert ask(server.url, "POST", "/v2/queues/q/messages", {"messages": [{"body": 1}]}).status == 201
    assert statistics.median(took) < 3, took


def test_a_flood_of_tiny_chunks_holds_up_nobody(
    begin: Callable[..., ZqServer],  # noqa: F811
) -> None:
    """The server answers others and the senders in time, despite 16 bodies of 130,000 one-byte chunks."""
    server = begin({})
    head = f"POST /v2/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n{IDENTITY}Transfer-Encoding: chunked\r\n\r\n"
    start = b'{"messages":[{"body":"'
    flood = head.encode() + b"%x\r\n%s\r\n" % (len(start), start) + b"1\r\nx\r\n" * 130_000
    took, answers = [], []

    def send() -> None:
        with connect(server, b"") as connection:
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(flood + b'4\r\n"}]}\r\n0\r\n\r\n')
            with suppress(ConnectionResetError):
                answers.append(connection.recv(20))

    clients = [threading.Thread(target=send) for _ in range(16)]
    for client in clients:
        client.start()
    for began in seconds(4):
        assert ask(server.url, "GET", "/healthz").status == 200
        took.append(time.monotonic() - began)
        assert ask(server.url, "POST", "/v2/queues/q/messages", {"messages": [{"body": 1}]}).status == 201
    for client in clients:
        client.join(60)
    assert not any(client.is_alive() for client in clients)
    assert not any(b" 500 " in answer or b" 503 " in answer for answer in answers), answers
    assert statistics.median(took) < 3, took
