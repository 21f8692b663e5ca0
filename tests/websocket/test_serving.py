# SPDX-License-Identifier: Apache-2.0
"""WebSocket and HTTP on one port: on shared stores, and limits before the handshake."""

import socket
import ssl
import struct
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.faults.refusal import sentence_of
from tests.faults.test_tls import folder
from tests.servers import ZqServer, wait_for
from tests.servers import ask as ask_http
from tests.stores import MongoServer, RedisServer
from tests.websocket.connections import HEADERS, WITHIN, ask, guarded, made, notification, served

__all__ = ["folder"]
pytestmark = pytest.mark.slow
HANDSHAKE = (
    b"GET /v2/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("kind", [RedisServer, MongoServer])
def test_a_posted_message_reaches_a_connection_to_another_process(
    kind: type[RedisServer | MongoServer], tmp_path: Path
) -> None:
    """The two servers share the store; each serves the other's queues and claims."""
    with (
        kind() as store,
        ZqServer(store.uri, env={"OS_NOTIFICATION__DELIVER": "false"}) as server,
        served(OS_STORAGE__URI=store.uri) as (url, _),
        connect(url) as connection,
    ):
        q = {"queue_name": "orders"}
        assert ask(connection, "subscription_create", q)[0] == 201
        for number in range(3):
            document = {"messages": [{"body": number, "ttl": 300}]}
            posted = ask_http(server.url, "POST", "/v2/queues/orders/messages", document, headers=HEADERS)
            assert posted.status == 201
            assert notification(connection, False)["body"] == number
        status, claimed = ask(connection, "claim_create", q | {"ttl": 60, "grace": 60})
        assert (status, [each["body"] for each in claimed["messages"]]) == (201, [0, 1, 2])
        claim = f"/v2/queues/orders/claims/{claimed['claim_id']}"
        assert len(ask_http(server.url, "GET", claim, headers=HEADERS).document["messages"]) == 3


def test_tls_on_the_port_of_http(folder: Path) -> None:
    options = {"OS_SERVER__TLS_CERT": f"{folder}/server.pem", "OS_SERVER__TLS_KEY": f"{folder}/server.key"}
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    env = {"OS_STORAGE__URI": "memory:", "OS_WEBSOCKET__ENABLED": "true", **options}
    server = ZqServer("", engine="granian", env=env)
    with closing(server):
        server.launch()
        wait_for(server.accepts, WITHIN, "it listens")
        with connect(f"wss://127.0.0.1:{server.port}/v2/ws", ssl=trusting) as connection:
            assert ask(connection, "queue_list")[0] == 200


def threads_of(server: ZqServer) -> int:
    return sum(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in server.worker_pids)


def test_300_silent_sockets_cost_no_thread_and_keep_no_one_out() -> None:
    """Half of the sockets are silent, and half have an unfinished handshake."""
    with served() as (url, server), ExitStack() as opened:
        before = threads_of(server)
        for number in range(300):
            silent = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), WITHIN))
            silent.sendall(HANDSHAKE[: number % 2 * 40])
        with connect(url) as connection:
            assert ask(connection, "queue_list")[0] == 200
        assert threads_of(server) - before < 10


def test_a_client_that_resets_after_the_handshake_leaves_no_place_taken() -> None:
    with served(OS_WEBSOCKET__MAX_CONNECTIONS="10") as (url, server):
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port), WITHIN) as client:
                client.sendall(HANDSHAKE)
                client.recv(1)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: admitted(url), 60, "a place is free")


def admitted(url: str) -> bool:
    """Return whether a new connection is accepted."""
    try:
        with connect(url) as connection:
            return ask(connection, "queue_list")[0] == 200
    except InvalidStatus:
        return False


def test_connections_without_a_credential_get_half_of_the_places(tmp_path: Path) -> None:
    with guarded(tmp_path, OS_WEBSOCKET__MAX_CONNECTIONS="4") as (server, url, admin), ExitStack() as opened:
        token = made(server, admin, "acme")["token"]
        known = opened.enter_context(connect(url))
        assert ask(known, "authenticate", **{"X-Auth-Token": token})[0] == 200
        for _ in range(2):
            opened.enter_context(connect(url))
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 503
        assert ask(known, "queue_list")[0] == 200


def test_one_address_has_a_limited_number_of_connections() -> None:
    with served(OS_WEBSOCKET__MAX_CONNECTIONS_PER_ADDRESS="2") as (url, _), connect(url), connect(url):
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 503


def test_gunicorn_is_refused_with_a_sentence() -> None:
    server = ZqServer("memory:", engine="gunicorn", env={"OS_WEBSOCKET__ENABLED": "true"})
    assert "[websocket] enabled requires [server] engine = granian" in sentence_of(server)
