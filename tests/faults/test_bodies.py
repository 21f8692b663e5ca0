# SPDX-License-Identifier: Apache-2.0
"""Bodies without a length, over sockets and with both engines: the server reads them like other bodies (S2).

``curl -T -``, Node's fetch with a stream, Go and Java send ``Transfer-Encoding: chunked`` if they do not know the
length of a body.
"""

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tests.servers import CLIENT, Answer, ZqServer, ask

pytestmark = pytest.mark.every_engine
PATCH_TYPE = "application/openstack-messaging-v2.0-json-patch"
ENGINES = ["gunicorn", "granian"]
# Maximum of bytes of a small body.
BOUND = 65536


class Sent(NamedTuple):
    """A response, and whether the server closes the connection afterwards; status 0 means closed without a response."""

    status: int
    document: Any
    closed: bool


class Target:
    """A server and a project of its own."""

    def __init__(self, server: ZqServer, engine: str) -> None:
        self.server = server
        self.closes_by_itself = engine == "gunicorn"
        """gunicorn ignores an application's ``Connection`` header: it counts how much of a body was read."""
        self.project = f"chunks-{uuid4().hex}"

    def ask(self, method: str, path: str, document: object = None) -> Answer:
        """Send a request whose body has a length."""
        return ask(self.server.url, method, path, document, headers={"X-Project-ID": self.project})

    def chunked(self, method: str, path: str, body: bytes, piece: int = 7, **headers: str) -> Sent:
        """Send a request whose body has chunks instead of a length."""
        pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
        return self.raw(method, path, b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in [*pieces, b""]), **headers)

    def raw(self, method: str, path: str, coded: bytes, **headers: str) -> Sent:
        """Send these bytes as a chunked body."""
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: localhost",
            f"Client-ID: {CLIENT}",
            f"X-Project-ID: {self.project}",
        ]
        lines += ["Transfer-Encoding: chunked", *(f"{name.replace('_', '-')}: {is_}" for name, is_ in headers.items())]
        with socket.create_connection(("127.0.0.1", self.server.port), 20) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + coded)
            reply = HTTPResponse(connection, method=method)
            try:
                reply.begin()
            except RemoteDisconnected:
                return Sent(0, None, True)
            text = reply.read()
            closed = reply.will_close
        document = json.loads(text) if text.startswith((b"{", b"[")) else None
        return Sent(reply.status, document, closed)

    def post(self, queue: str, count: int) -> list[str]:
        posted = self.ask("POST", f"/v2/queues/{queue}/messages", {"messages": [{"body": n} for n in range(count)]})
        return [href.rpartition("/")[2] for href in posted.document["resources"]]

    def claim(self, queue: str) -> str:
        return self.ask("POST", f"/v2/queues/{queue}/claims", {"ttl": 60, "grace": 60}).headers["location"]

    def total(self, queue: str) -> int:
        total: int = self.ask("GET", f"/v2/queues/{queue}/stats").document["messages"]["total"]
        return total


@pytest.fixture(scope="module", params=ENGINES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    folder: Path = tmp_path_factory.mktemp("bodies")
    with ZqServer(f"rocksdb://{folder}/store", engine=request.param) as started:
        yield started


@pytest.fixture
def target(server: ZqServer, request: pytest.FixtureRequest) -> Target:
    return Target(server, request.node.callspec.params["server"])


def encoded(document: object) -> bytes:
    return json.dumps(document).encode()


def test_a_purge_that_names_subscriptions_leaves_the_messages(target: Target) -> None:
    """S2: This request once lost data without an attacker."""
    target.post("q", 5)
    assert target.chunked("POST", "/v2/queues/q/purge", encoded({"resource_types": ["subscriptions"]})).status == 204
    assert target.total("q") == 5
    assert target.chunked("POST", "/v2/queues/q/purge", b"xxxx").status == 400
    assert target.total("q") == 5
    assert target.chunked("POST", "/v2/queues/q/purge", encoded({"resource_types": ["messages"]})).status == 204
    assert target.total("q") == 0


def test_a_settlement_moves_a_message_with_the_largest_body(target: Target) -> None:
    ids = target.post("q", 1)
    moved = {"id": ids[0], "queue": "done", "body": "x" * 262_000}
    padding = {f"unknown{n}": "y" * 1_000 for n in range(60)}
    settled = target.ask("POST", target.claim("q") + "/settle", {"move": [moved], **padding})
    assert settled.status == 200
    assert target.total("done") == 1


def test_a_redrive_obeys_its_limit(target: Target) -> None:
    """S2: One of five messages moves, not all."""
    target.ask("PUT", "/v2/queues/q", {"_dead_letter_queue": "dead"})
    ids = target.post("q", 5)
    assert (
        target.ask("POST", target.claim("q") + "/settle", {"bury": [{"id": id, "reason": "bad"} for id in ids]}).status
        == 200
    )
    moved = target.chunked("POST", "/v2/queues/dead/redrive", encoded({"limit": 1}))
    assert moved.document == {"moved": 1, "remaining": 4}


@pytest.mark.parametrize("word", ["queue", "topic"])
def test_metadata_are_kept_and_patched(target: Target, word: str) -> None:
    """S2: This holds for PUT and PATCH."""
    path = f"/v2/{word}s/q"
    assert target.chunked("PUT", path, encoded({"_default_message_ttl": 77, "colour": "blue"})).status == 201
    assert target.ask("GET", path).document["_default_message_ttl"] == 77
    change = [{"op": "replace", "path": "/metadata/colour", "value": "red"}]
    assert target.chunked("PATCH", path, encoded(change), Content_Type=PATCH_TYPE).status == 200
    assert target.ask("GET", path).document["colour"] == "red"


def test_posts_claims_renewals_and_settlements_have_their_terms(target: Target) -> None:
    """S2: The effect of every verb on messages and claims shows that its body was read."""
    posted = target.chunked("POST", "/v2/queues/q/messages", encoded({"messages": [{"body": 1}, {"body": 2}]}))
    assert posted.status == 201
    claimed = target.chunked("POST", "/v2/queues/q/claims?limit=1", encoded({"ttl": 100, "grace": 100}))
    claim = claimed.document["messages"][0]["href"].partition("claim_id=")[2]
    assert target.ask("GET", f"/v2/queues/q/claims/{claim}").document["ttl"] == 100
    assert target.chunked("PATCH", f"/v2/queues/q/claims/{claim}", encoded({"ttl": 222, "grace": 60})).status == 204
    assert target.ask("GET", f"/v2/queues/q/claims/{claim}").document["ttl"] == 222
    assert target.chunked("PUT", "/v2/queues/q/claims/my.claim", encoded({"ttl": 333, "grace": 60})).status == 201
    assert target.ask("GET", "/v2/queues/q/claims/my.claim").document["ttl"] == 333
    settle = {"delete": [posted.document["resources"][0].rpartition("/")[2]]}
    assert target.chunked("POST", f"/v2/queues/q/claims/{claim}/settle", encoded(settle)).status == 200
    assert target.total("q") == 1


def test_stages_commits_publishes_and_replays_are_read(target: Target) -> None:
    """S2: The verbs are those of extensions 5, 8 and 9."""
    messages = encoded({"messages": [{"body": 1}]})
    target.ask("PUT", "/v2/queues/q", {"_history_ttl": 600})
    assert target.chunked("POST", "/v2/queues/q/messages?stage=s", messages).status == 202
    commit = {"producer": "p", "batch": 1, "publish": ["s"], "settle": []}
    assert target.chunked("POST", "/v2/commits", encoded(commit)).status == 200
    assert target.total("q") == 1
    assert target.chunked("POST", "/v2/topics/t/messages", messages).status == 201
    popped = target.ask("DELETE", "/v2/queues/q/messages?pop=1").document["messages"][0]["id"]
    replayed = target.chunked("POST", "/v2/queues/q/history/replay", encoded({"ids": [popped]}))
    assert replayed.document == {"replayed": 1}


SMALL = [
    ("POST", "/v2/queues/q/purge"),
    ("POST", "/v2/queues/q/redrive"),
    ("PUT", "/v2/queues/q"),
    ("PATCH", "/v2/queues/q"),
    ("POST", "/v2/queues/q/claims"),
    ("PUT", "/v2/queues/q/claims/a.b"),
    ("PATCH", "/v2/queues/q/claims/c"),
    ("POST", "/v2/queues/q/history/replay"),
    ("PUT", "/v2/topics/t"),
    ("POST", "/v2/topics/t/purge"),
]
LARGE = [
    ("POST", "/v2/queues/q/messages"),
    ("POST", "/v2/queues/q/messages?stage=s"),
    ("POST", "/v2/topics/t/messages"),
    ("POST", "/v2/commits"),
]


@pytest.mark.parametrize(("method", "path"), SMALL + LARGE)
def test_a_body_beyond_its_bound_is_refused_and_ends_the_connection(target: Target, method: str, path: str) -> None:
    """S2: The server reads at most one byte more than the limit."""
    bound = BOUND if (method, path) in SMALL else 4 * BOUND
    refused = target.chunked(method, path, b"[" * (bound + 1), piece=1 << 16, Content_Type=PATCH_TYPE)
    assert refused.status == 400
    assert refused.document["description"].startswith(f"The body must be at most {bound} bytes; it is ")
    assert refused.closed or target.closes_by_itself
    fits = target.chunked(method, path, b"[" * bound, piece=1 << 16, Content_Type=PATCH_TYPE)
    assert "at most" not in fits.document["description"]


@pytest.mark.parametrize("digits", [30, 5000])
def test_a_length_with_zeros_before_it_is_as_large_as_it_says(target: Target, digits: int) -> None:
    """A body of a gigabyte is refused unread, however its length is written; a small one is read."""
    size = f"{1 << 30:0{digits}d}"
    connection = HTTPConnection("127.0.0.1", target.server.port, timeout=20)
    headers = {"Client-ID": CLIENT, "X-Project-ID": target.project, "Content-Length": size}
    connection.request("POST", "/v2/queues/q/messages", headers=headers)
    assert connection.getresponse().status == 400
    connection.close()
    body = encoded({"messages": [{"body": 1}]})
    connection.request("POST", "/v2/queues/q/messages", body, headers | {"Content-Length": f"{len(body):0{digits}d}"})
    assert connection.getresponse().status in ({201} if digits < 100 else {201, 400})
    connection.close()


@pytest.mark.parametrize("coded", [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}XX0\r\n\r\n", b"-2\r\n{}\r\n0\r\n\r\n"])
def test_malformed_chunks_are_a_clients_error(target: Target, coded: bytes) -> None:
    """S2: Malformed chunks cause no internal error, and the body does not count as absent."""
    target.post("q", 1)
    assert target.raw("POST", "/v2/queues/q/purge", coded).status in (0, 400)
    assert target.total("q") == 1


def test_chunks_that_hold_nothing_are_not_taken_as_absent(target: Target) -> None:
    """S2: A purge without a body purges everything, so a purge with a lost body is refused."""
    target.post("q", 1)
    assert target.raw("POST", "/v2/queues/q/purge", b"0\r\n\r\n").status == 400
    assert target.total("q") == 1


def test_a_form_in_chunks_is_refused_too(target: Target) -> None:
    """1.3: A body with the form type is refused with and without a length."""
    refused = target.chunked("POST", "/v2/queues/q/claims", b"{}", Content_Type="application/x-www-form-urlencoded")
    assert refused.status == 400
    assert refused.document["title"] == "Invalid Content-Type"


def test_a_request_that_is_refused_by_its_head_leaves_the_body_and_closes(target: Target) -> None:
    """S3: The server answers before the body arrives."""
    refused = target.raw("POST", "/v2/queues/b@d/messages", b"5\r\n")
    assert refused.status in (400, 408)
    assert refused.closed or target.closes_by_itself


def test_what_the_engine_refuses_by_itself_has_the_headers_of_every_refusal(target: Target) -> None:
    """The headers prevent browsers from guessing the type and caches from sharing it. Here the chunks are malformed."""
    head = f"POST /v2/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nClient-ID: {CLIENT}\r\nX-Project-ID: acme\r\n"
    with socket.create_connection(("127.0.0.1", target.server.port), 20) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode())
        reply = HTTPResponse(connection, method="POST")
        reply.begin()
    assert reply.status == 400
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["vary"] == "Accept"
