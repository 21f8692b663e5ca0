# SPDX-License-Identifier: Apache-2.0
"""WebSocket on a real process: every action, both formats, errors, authentication and limits (contract 14)."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.features import core_with_subscriptions
from tests.servers import ask as ask_http
from tests.servers import wait_for
from tests.sink import KEY, Sink
from tests.websocket.connections import WITHIN, ask, closed, guarded, made, notification, served
from zq.clock import StoreClock
from zq.model import QueueRef
from zq.storage import connect as connect_store
from zq.subscriptions.model import Source
from zq.subscriptions.subscriptions import Terms
from zq.websocket import pushes


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served() as (address, _):
        yield address


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
        assert do("subscription_list") == (200, {"subscriptions": []})
        assert do("queue_delete") == (204, f"Queue {q['queue_name']} removed.")
        assert ask(connection, "authenticate", None, binary, **{"X-Auth-Token": "x"})[0] == 200


def test_errors_name_their_cause(url: str) -> None:
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
        assert ask(connection, "queue_create", {"queue_name": "x" * 65})[0] == 400
        for name in ("a/messages", "", "x" * 81, "a?b"):
            assert ask(connection, "queue_delete", {"queue_name": name})[0] == 400, name
        assert ask(connection, "queue_get", q, **{"Client-ID": "me"})[0] == 200


def test_a_frame_that_is_too_large_ends_the_connection(url: str) -> None:
    with connect(url) as connection:
        connection.send("x" * (1 << 21))
        assert closed(connection) == 1009


def test_an_origin_must_be_on_the_list_and_connections_are_bounded(tmp_path: Path) -> None:
    bounds = {"OS_WEBSOCKET__ALLOWED_ORIGINS": "https://good.example", "OS_WEBSOCKET__MAX_CONNECTIONS": "3"}
    with served(**bounds, OS_WEBSOCKET__MAX_CONNECTIONS_PER_PROJECT="2") as (url, _):
        with pytest.raises(InvalidStatus):
            connect(url, origin=Origin("https://evil.example"))
        with connect(url, origin=Origin("https://good.example")) as one, connect(url) as two, connect(url) as three:
            for each in (one, two):
                assert ask(each, "queue_list")[0] == 200
            with pytest.raises(InvalidStatus) as refused:
                connect(url)
            assert refused.value.response.status_code == 503
            with pytest.raises(ConnectionClosed):
                ask(three, "queue_list")


@pytest.mark.slow
def test_a_server_with_tokens(tmp_path: Path) -> None:
    """A credential is required, covers one project and its scopes, can be replaced, and ends with its token."""
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


@pytest.mark.slow
def test_failed_attempts_do_not_extend_the_deadline(tmp_path: Path) -> None:
    """An unauthenticated client is disconnected after five seconds, however often it tries."""

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


@pytest.mark.slow
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


@pytest.mark.parametrize("binary", [False, True])
def test_a_subscribed_connection_receives_posted_messages(url: str, binary: bool) -> None:
    """Frames have the format of the subscribing request; the subscription ends with its connection."""
    queue = f"pushed-{binary}"
    q = {"queue_name": queue}
    with connect(url) as connection, connect(url) as other:
        status, made = ask(connection, "subscription_create", q | {"ttl": 300, "options": {"n": 1}}, binary)
        assert (status, made["message"]) == (201, f"Subscription {queue} created.")
        id = made["subscription_id"]
        assert ask(connection, "subscription_create", q, binary)[0] == 409
        for body in ({"n": 1}, "two"):
            assert ask(other, "message_post", q | {"messages": [{"body": body, "ttl": 300}]})[0] == 201
            expected = {"body": body, "ttl": 300, "Message_Type": "Notification", "queue_name": queue}
            assert notification(connection, binary) == expected
        # A response in the other format changes nothing.
        status, one = ask(connection, "subscription_get", q | {"subscription_id": id}, not binary)
        assert (status, one["id"], one["source"], one["ttl"], one["options"], one["confirmed"]) == (
            200,
            id,
            queue,
            300,
            {"n": 1},
            True,
        )
        many = [{"body": n} for n in range(20)]
        for _ in range(3):
            ask(other, "message_post", q | {"messages": many})
        came = [notification(connection, binary)["body"] for _ in range(60)]
        assert sorted(came) == sorted(3 * list(range(20)))
        assert [each["id"] for each in ask(other, "subscription_list", q)[1]["subscriptions"]] == [id]
        gone = ask(connection, "subscription_delete", q | {"subscription_id": id}, binary)
        assert gone == (204, f"Subscription {id} removed.")
        assert ask(other, "subscription_get", q | {"subscription_id": id})[0] == 404
        assert ask(connection, "subscription_create", q, binary)[0] == 201
        connection.close()
        wait_for(lambda: not ask(other, "subscription_list", q)[1]["subscriptions"], 60, "no subscription")


def test_an_ended_subscription_is_not_polled_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription has expired or was deleted, while its connection stays open."""
    monkeypatch.setattr(pushes, "POLL_INTERVAL", 0.0)
    storage = connect_store("memory:")
    _, use_cases = core_with_subscriptions(storage, StoreClock(storage.now))
    source = Source("acme", "queue", "orders")
    pusher = pushes.Pusher(use_cases.connections, bool)
    kept, gone = (use_cases.subscriptions.create(source, Terms(), connection=str(n)).id for n in range(2))
    for id in (kept, gone):
        pusher.add(QueueRef("acme", "orders"), id, False)
    assert pusher.is_due()
    assert list(pusher.batches()) == []
    use_cases.subscriptions.delete(source, gone)
    assert pusher.is_due()
    assert list(pusher.batches()) == []
    pusher.end()
    assert not pusher.is_due()
    assert use_cases.stored.get(source).items == ()
    storage.close()


@pytest.mark.slow
def test_other_subscribers_are_confirmed_as_over_http_and_duplicates_conflict(tmp_path: Path) -> None:
    options = {"OS_SIGNED_URL__SECRET_KEY": KEY, "OS_NOTIFICATION__ALLOWED_NETWORKS": "127.0.0.0/8"}
    with served(**options) as (address, _), Sink() as sink, connect(address) as connection:
        q = {"queue_name": "orders", "subscriber": f"{sink.url}/hook"}
        assert ask(connection, "subscription_create", q)[0] == 201
        status, refusal = ask(connection, "subscription_create", q)
        assert (status, "subscribed" in refusal["error"]) == (409, True)
        wait_for(lambda: sink.came("/hook", "SubscriptionConfirmation"), 60, "the question")
        for subscriber in ("websocket:0123", "gopher://x/", 7):
            assert ask(connection, "subscription_create", q | {"subscriber": subscriber})[0] == 400
        assert ask(connection, "subscription_create", {"queue_name": "orders", "ttl": 1})[0] == 400
        assert ask(connection, "subscription_create", {"queue_name": "orders", "options": "x"})[0] == 400


@pytest.mark.slow
def test_another_token_ends_messages_of_the_former_project(tmp_path: Path) -> None:
    with guarded(tmp_path) as (server, url, admin), connect(url) as connection, connect(url) as other:
        ours, theirs = made(server, admin, "acme"), made(server, admin, "other")
        q = {"queue_name": "orders"}
        for each in (connection, other):
            assert ask(each, "authenticate", **{"X-Auth-Token": ours["token"]})[0] == 200
        assert ask(connection, "subscription_create", q)[0] == 201
        assert len(ask(other, "subscription_list", q)[1]["subscriptions"]) == 1
        new = {"X-Project-ID": "other", "X-Auth-Token": theirs["token"]}
        assert ask(connection, "authenticate", **new)[0] == 200
        assert ask(other, "subscription_list", q)[1]["subscriptions"] == []


def test_an_idle_connection_is_closed_with_1001_before_the_process_ends() -> None:
    with served() as (url, server), connect(url) as connection:
        assert ask(connection, "queue_list")[0] == 200
        os.kill(server.pid, signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(WITHIN)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        assert server.wait(WITHIN) == 0


@pytest.mark.slow
def test_a_process_under_load_ends_cleanly(tmp_path: Path) -> None:
    """Each post is answered, or its connection is closed with 1001; the process exits with 0."""
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

    with served() as (url, server):
        threads = [threading.Thread(target=post, args=(url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answered) > 50, WITHIN, "posts are answered")
        assert server.terminate(WITHIN) == 0
        for thread in threads:
            thread.join(WITHIN)
    assert set(answered) == {201}
    assert codes == [1001] * 4
