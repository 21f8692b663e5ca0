# SPDX-License-Identifier: Apache-2.0
"""Refusals by the headers of callers that may not send a body: the body is not read (attack A4).

A malformed credential does not query the store. Under gunicorn the proxy reads bodies.
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import new_token
from tests.rotation import rotated
from tests.servers import ZqServer, ask
from zq.auth.credentials import BURST
from zq.auth.tokens import format_token

pytestmark = pytest.mark.parametrize("engine", ["granian"])
BODY = 256 * 1024
CONFIG = "[DEFAULT]\nauth_strategy = token\n[server]\nbody_timeout = 20\nhead_timeout = 20\n"
# Seconds within which a refusal arrives on a busy machine, long before the server's timeout for the body.
AT_ONCE = 10.0
UNKNOWN = f"Authorization: Bearer {format_token('0' * 10, '0' * 43)}\r\n"
LENGTHS = {"length": f"Content-Length: {BODY}\r\n", "chunks": "Transfer-Encoding: chunked\r\n"}


@pytest.fixture
def guarded(engine: str, tmp_path: Path) -> Iterator[tuple[ZqServer, str]]:
    """Return a server that requires tokens, and a header with a token."""
    uri = f"rocksdb://{tmp_path}/store"
    credential = new_token(uri, "acme")
    with ZqServer(uri, engine=engine, config=CONFIG) as server:
        yield server, f"Authorization: Bearer {credential}\r\n"


def announced(server: ZqServer, credential: str, length: str = LENGTHS["length"], more: str = "") -> socket.socket:
    """Return a connection with the headers of a post, and nothing of its body."""
    connection = socket.create_connection(("127.0.0.1", server.port), AT_ONCE)
    head = f"POST /v2/queues/jobs/messages HTTP/1.1\r\nHost: localhost\r\n{length}{credential}{more}\r\n"
    connection.sendall(head.encode())
    return connection


def everything(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes its side. Raises ``TimeoutError`` if that takes long."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            got += piece
    return got


@pytest.mark.parametrize("length", rotated(list(LENGTHS), 1))
@pytest.mark.parametrize("credential", ["", "Authorization: Basic YTpi\r\n", UNKNOWN], ids=["none", "other", "unknown"])
def test_a_stranger_is_refused_by_its_head(guarded: tuple[ZqServer, str], credential: str, length: str) -> None:
    """The server answers 401 with ``Connection: close`` before any byte of the body, and sends no ``100 Continue``."""
    server, _ = guarded
    with announced(server, credential, LENGTHS[length], "Expect: 100-continue\r\n") as connection:
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 401 "), answer
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert b"www-authenticate: bearer" in answer.lower()


def test_one_who_fails_too_often_is_refused_by_its_head(guarded: tuple[ZqServer, str]) -> None:
    """The server answers 429 once its address has failed too often."""
    server, _ = guarded
    statuses = set()
    for _ in range(3 * BURST):
        with announced(server, "") as connection:
            answer = everything(connection)
        assert b"\r\nconnection: close\r\n" in answer.lower()
        statuses.add(answer[9:12])
    assert statuses == {b"401", b"429"}


@pytest.mark.parametrize("valid", [False, True])
def test_a_body_that_nobody_wants_is_not_read(guarded: tuple[ZqServer, str], valid: bool) -> None:
    """A sender is stopped by full buffers or the end of the connection.

    This holds for a client without a credential and for a tenant with a body far beyond the limit.
    """
    server, token = guarded
    credential = token if valid else ""
    with announced(server, credential, f"Content-Length: {1 << 30}\r\n") as connection:
        connection.settimeout(1.0)
        sent, end = 0, time.monotonic() + AT_ONCE
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                sent += connection.send(b"x" * 65536)
    assert sent < 32 << 20, "what the kernel buffers, and no more"


def test_a_credential_that_is_looked_up_has_its_body_read(guarded: tuple[ZqServer, str]) -> None:
    """The first request of a credential that no process has cached works, also in pieces."""
    server, credential = guarded
    client = "Client-ID: 30387f00c63a4a30ac1f3e2cf1b0c3a1\r\n"
    body = b'{"messages": [{"body": "' + b"x" * 100_000 + b'"}]}'
    for _ in range(2):
        expects = "Expect: 100-continue\r\nConnection: close\r\n"
        with announced(server, credential, f"Content-Length: {len(body)}\r\n", client + expects) as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
            for at in range(0, len(body), 30_000):
                connection.sendall(body[at : at + 30_000])
            assert everything(connection).startswith(b"HTTP/1.1 201 ")
    mine = {"Authorization": credential.partition(":")[2].strip()}
    assert ask(server.url, "GET", "/v2/queues/jobs/stats", headers=mine).document["messages"]["total"] == 2
