# SPDX-License-Identifier: Apache-2.0
"""Servers of WebSocket, and steps of a test on a connection."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.servers import ZqServer
from zq.auth.tokens import format_token

HEADERS = {"Client-ID": "30387f00c63a4a30ac1f3e2cf1b0c3a1", "X-Project-ID": "acme"}
WITHIN = 120.0


@contextmanager
def served(**options: str) -> Iterator[tuple[str, ZqServer]]:
    """Yield the WebSocket URL and its server, by default on a store in memory.

    ``options`` are environment variables.
    """
    env = {"OS_STORAGE__URI": "memory:", "OS_WEBSOCKET__ENABLED": "true", **options}
    with ZqServer("", engine="granian", env=env) as server:
        yield f"ws://127.0.0.1:{server.port}/v2/ws", server


def ask(
    connection: ClientConnection, action: str, body: Any = None, binary: Any = False, **headers: Any
) -> tuple[int, Any]:
    document: dict[str, Any] = {"action": action, "headers": HEADERS | headers}
    if body is not None:
        document["body"] = body
    connection.send(msgspec.msgpack.encode(document) if binary else json.dumps(document))
    frame = connection.recv(timeout=WITHIN)
    assert isinstance(frame, bytes) == binary
    answer = msgspec.msgpack.decode(frame) if isinstance(frame, bytes) else json.loads(frame)
    assert set(answer) == {"request", "headers", "body"}
    assert answer["request"]["api"] == "v2"
    assert answer["request"]["action"] == action
    assert answer["request"]["body"] == (body or {})
    return answer["headers"]["status"], answer["body"]


def notification(connection: ClientConnection, binary: bool) -> Any:
    """Return the next message that the server sends without a request."""
    frame = connection.recv(timeout=WITHIN)
    assert isinstance(frame, bytes) == binary
    return msgspec.msgpack.decode(frame) if isinstance(frame, bytes) else json.loads(frame)


@contextmanager
def guarded(folder: Path, **options: str) -> Iterator[tuple[ZqServer, str, dict[str, str]]]:
    """Yield a server with token authentication, its WebSocket URL, and the headers of its administrator."""
    token = format_token("A" * 10, "b" * 43)
    file = folder / "token"
    file.write_text(token)
    file.chmod(0o600)
    env = {
        "OS_AUTH_STRATEGY": "token",
        "OS_DEFAULT__AUTH_STRATEGY": "token",
        "OS_AUTH__BOOTSTRAP_TOKEN_FILE": str(file),
        "OS_STORAGE__URI": f"rocksdb://{folder}/store",
        "OS_SIGNED_URL__SECRET_KEY": "k" * 40,
        **options,
    }
    with served(**env) as (url, server):
        yield server, url, {"Authorization": f"Bearer {token}"}


def made(server: ZqServer, admin: dict[str, str], project: str, **terms: Any) -> dict[str, Any]:
    headers = {**admin, "Content-Type": "application/json"}
    document = json.dumps({"name": "t", **terms}).encode()
    asked = Request(f"{server.url}/v2/admin/tokens?project={project}", document, headers)
    with urlopen(asked, timeout=WITHIN) as answer:
        return dict(json.load(answer))


def closed(connection: ClientConnection) -> int:
    """Return the code with which the server closes a connection."""
    with pytest.raises(ConnectionClosed) as ended:
        connection.recv(timeout=WITHIN)
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code
