# SPDX-License-Identifier: Apache-2.0
"""Processes that serve WebSocket, and what a test does with a connection."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.forked import Forked
from tests.servers import OWN_PORT_ONLY, ZqServer, free_port, wait_for
from zq.auth.tokens import write

HEADERS = {"Client-ID": "30387f00c63a4a30ac1f3e2cf1b0c3a1", "X-Project-ID": "acme"}
WITHIN = 120.0


@contextmanager
def served(folder: Path, **options: str) -> Iterator[tuple[str, Forked]]:
    """Yield the URL and the process of a ``zq-websocket``, whose log is the file ``log`` in the folder.

    ``options`` are environment variables.
    """
    port = free_port()
    env = os.environ | {"OS_STORAGE__URI": "memory:", "OS_WEBSOCKET__PORT": str(port)} | OWN_PORT_ONLY | options
    process = Forked("zq.websocket.command", [], env)

    def write_log() -> None:
        with process.stderr, open(folder / "log", "w", 1) as log:
            log.writelines(process.stderr)

    writer = threading.Thread(target=write_log)
    writer.start()

    def accepts() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    try:
        wait_for(accepts, WITHIN, "zq-websocket accepts connections")
        yield f"ws://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(WITHIN)
        writer.join(WITHIN)
        process.stdout.close()


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
    """What comes without a request."""
    frame = connection.recv(timeout=WITHIN)
    assert isinstance(frame, bytes) == binary
    return msgspec.msgpack.decode(frame) if isinstance(frame, bytes) else json.loads(frame)


@contextmanager
def guarded(folder: Path, **options: str) -> Iterator[tuple[ZqServer, str, dict[str, str]]]:
    """A ``zq-server`` that serves WebSocket besides, its URL there, and the headers of its administrator."""
    token, port = write("A" * 10, "b" * 43), free_port()
    file = folder / "token"
    file.write_text(token)
    file.chmod(0o600)
    env = {
        "OS_AUTH_STRATEGY": "token",
        "OS_DEFAULT__AUTH_STRATEGY": "token",
        "OS_AUTH__BOOTSTRAP_TOKEN_FILE": str(file),
        "OS_WEBSOCKET__PORT": str(port),
        "OS_SIGNED_URL__SECRET_KEY": "k" * 40,
        **options,
    }
    with ZqServer(f"rocksdb://{folder}/store", env=env) as server:
        yield server, f"ws://127.0.0.1:{port}", {"Authorization": f"Bearer {token}"}


def made(server: ZqServer, admin: dict[str, str], project: str, **terms: Any) -> dict[str, Any]:
    headers = {**admin, "Content-Type": "application/json"}
    document = json.dumps({"name": "t", **terms}).encode()
    asked = Request(f"{server.url}/v2/admin/tokens?project={project}", document, headers)
    with urlopen(asked, timeout=WITHIN) as answer:
        return dict(json.load(answer))


def closed(connection: ClientConnection) -> int:
    """The code with which the server closes a connection."""
    with pytest.raises(ConnectionClosed) as ended:
        connection.recv(timeout=WITHIN)
    assert ended.value.rcvd is not None
    return ended.value.rcvd.code
