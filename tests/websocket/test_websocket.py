# SPDX-License-Identifier: Apache-2.0
"""WebSocket (contract 14): every action, both formats, faults, who asks, and bounds, against a real process."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.servers import OWN_PORT_ONLY, ZqServer, free_port, wait_for
from tests.servers import ask as ask_http
from zq.auth.tokens import write

HEADERS = {"Client-ID": "30387f00c63a4a30ac1f3e2cf1b0c3a1", "X-Project-ID": "acme"}
WITHIN = 30.0


@contextmanager
def served(folder: Path, **options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL and the process of a ``zq-websocket``. ``options``: by the names of environment variables."""
    port = free_port()
    env = os.environ | {"OS_STORAGE__URI": "memory:", "OS_WEBSOCKET__PORT": str(port)} | OWN_PORT_ONLY | options
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "zq.websocket.command"], env=env, stderr=log)
        try:
            deadline = time.monotonic() + WITHIN
            while True:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"ws://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(WITHIN)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("websocket")) as (address, _):
        yield address


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


@pytest.mark.parametrize("binary", [False, True])
def test_every_action_on_queues_messages_and_claims(url: str, binary: bool) -> None:
    q = {"queue_name": f"orders-{binary}"}
    with connect(url) as connection:

        def do(action: str, **body: Any) -> tuple[int, Any]:
            return ask(connection, action, q | body, binary)

        assert do("queue_get") == (200, {})
        status, stats = do("queue_get_stats")
        assert status == 404
        assert stats["messages"]["total"] == 0
        assert do("message_list") == (200, {"messages": []})
        assert do("queue_create", metadata={"colour": "red"}) == (201, f"Queue {q['queue_name']} created.")
        assert do("queue_create") == (204, f"Queue {q['queue_name']} created.")
        assert do("queue_get") == (200, {"colour": "red"})
        listed = ask(connection, "queue_list", {"detailed": True}, binary)[1]["queues"]
        assert {"name": q["queue_name"], "metadata": {"colour": "red"}} in listed
        status, posted = do("message_post", messages=[{"body": {"n": n}, "ttl": 300} for n in range(4)])
        assert status == 201
        ids = posted["message_ids"]
        shown = do("message_get", message_id=ids[0])[1]["messages"]
        assert shown == {"id": ids[0], "claim_id": None, "ttl": 300, "age": shown["age"], "body": {"n": 0}}
        assert [m["id"] for m in do("message_list", echo=True)[1]["messages"]] == ids
        assert [m["id"] for m in do("message_get_many", message_ids=ids[:2])[1]["messages"]] == ids[:2]
        assert do("message_get_many", message_ids=[]) == (200, {"messages": []})
        stats = do("queue_get_stats")[1]["messages"]
        assert stats["oldest"]["id"] == ids[0]
        assert "href" not in stats["oldest"]
        status, claimed = do("claim_create", ttl=100, grace=100, limit=2)
        assert status == 201
        assert [m["id"] for m in claimed["messages"]] == ids[:2]
        claim = claimed["claim_id"]
        assert claimed["messages"][0]["claim_id"] == claim
        assert do("claim_update", claim_id=claim, ttl=200) == (204, {})
        status, got = do("claim_get", claim_id=claim)
        assert status == 200
        assert got["ttl"] == 200
        assert len(got["messages"]) == 2
        assert do("message_delete", message_id=ids[0])[0] == 403
        assert do("message_delete", message_id=ids[0], claim_id=claim) == (204, {})
        assert do("message_get", message_id=ids[0])[0] == 404
        assert do("claim_delete", claim_id=claim) == (204, {})
        assert do("claim_get", claim_id=claim)[0] == 404
        assert do("message_delete_many", message_ids=[ids[1]]) == (204, {})
        assert [m["id"] for m in do("message_delete_many", pop=1)[1]["messages"]] == [ids[2]]
        assert do("message_delete_many")[0] == 400
        assert do("queue_purge", resource_types=["messages"]) == (204, {})
        assert do("claim_create") == (204, {"claim_id": None})
        assert do("subscription_list")[0] == 400
        assert do("queue_delete") == (204, f"Queue {q['queue_name']} removed.")
        assert ask(connection, "authenticate", None, binary, **{"X-Auth-Token": "x"})[0] == 200


def test_faults_say_what_is_wrong(url: str) -> None:
    with connect(url) as connection:

        def raw(frame: str | bytes) -> Any:
            connection.send(frame)
            answer = connection.recv(timeout=WITHIN)
            return msgspec.msgpack.decode(answer) if isinstance(answer, bytes) else json.loads(answer)

        empty: dict[str, Any] = {"action": None, "body": {}, "headers": {}, "api": "v2"}
        for frame, kind in (("{", "text"), (b"\xc1", "binary"), (msgspec.msgpack.encode({"a": b"x"}), "binary")):
            answer = raw(frame)
            assert answer["request"] == empty
            assert answer["headers"] == {"status": 400}
            assert answer["body"]["error"].startswith(f"Can't decode {kind}")
        assert raw("[1]")["body"]["error"].startswith("Unexpected body type. Expected dict")
        assert raw('{"action": "fly"}')["body"] == {"error": "fly is not a valid action"}
        assert raw('{"action": "pool_list", "headers": {}}')["headers"]["status"] == 400
        assert raw('{"action": "queue_list", "headers": {}}')["headers"]["status"] == 400
        assert raw("[" * 100_000)["headers"]["status"] == 400
        q = {"queue_name": "faults"}
        status, body = ask(connection, "message_post", q | {"messages": [{"ttl": 300}]})
        assert (status, body["exception"]) == (400, 'Bad request. Missing "body" field.')
        status, body = ask(connection, "message_post", q | {"messages": [{"body": 1, "ttl": "300"}]})
        assert (status, body["exception"]) == (400, 'Bad request. The value of the "ttl" field must be a int.')
        assert ask(connection, "message_list", q, **{"Client-ID": "me"})[0] == 400
        assert ask(connection, "queue_list", {"limit": 10**6})[0] == 400
        for name in ("a/messages", "", "x" * 65, "a?b"):
            assert ask(connection, "queue_delete", {"queue_name": name})[0] == 400, name
        assert ask(connection, "queue_get", q, **{"Client-ID": "me"})[0] == 200


def test_a_frame_that_is_too_large_ends_the_connection(url: str) -> None:
    with connect(url) as connection:
        connection.send("x" * (1 << 21))
        assert closed(connection) == 1009


def test_an_origin_must_be_on_the_list_and_connections_are_bounded(tmp_path: Path) -> None:
    bounds = {"OS_WEBSOCKET__ALLOWED_ORIGINS": "https://good.example", "OS_WEBSOCKET__MAX_CONNECTIONS": "3"}
    with served(tmp_path, **bounds, OS_WEBSOCKET__MAX_CONNECTIONS_PER_PROJECT="2") as (url, _):
        with pytest.raises(InvalidStatus):
            connect(url, origin=Origin("https://evil.example"))
        with connect(url, origin=Origin("https://good.example")) as one, connect(url) as two, connect(url) as three:
            for each in (one, two):
                assert ask(each, "queue_list")[0] == 200
            with connect(url) as fourth, pytest.raises(ConnectionClosed) as ended:
                fourth.recv(timeout=WITHIN)
            assert ended.value.rcvd is not None
            assert ended.value.rcvd.code == 1013
            with pytest.raises(ConnectionClosed):
                ask(three, "queue_list")


@contextmanager
def guarded(folder: Path) -> Iterator[tuple[ZqServer, str, dict[str, str]]]:
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


def test_a_server_with_tokens(tmp_path: Path) -> None:
    """A credential must come, is for one project and its scopes, is replaced by another, and ends with its token."""
    with guarded(tmp_path) as (server, url, admin):
        ours = made(server, admin, "acme", scopes=["produce:orders"])
        theirs = made(server, admin, "other")
        q = {"queue_name": "orders"}
        posted = q | {"messages": [{"body": 1, "ttl": 300}]}
        with connect(url) as silent, connect(url) as connection:
            assert ask(connection, "queue_list")[0] == 403
            assert ask(connection, "authenticate", **{"X-Auth-Token": "wrong"})[0] == 401
            assert ask(connection, "authenticate", **{"X-Auth-Token": theirs["token"]})[0] == 401
            assert ask(connection, "queue_list")[0] == 403
            assert ask(connection, "authenticate", **{"X-Auth-Token": ours["token"]})[0] == 200
            assert ask(connection, "message_post", posted)[0] == 201
            assert ask(connection, "message_post", posted | {"queue_name": "bills"})[0] == 403
            assert ask(connection, "message_post", posted, **{"X-Project-ID": "other"})[0] == 403
            assert closed(silent) == 1008
            other = {"X-Project-ID": "other"}
            assert ask(connection, "authenticate", **other, **{"X-Auth-Token": theirs["token"]})[0] == 200
            assert ask(connection, "message_post", posted)[0] == 403
            assert ask(connection, "message_post", posted, **other)[0] == 201
            gone = f"{server.url}/v2/admin/tokens/{theirs['id']}?project=other"
            urlopen(Request(gone, headers=admin, method="DELETE"), timeout=WITHIN).close()
            assert closed(connection) == 4003


def test_failing_gains_no_time(tmp_path: Path) -> None:
    """A stranger is hung up on five seconds after it came, however often it tries."""

    def try_for(seconds: float, stranger: ClientConnection) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ask(stranger, "authenticate", **{"X-Auth-Token": "wrong"})
            time.sleep(0.5)

    with guarded(tmp_path) as (_, url, _admin), connect(url) as stranger:
        with pytest.raises(ConnectionClosed) as ended:
            try_for(20, stranger)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1008


def test_a_signed_request_is_for_its_own_queue_and_methods(tmp_path: Path) -> None:
    with guarded(tmp_path) as (server, url, admin):
        bearer = {"Authorization": f"Bearer {made(server, admin, 'acme')['token']}"}
        asked = {"paths": ["messages"], "methods": ["GET", "POST"]}
        share = ask_http(server.url, "POST", "/v2/queues/orders/share", asked, headers=bearer).document
        signed = {
            "URL-Signature": share["signature"],
            "URL-Expires": share["expires"],
            "URL-Methods": share["methods"],
            "URL-Paths": share["paths"],
        }
        posted = {"queue_name": "orders", "messages": [{"body": 1, "ttl": 300}]}
        with connect(url) as connection:
            assert ask(connection, "message_post", posted, **signed)[0] == 201
            assert len(ask(connection, "message_list", {"queue_name": "orders", "echo": True}, **signed)[1]["messages"])
            assert ask(connection, "message_post", posted | {"queue_name": "bills"}, **signed)[0] == 403
            assert ask(connection, "message_delete_many", {"queue_name": "orders", "pop": 1}, **signed)[0] == 403
            assert ask(connection, "queue_list", **signed)[0] == 403
            assert ask(connection, "message_post", posted, **signed | {"URL-Signature": "0" * 64})[0] == 403
            assert ask(connection, "message_post", posted)[0] == 403


def test_an_embedded_store_that_a_server_has_open_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with guarded(tmp_path):
        env = os.environ | {"OS_STORAGE__URI": f"rocksdb://{tmp_path}/store"} | OWN_PORT_ONLY
        command = [sys.executable, "-m", "zq.websocket.command", "--port", str(free_port())]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WITHIN, check=False)
        assert done.returncode == 2
        assert "set [websocket] port in the configuration of zq-server" in done.stderr


def test_a_process_under_load_ends_cleanly(tmp_path: Path) -> None:
    """Each post is answered or its connection is closed with 1001; the process exits with 0."""
    codes: list[int] = []
    answered: list[int] = []

    def post(url: str) -> None:
        with connect(url) as connection:
            try:
                while True:
                    body = {"queue_name": "load", "messages": [{"body": 1, "ttl": 300}]}
                    answered.append(ask(connection, "message_post", body)[0])
            except ConnectionClosed as ended:
                codes.append(ended.rcvd.code if ended.rcvd else 0)

    with served(tmp_path) as (url, process):
        threads = [threading.Thread(target=post, args=(url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answered) > 50, WITHIN, "posts are answered")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 0
        for thread in threads:
            thread.join(WITHIN)
    assert set(answered) == {201}
    assert codes == [1001] * 4
