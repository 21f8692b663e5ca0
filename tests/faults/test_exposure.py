# SPDX-License-Identifier: Apache-2.0
"""Exposure of a server without authentication: neither the network nor a page with a foreign host reaches it (S8)."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.faults.refusal import sentence_of
from tests.servers import Answer, ZqServer, ask, wait_for

EVIL = {"Host": "evil.example:8888"}


def raw(server: ZqServer, request: bytes) -> bytes:
    """Return all bytes that the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_network_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The command exits with code 2 and creates no store."""
    server = ZqServer(f"rocksdb://{tmp_path}/store", "--bind", "0.0.0.0").launch()
    try:
        assert server.wait(30) == 2
    finally:
        server.close()
    assert server.stderr.startswith(
        "zq-server: Authentication is off (auth_strategy is empty), so --bind 0.0.0.0 would"
    )
    assert not (tmp_path / "store").exists()


def test_who_trusts_the_network_is_warned_at_each_start(tmp_path: Path) -> None:
    """Only one process warns. HTTP/1.0 may omit Host then, but a foreign host is refused."""
    trusting = {"OS_SERVER__TRUST_NETWORK": "true"}
    with ZqServer(f"rocksdb://{tmp_path}/store", "--bind", "0.0.0.0", engine="granian", env=trusting) as server:
        for start in (1, 2):
            warned = [
                line for line in server.stderr.splitlines() if " WARNING " in line and "Authentication is off" in line
            ]
            assert len(warned) == 1, start
            assert f"0.0.0.0:{server.port}" in warned[0]
            assert ask(server.url, "GET", "/v2/queues", headers=EVIL).status == 421
            assert raw(server, b"GET /healthz HTTP/1.0\r\n\r\n").split()[1] == b"200"
            server.terminate()
            server.start()


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_page_of_somebody_else_reaches_nothing(tmp_path: Path, engine: str) -> None:
    """DNS rebinding: a foreign or missing Host is refused on any route. A reload by HUP can allow hosts."""
    file = tmp_path / "zq.conf"
    file.write_text("[server]\nallowed_hosts =\n")
    with ZqServer(f"rocksdb://{tmp_path}/store", "--config", str(file), engine=engine) as server:
        for path in ("/healthz", "/metrics", "/v2/queues", "/nowhere"):
            refused = ask(server.url, "GET", path, headers=EVIL)
            assert refused.status == 421
            assert refused.document["description"] == "This Host is not one of [server] allowed_hosts."
        head = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert raw(server, head).split()[1] in (b"400", b"421")
        assert ask(server.url, "GET", "/healthz", headers={"Host": f"localhost:{server.port}"}).status == 200

        file.write_text("[server]\nallowed_hosts = evil.example\n")
        os.kill(server.pid, signal.SIGHUP)

        def served() -> Answer | None:
            answer = ask(server.url, "GET", "/v2/queues", headers=EVIL)
            return answer if answer.status == 200 else None

        assert wait_for(served, 60, "the name that HUP has allowed is served")
        assert ask(server.url, "GET", "/v2/queues", headers={"Host": "other.example"}).status == 421


def test_gunicorn_beyond_this_machine_needs_a_proxy(tmp_path: Path) -> None:
    """Each slow client would occupy a thread."""
    env = {"OS_SERVER__TRUST_NETWORK": "true"}
    server = ZqServer(f"rocksdb://{tmp_path}/store", "--bind", "0.0.0.0", engine="gunicorn", env=env)
    assert "set [server] behind_proxy = true, bind to 127.0.0.1, or use engine = granian." in sentence_of(server)
    assert server.wait(1) == 2
