# SPDX-License-Identifier: Apache-2.0
"""Responses to clients if the store or the server fails (contract 1.8, 4)."""

import time
from typing import Any

import pytest

from tests.http.api import Api
from tests.http.stores import BrokenStore, bug, down
from tests.tables import every_row
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.storage.api import Storage

QUEUE = "/v2/queues/jobs"
POST = {"messages": [{"body": 1}]}
OPERATIONS = [
    ("GET", "/v2/queues", None),
    ("GET", "/v2/queues?detailed=true&with_count=true&name=x&n=1", None),
    ("PUT", QUEUE, None),
    ("PUT", QUEUE, {"a": 1}),
    ("GET", QUEUE, None),
    ("PATCH", QUEUE, [{"op": "add", "path": "/metadata/a", "value": 1}]),
    ("DELETE", QUEUE, None),
    ("GET", f"{QUEUE}/stats", None),
    ("POST", f"{QUEUE}/purge", None),
    ("GET", f"{QUEUE}/messages", None),
    ("GET", f"{QUEUE}/messages?ids=a,b", None),
    ("POST", f"{QUEUE}/messages", POST),
    ("DELETE", f"{QUEUE}/messages?ids=a", None),
    ("DELETE", f"{QUEUE}/messages?pop=1", None),
    ("GET", f"{QUEUE}/messages/a", None),
    ("DELETE", f"{QUEUE}/messages/a", None),
    ("DELETE", f"{QUEUE}/messages/a?claim_id=c", None),
    ("POST", f"{QUEUE}/claims", {"ttl": 60, "grace": 60}),
    ("GET", f"{QUEUE}/claims/c", None),
    ("PATCH", f"{QUEUE}/claims/c", {"ttl": 60}),
    ("DELETE", f"{QUEUE}/claims/c", None),
    ("POST", f"{QUEUE}/claims/c/settle", {"delete": "*"}),
    ("POST", f"{QUEUE}/redrive", None),
    ("GET", f"{QUEUE}/history", None),
    ("GET", f"{QUEUE}/history?state=all", None),
    ("POST", f"{QUEUE}/history/replay", {"ids": ["a"]}),
    ("PUT", f"{QUEUE}/claims/a.b", {"ttl": 60, "grace": 60}),
    ("POST", f"{QUEUE}/messages?stage=s", POST),
    ("POST", "/v2/fences/n", None),
    ("DELETE", "/v2/stages/n", None),
    ("POST", "/v2/commits", {"producer": "p", "batch": 1}),
    ("GET", "/v2/commits/p", None),
    *(("GET", f"/v2/{work}?limit=1", None) for work in ("commits", "fences", "stages")),
]
each_operation = pytest.mark.parametrize(("method", "path", "body"), OPERATIONS)


def ask(api: Api, method: str, path: str, body: Any, status: int) -> Any:
    """Send one of ``OPERATIONS``."""
    return (api.patch if method == "PATCH" and path == QUEUE else lambda *rest: api.call(method, *rest))(
        path, status, body
    )


@each_operation
def test_a_store_that_does_not_answer_is_503(gate, method: str, path: str, body: Any) -> None:
    """1.8 [T], 18: This holds on every route. The error advises a retry and reveals no internals."""
    answer = ask(gate(down), method, path, body, 503)
    assert answer.json["title"] == "Service temporarily unavailable"
    assert "again" in answer.json["description"]
    assert not {"Location", "Retry-After", "Allow"} & set(answer.headers)
    assert not any(word in answer.text for word in ("secret", "10.0.0.7", "ConnectionError", "Traceback"))


@each_operation
def test_an_unforeseen_error_is_500_without_its_text(gate, method: str, path: str, body: Any) -> None:
    """1.8 [Q, security]: Only the log contains the exception."""
    answer = ask(gate(bug), method, path, body, 500)
    assert answer.json["title"] == "Internal server error"
    assert not any(word in answer.text for word in ("secret", "RuntimeError", "Traceback", "stores.py"))


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize(("error", "status"), [(down, 503), (bug, 500)])
def test_a_store_may_fail_half_way(storage: Storage, project_suffix: str, method: str, error: Any, status: int) -> None:
    """1.8: If metadata can be read and messages cannot, the responses are the same, without a Location."""

    class HalfBroken(BrokenStore):
        queues = storage.queues

    healthy = Api(create_app(Broker(storage, ManualClock(storage.now()))), project_suffix)
    healthy.send("jobs", "kept")
    broken = Api(create_app(Broker(HalfBroken(error), ManualClock(storage.now()))), project_suffix)
    query = "?pop=1" if method == "DELETE" else ""
    broken.call(method, f"{QUEUE}/messages{query}", status, POST if method == "POST" else None)
    assert healthy.seen("jobs") == ["kept"]


def test_a_refusal_does_not_wait_for_the_store(gate) -> None:
    """1.2: The server reports errors of a request even while the store is down."""
    api = gate(down)
    api.get("/v2/queues?limit=0", 400)
    api.post(f"{QUEUE}/claims", 400, b"[")
    api.put(QUEUE, 400, b"[]")
    api.put(f"{QUEUE}/messages", 405)
    api.get("/v2/nowhere", 404)


def test_the_documents_need_no_store(gate) -> None:
    """2, 3: The server returns both documents while the store is down."""
    gate(down).get("/", 300)
    gate(down).get("/v2/", 200)


def test_ping_says_whether_the_store_answers(gate, api: Api) -> None:
    """4 [T]: GET answers 204 or 503 with an empty body; HEAD always answers 204."""
    assert api.get("/v2/ping", 204).body == b""
    assert gate(down).get("/v2/ping", 503).body == b""
    assert api.call("HEAD", "/v2/ping", 204).body == b""
    assert gate(down).call("HEAD", "/v2/ping", 204).body == b""


@every_row("method", ["GET", "HEAD"])
@every_row("headers", [{"Client-ID": None}, {"X-Project-ID": None}, {"Client-ID": "textid"}])
def test_ping_wants_client_and_project(gate, method: str, headers: dict[str, str | None]) -> None:
    """4 [C]: Ping requires them like every other route."""
    gate(down).call(method, "/v2/ping", 400, headers=headers)


def test_a_store_that_comes_back_is_used_again() -> None:
    """1.8: The failure of a request leaves no state in the server."""
    errors = [down, bug]
    store = BrokenStore(lambda: errors[0]())
    api = Api(create_app(Broker(store, ManualClock(time.time()))))
    api.get("/v2/queues", 503)
    errors.reverse()
    api.get("/v2/queues", 500)
    errors.reverse()
    api.get("/v2/queues", 503)
