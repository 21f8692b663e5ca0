# SPDX-License-Identifier: Apache-2.0
"""Checks before routing, on every route: ambiguous headers and foreign hosts, and headers of every response."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from webtest import TestApp

from tests.http.api import Api
from tests.http.test_order_of_checks import METHODS
from tests.tables import every_row
from zq.errors import Unavailable

pytestmark = pytest.mark.one_store

PROBES = ["/healthz", "/readyz", "/metrics", "/", "/v2/openapi.json", "/nowhere"]
SENTENCE = "The header x-project-id must be given once."


@every_row("path", [*PROBES, "/v2/queues", "/v2/queues/q/claims"])
def test_a_head_that_the_engine_refuses_is_refused_on_every_route(door: Api, path: str) -> None:
    """S1: The response quotes the error that the engine left in the environment; no route is looked up."""
    refused = door.unchecked(**{"zq.refused": SENTENCE}).get(path, 400)
    assert refused.json == {"title": "Invalid header value", "description": SENTENCE}
    assert refused.headers["X-Zq-Error"] == "InvalidHeader"


@pytest.mark.parametrize("key", ["RAW_URI", "REQUEST_URI"])
def test_an_encoded_slash_is_seen_where_a_server_gives_the_target(door: Api, key: str) -> None:
    """S16: The server refuses an encoded slash under any WSGI server that passes the raw target."""
    refused = door.unchecked(**{key: "/v2/queues/a%2Fmessages?x"}).get("/v2/queues/a/messages", 400).json
    assert "encoded slash" in refused["description"]
    door.unchecked(**{key: "/v2/queues?marker=a%2Fb&limit=x"}).get("/v2/queues?marker=a/b&limit=0", 400)


@every_row("name", ["/v2", "/healthz", "/v2/queues", "x", "/", "//", "\xff", "/messaging"])
@every_row("path", ["/healthz", "/v2/queues/q", "/v2"])
def test_a_script_name_is_never_a_defect(api: Api, name: str, path: str) -> None:
    """S10: A SCRIPT_NAME in any form that a server derives from a client's header causes no internal error."""
    answer = api.unchecked(SCRIPT_NAME=name).call("GET", path, None)
    assert answer.status_int == {"/healthz": 200, "/v2/queues/q": 200, "/v2": 404}[path]


def test_a_header_called_script_name_means_nothing(door: Api) -> None:
    """S10: The header changes no route."""
    door.get("/public/metrics", 404, {"Script-Name": "/public"})
    door.get("/healthz", 200, {"Script-Name": "/v2"})


@every_row(
    "host",
    [
        *(
            "localhost",
            "localhost:8888",
            "LocalHost",
            "zq.localhost:8888",
            "127.0.0.1",
            "127.0.0.1:1",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:8888",
        ),
        *("queues.example.org", "QUEUES.example.org:443", "zq.localhost:8888"),
    ],
)
def test_a_host_that_no_other_machine_can_have_is_served(gate: Callable[..., Api], host: str) -> None:
    """S8: The server accepts IP addresses, localhost, and the hosts that the operator allows."""
    gate(allowed_hosts=lambda: ("queues.example.org",)).get("/healthz", 200, {"Host": host})


@every_row(
    "host",
    [
        *("evil.example", "evil.example:8888", "localhost.evil.example", "127.0.0.1.evil.example", "2130706433", ""),
        *("queues.example.org.", "a@localhost", "localhost:80:80", "localhost, localhost", "[::1", "[evil]", "0x7f.1"),
    ],
)
@every_row("path", ["/healthz", "/metrics", "/v2/queues", "/nowhere"])
def test_any_other_host_is_misdirected(gate: Callable[..., Api], host: str, path: str) -> None:
    """S8: A page in a browser can reach this server only under the server's own names."""
    refused = gate(allowed_hosts=lambda: ("queues.example.org",)).get(path, 421, {"Host": host}).json
    assert refused["description"] == "This Host is not one of [server] allowed_hosts."


def test_a_trusted_network_has_no_foreign_host_either(gate: Callable[..., Api]) -> None:
    """S8: A page in a browser of that network may resolve its name to this server; ``*`` disables the check."""
    gate(trusts_network=True).get("/healthz", 421, {"Host": "evil.example"})
    gate(trusts_network=True).get("/healthz", 200, {"Host": "localhost:8888"})
    gate(trusts_network=True, allowed_hosts=lambda: ("zq",)).get("/healthz", 200, {"Host": "zq:8888"})
    for trusts_network in (True, False):
        waived = gate(trusts_network=trusts_network, allowed_hosts=lambda: ("zq", "*"))
        waived.get("/healthz", 200, {"Host": "evil.example"})


@pytest.mark.parametrize(
    ("trusts_network", "protocol", "status"),
    [(False, "HTTP/1.1", 400), (True, "HTTP/1.1", 400), (False, "HTTP/1.0", 400), (True, "HTTP/1.0", 200)],
)
def test_a_request_without_a_host_is_refused(
    gate: Callable[..., Api], trusts_network: bool, protocol: str, status: int
) -> None:
    """S15: The only exception is HTTP/1.0, which needs no Host, if the operator trusts the network."""
    said = raw(gate(trusts_network=trusts_network), "/healthz", SERVER_PROTOCOL=protocol)
    assert said[0] == status
    assert status == 200 or b"Host is missing" in said[2]


@every_row("path", [*PROBES, *METHODS])
def test_no_browser_guesses_what_an_answer_is(door: Api, path: str) -> None:
    """Every response has nosniff, including errors and 404."""
    for method in ("GET", "DELETE", "OPTIONS"):
        answer = door.unchecked().call(method, path, None)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert door.get(path, 421, {"Host": "evil.example"}).headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/readyz"),
        ("GET", "/v2/ping"),
        ("GET", "/v2/queues"),
        ("POST", "/v2/queues/q/claims"),
        ("GET", "/v2/topics"),
    ],
)
def test_every_503_says_when_to_come_back(gate: Callable[..., Api], method: str, path: str) -> None:
    away = gate(lambda: Unavailable("The store does not answer."))
    assert int(away.call(method, path, 503).headers["Retry-After"]) >= 1


@every_row(
    ("method", "path", "length"),
    [
        ("POST", "/v2/queues/q/messages", 10**11),
        ("POST", "/v2/queues/q/purge", 10**6),
        ("PUT", "/v2/queues/q", 10**6),
        ("POST", "/nowhere", 10),
        ("POST", "/v2/queues", 10),
        ("DELETE", "/v2/queues/q/messages/m", 10),
        ("GET", "/healthz", 10),
    ],
)
def test_an_answer_before_the_body_was_read_ends_the_connection(api: Api, method: str, path: str, length: int) -> None:
    """S3: The engine need not read a body that no handler uses, whether or not the request was refused."""
    status, headers, _ = raw(api, path, REQUEST_METHOD=method, CONTENT_LENGTH=str(length), HTTP_HOST="localhost")
    assert status in (200, 204, 400, 404, 405)
    assert headers["connection"] == "close"
    without = raw(api, path, REQUEST_METHOD=method, HTTP_HOST="localhost")[1]
    assert "connection" not in without


def test_an_answer_after_the_body_was_read_keeps_the_connection(api: Api) -> None:
    """The connection also stays open after a body that is not JSON."""
    for body, status in ((b"{}", 201), (b"[}", 400)):
        more: dict[str, Any] = {"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
        answer = raw(api, "/v2/queues/q", HTTP_HOST="localhost", **more)
        assert answer[0] == status
        assert "connection" not in answer[1]


def test_a_body_in_chunks_that_holds_nothing_is_refused(api: Api) -> None:
    """S2: If a server hid that the body was not chunked, a purge without a body would purge everything."""
    api.send("q", 1)
    chunked: dict[str, Any] = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    broken = raw(api, "/v2/queues/q/purge", REQUEST_METHOD="POST", HTTP_HOST="localhost", **chunked)
    assert broken[0] == 400
    assert broken[1]["connection"] == "close"
    assert api.seen("q") == [1]


class Slow(BytesIO):
    """A request body that never arrives."""

    def read(self, size: int | None = -1) -> bytes:
        raise TimeoutError


def test_a_body_that_does_not_come_is_a_timeout(api: Api) -> None:
    """S3: The server responds with 408 if the socket has a deadline."""
    late = raw(
        api,
        "/v2/queues/q/purge",
        REQUEST_METHOD="POST",
        HTTP_HOST="localhost",
        CONTENT_LENGTH="2",
        **{"wsgi.input": Slow()},
    )
    assert late[0] == 408
    assert late[1]["connection"] == "close"


def raw(api: Api, path: str, **environ: Any) -> tuple[int, dict[str, str], bytes]:
    """Send a request with exactly this environment. Return status, headers (lower-case names) and body."""
    request = TestApp(api.app).RequestClass.blank(path)
    del request.environ["HTTP_HOST"]
    named = {"HTTP_CLIENT_ID": "30387f00-39a0-11e2-be4a-a8d15f34bae2", "HTTP_X_PROJECT_ID": api.project}
    request.environ.update({**named, "wsgi.input": BytesIO(b""), **environ})
    status, headers, body = request.call_application(api.app)
    return int(status.split()[0]), {name.lower(): value for name, value in headers}, b"".join(body)


@every_row("method", ["POST", "PUT", "PATCH", "DELETE"])
@every_row("path", ["/v2/queues/q", "/v2/queues/q/messages", "/nowhere"])
def test_what_a_page_of_another_site_would_change_is_refused(door: Api, method: str, path: str) -> None:
    """Browsers report the site that sends a request. Reads are protected by the CORS policy."""
    refused = door.unchecked().call(method, path, 403, headers={"Sec-Fetch-Site": "cross-site"}).json
    assert refused["description"] == "The server rejects changes that are requested by a page of another site."


def test_requests_of_the_same_site_pass(api: Api) -> None:
    for site in ("same-origin", "same-site", "none"):
        api.unchecked().call("PUT", "/v2/queues/q", None, b"{}", headers={"Sec-Fetch-Site": site})
    api.unchecked().get("/v2/queues", 200, {"Sec-Fetch-Site": "cross-site"})


def test_no_answer_is_a_page(door: Api) -> None:
    """A response that is opened as a page runs no script and cannot be framed."""
    for path in PROBES:
        policy = door.unchecked().call("GET", path, None).headers["Content-Security-Policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"
