# SPDX-License-Identifier: Apache-2.0
"""``zq-websocket`` as an operator runs it: on shared stores beside a server, by TLS, asked by probes, told to read its
files again."""

import os
import shutil
import signal
import socket
import ssl
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.sync.client import connect

from tests.faults.test_tls import folder
from tests.servers import ZqServer, wait_for
from tests.servers import ask as ask_http
from tests.stores import MongoServer, RedisServer
from tests.websocket.connections import HEADERS, ask, notification, served

__all__ = ["folder"]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [RedisServer, MongoServer])
def test_what_a_server_is_posted_reaches_a_connection_to_another_process(
    kind: type[RedisServer | MongoServer], tmp_path: Path
) -> None:
    """On a store that both share; each serves the other's queues and claims."""
    with (
        kind() as store,
        ZqServer(store.uri, env={"OS_NOTIFICATION__DELIVER": "false"}) as server,
        served(tmp_path, OS_STORAGE__URI=store.uri) as (url, _),
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


def test_by_tls_with_a_certificate_that_is_read_again_at_hup(folder: Path, tmp_path: Path) -> None:
    def put(name: str) -> None:
        shutil.copy(folder / f"{name}.pem", tmp_path / "cert.pem")
        shutil.copy(folder / f"{name}.key", tmp_path / "key.pem")

    def subject(url: str) -> object:
        parts = urlsplit(url)
        with (
            socket.create_connection((str(parts.hostname), parts.port or 0), 60) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            return (wrapped.getpeercert() or {})["subject"]

    put("server")
    config = tmp_path / "zq.conf"
    config.write_text(f"[server]\ntls_cert = {tmp_path}/cert.pem\ntls_key = {tmp_path}/key.pem\n")
    trusting = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with served(tmp_path, ZQ_CONFIG=str(config)) as (url, process):
        secure = url.replace("ws:", "wss:")
        with connect(secure, ssl=trusting) as connection:
            assert ask(connection, "queue_list")[0] == 200
            assert subject(url) == ((("commonName", "first"),),)
            put("second")
            os.kill(process.pid, signal.SIGHUP)
            second = ((("commonName", "second"),),)
            wait_for(lambda: subject(url) == second, 60, "the new certificate")
            assert ask(connection, "queue_list")[0] == 200
        shutil.copy(folder / "server.key", tmp_path / "key.pem")  # which is not the certificate's
        os.kill(process.pid, signal.SIGHUP)
        log = tmp_path / "log"
        wait_for(lambda: "What this file said stays as it was" in log.read_text(), 60, "the files are refused")
        with connect(secure, ssl=trusting) as connection:
            assert ask(connection, "queue_list")[0] == 200


def test_probes_are_answered_at_its_port(tmp_path: Path) -> None:
    with served(tmp_path) as (url, _):
        parts = urlsplit(url)
        for path in ("/healthz", "/readyz"):
            asking = HTTPConnection(str(parts.hostname), parts.port, timeout=60)
            asking.request("GET", path)
            answer = asking.getresponse()
            assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
            assert answer.read() == b'{"status":"ok"}'
            asking.close()
