# SPDX-License-Identifier: Apache-2.0
"""Broken, huge, deep or hostile bodies (contract 1.3, 1.6), on one store: for a store a body is just bytes."""

import io
from typing import Any

import msgspec
import pytest

from tests.http.api import PATCH_TYPE, Api
from tests.tables import every_row

pytestmark = pytest.mark.one_store

QUEUE, TOPIC = "/v2/queues/jobs", "/v2/topics/jobs"
MESSAGES = f"{QUEUE}/messages"
LISTINGS = (f"{MESSAGES}?echo=true", "/v2/queues?detailed=true", f"{TOPIC}/messages")
"""Listings that return the stored bodies."""
WITH_BODY = {
    # method, path -> the largest body, a document in which %s stands for any value
    ("PUT", QUEUE): (65536, '{"a": %s}'),
    ("PATCH", QUEUE): (65536, '[{"op": "add", "path": "/metadata/a", "value": %s}]'),
    ("POST", MESSAGES): (262144, '{"messages": [{"body": %s}]}'),
    ("POST", f"{QUEUE}/claims"): (65536, '{"unknown": %s}'),
    ("PATCH", f"{QUEUE}/claims/c"): (65536, '{"unknown": %s}'),
    ("POST", f"{QUEUE}/purge"): (65536, '{"resource_types": [], "unknown": %s}'),
    ("POST", f"{QUEUE}/claims/c/settle"): (262144 + 65536, '{"move": [{"id": "a", "queue": "b", "body": %s}]}'),
    ("POST", f"{QUEUE}/redrive"): (65536, '{"unknown": %s}'),
    ("POST", f"{QUEUE}/history/replay"): (65536, '{"limit": 5, "unknown": %s}'),
    ("PUT", f"{QUEUE}/claims/a.b"): (65536, '{"unknown": %s}'),
    ("POST", f"{TOPIC}/messages"): (262144, '{"messages": [{"body": %s}]}'),
    ("POST", "/v2/commits"): (262144, '{"producer": "p", "batch": 1, "unknown": %s}'),
}
each_route = every_row(("method", "path"), WITH_BODY, ids=lambda part: part.removeprefix(QUEUE) or "/")
BROKEN = [
    *rb"""{ } [ ] " {] [} {"a" {"a": {"a":} {"a":1,} [1,] {,} {1:2} {'a':1} {a:1} {}x {}{} [][] NaN [NaN]""".split(),
    *rb"""{"a":"\x"} {"a":"\u12"} {"a":01} {"a":+1} {"a":.5} {"a":1.} {"a":0x1} {"a":1e} {"a":-} {"a":tru}""".split(),
    *rb"""{"a":None} {"a":undefined} {"a":NaN} {"a":Infinity} {"a":-Infinity} {}//x /**/{}""".split(),
    *(b'{"a": "\n"}', b'{"a" 1}', b"\x00", b"{}\x00", b'{"a": "\x00"}', b"   ", b"\n"),
]
WRONG_TEXT = [
    b'{"a": "\xff"}',
    b'{"\xc3": 1}',
    b'{"a": "\xc0\xaf"}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\xf8\x88\x80\x80\x80"}',
    b'{"a": "\xe9"}',
    b"\xef\xbb\xbf{}",
    b"\xef\xbb\xbf" + b'{"messages": [{"body": 1}]}',
    "{}".encode("utf-16"),
    "{}".encode("utf-16-le"),
    "{}".encode("utf-32"),
]
FRAGMENTS = [
    *rb"""NaN Infinity -Infinity nan 01 +1 .5 1. 1e 1e+ - --1 0x1 1_0 tru nulll None undefined 'a' a "a "\ """.split(),
    *rb"""[1,] [,] {,} {1:2} {"a":1,} {a:1} {"a":} /**/1 1// "\x41" "\u12" "\u123g" """.split(),
    *(b"", b'"\n"', b'"\x00"', b'"\x1f"', b'"\t"', b"[1 2]", b'{"a" 1}', b'{"a": 1 "b": 2}', b'"a" "b"'),
    *(b'"\xff"', b'"\xed\xa0\x80"', b'{"\xc0\xaf": 1}'),
]
"""Fragments that are not valid JSON values."""
SCALARS = [b'"text"', b"1", b"-1.5", b"null", b"true", b"false", b'""']
GIANTS = ["9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" + "0" * 400, "-" + "9" * 5000]


BEYOND_DOUBLE = ["1e400", "-1e400", "-1E+999", "1e999999999", "1e0400", "1" * 400 + ".5", "1" * 400 + "e5"]


def send(api: Api, method: str, path: str, body: bytes | None, status: int | None = None, **headers: str) -> Any:
    """Send a request with the media type that its route requires."""
    kind = {"Content-Type": PATCH_TYPE} if (method, path) == ("PATCH", QUEUE) else {}
    return api.call(method, path, status, body, {**kind, **headers})


def with_queue(api: Api) -> Api:
    """Return a client of a new project whose queue ``jobs`` is empty."""
    fresh = api.fresh()
    fresh.put(QUEUE, 201)
    return fresh


@pytest.fixture
def queued(api: Api) -> Api:
    """Return a client of a project with queue ``jobs``."""
    return with_queue(api)


@each_route
@every_row("body", [*BROKEN, *WRONG_TEXT, *SCALARS])
def test_a_body_that_is_no_json_document_is_refused(queued: Api, method: str, path: str, body: bytes) -> None:
    """1.6 [T]: The server answers 400 and names the body for invalid JSON or UTF-8, a BOM, NaN and bare values."""
    assert send(queued, method, path, body, 400).json["title"] == "Invalid request body"
    assert queued.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


@each_route
def test_a_broken_value_deep_inside_is_refused_too(queued: Api, method: str, path: str) -> None:
    """1.6: Ignored members, and message bodies, which are stored unparsed, must be valid JSON too."""
    document = WITH_BODY[method, path][1].encode()
    for fragment in FRAGMENTS:
        for value in (fragment, b"[" + fragment + b"]" if fragment else b"[,]", b'{"x": {"y": ' + fragment + b"}}"):
            send(queued, method, path, document.replace(b"%s", value), 400)
    assert queued.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


@each_route
@every_row("number", [*GIANTS, *BEYOND_DOUBLE], ids=lambda number: f"{len(number)} digits")
def test_a_giant_number_is_refused_wherever_it_stands(queued: Api, method: str, path: str, number: str) -> None:
    """1.6 [T]: The server refuses integers beyond signed 64 bits and numbers beyond a double at any depth."""
    for form in ("%s", "[%s]", '{"a": [{"b": %s}]}', '["x", 1.5, %s]'):
        value = form % number
        refused = send(queued, method, path, (WITH_BODY[method, path][1] % value).encode(), 400).json
        assert refused["title"] == "Invalid request body"
        assert len(refused["description"]) < 300
    assert queued.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


def test_a_giant_integer_is_refused_wherever_it_begins(queued: Api) -> None:
    """The server finds the shortest such integer at any offset, although it does not examine every byte."""
    for blanks in range(8):
        body = b'{"messages": [{"body": %s9223372036854775808}]}' % (b" " * blanks)
        send(queued, "POST", MESSAGES, body, 400)


@each_route
@every_row("number", ["9223372036854775807", "-9223372036854775808", "-0", "0"])
def test_the_largest_integers_are_taken(queued: Api, method: str, path: str, number: str) -> None:
    """1.6: The server accepts the limits themselves."""
    answer = send(queued, method, path, (WITH_BODY[method, path][1] % number).encode())
    assert answer.status_int in (200, 201, 204, 404)


@each_route
@every_row("number", ["1e308", "-1.7976931348623157E+308", "1e-400", "1e-999999999", "0." + "1" * 5000, "1E+2"])
def test_the_largest_floats_are_accepted(queued: Api, method: str, path: str, number: str) -> None:
    """1.6: The server returns them as JSON that the client's decoder accepts."""
    queued = with_queue(queued)
    answer = send(queued, method, path, (WITH_BODY[method, path][1] % number).encode())
    assert answer.status_int in (200, 201, 204, 404)
    for listing in (*LISTINGS, QUEUE):
        msgspec.json.decode(queued.get(listing, 200).body)


@every_row(
    ("method", "path", "document", "field"),
    [
        ("POST", MESSAGES, '{"messages": [{"body": 1}, {"body": {"secret": [1e999]}}]}', "messages[1].body"),
        ("POST", MESSAGES, '{"messages": [{"body": 1e999, "body": 1}]}', "messages[0].body"),
        ("POST", f"{QUEUE}/claims/c/settle", '{"move": [{"id": "a", "queue": "b", "body": -1e999}]}', "move[0].body"),
        ("PUT", QUEUE, '{"a": {"b": 9223372036854775808}}', "a.b"),
        ("PATCH", QUEUE, '[{"op": "add", "path": "/metadata/a", "value": 9223372036854775808}]', "[0].value"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_field(
    queued: Api, method: str, path: str, document: str, field: str
) -> None:
    """The path ends at the message's body, because an error contains no part of a body."""
    refused = send(queued, method, path, document.encode(), 400).json
    assert refused["description"].startswith(f"{field} contains a number out of range"), refused
    assert "secret" not in refused["description"]


@each_route
@every_row(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("[", ""), ('{"a":', ""), ('[{"a":', "}]")])
@every_row("depth", [100, 1000, 10000, 100000])
def test_deep_nesting_does_not_break_the_server(
    queued: Api, method: str, path: str, opening: str, closing: str, depth: int
) -> None:
    """1.6: The server answers 400, or stores the body and returns it later."""
    queued = with_queue(queued)
    for document in ("%s", WITH_BODY[method, path][1]):
        answer = send(queued, method, path, (document % (opening * depth + "1" + closing * depth)).encode())
        assert answer.status_int in (200, 201, 204, 400, 404)
        if not closing:
            assert answer.status_int == 400
    for listing in LISTINGS:
        queued.get(listing, 200)
    queued.post(f"{QUEUE}/claims", None)


@each_route
def test_a_lone_surrogate_is_refused_or_kept(queued: Api, method: str, path: str) -> None:
    """1.6: Valid JSON need not be valid Unicode. Whether the body is refused or stored, later reads succeed."""
    queued = with_queue(queued)
    for value in ('"\\ud800"', '{"\\udfff": 1}', '"\\ud83d\\ud83d"'):
        answer = send(queued, method, path, (WITH_BODY[method, path][1] % value).encode())
        assert answer.status_int in (200, 201, 204, 400, 404)
        for listing in LISTINGS:
            queued.get(listing, 200)


@every_row(
    ("body", "half"),
    [
        (rb'"\ud800"', rb"\ud800 at byte 23"),
        (rb'"\ude00"', rb"\ude00 at byte 23"),
        (rb'"\ud800 and more"', rb"\ud800 at byte 23"),
        (rb'"\ud83d\ud83d"', rb"\ud83d at byte 23"),
        (rb'"\\ud800 \uD83D\uDE00 \uDFFF"', rb"\uDFFF at byte 44"),
    ],
)
def test_half_a_surrogate_pair_is_named(queued: Api, body: bytes, half: bytes) -> None:
    """1.6: The error names either half, whatever follows it. Escaped backslashes and whole pairs are accepted."""
    refused = queued.post(f"{QUEUE}/messages", 400, b'{"messages": [{"body":' + body + b"}]}").json["description"]
    sentence = "The body could not be parsed: %s is half of a surrogate pair, not a character."
    assert refused == sentence % half.decode()


class Unreadable(io.RawIOBase):
    """A body that the server must not read."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any) -> int:
        raise AssertionError("the body was read")

    read = readline = readlines = readinto  # type: ignore[assignment]


@each_route
@every_row("excess", [1, 10**12, 10**18])
def test_an_oversized_body_is_refused_unread(queued: Api, method: str, path: str, excess: int) -> None:
    """6.3, 6.5, 7.2: The server refuses the body by its Content-Length and names the limit."""
    bound = WITH_BODY[method, path][0]
    careless = queued.unchecked(**{"wsgi.input": Unreadable(), "CONTENT_LENGTH": str(bound + excess)})
    refused = send(careless, method, path, None, 400).json
    assert refused["title"] == "Invalid API request"
    assert str(bound) in refused["description"]


@each_route
def test_a_body_that_ends_early_is_refused(queued: Api, method: str, path: str) -> None:
    """1.3: A client that disconnects before the end of the body has posted nothing."""
    for said, sent in ((100, b'{"messages": [{"body'), (30, b"{}"), (30, b"[]"), (5, b"")):
        broken = queued.unchecked(**{"wsgi.input": io.BytesIO(sent), "CONTENT_LENGTH": str(said)})
        assert send(broken, method, path, None, 400).json["title"] == "Invalid request body"


@every_row(
    ("method", "path"),
    [
        ("POST", MESSAGES),
        ("PATCH", QUEUE),
        ("PATCH", f"{QUEUE}/claims/c"),
        ("PUT", "/v2/queues/chunky"),
        ("POST", f"{QUEUE}/claims"),
        ("POST", f"{QUEUE}/purge"),
        ("POST", f"{QUEUE}/claims/c/settle"),
        ("POST", f"{QUEUE}/redrive"),
        ("POST", f"{QUEUE}/history/replay"),
        ("PUT", f"{QUEUE}/claims/a.b"),
        ("POST", "/v2/commits"),
    ],
)
@every_row("length", ["", None])
def test_a_body_whose_end_the_server_cannot_tell_is_refused(
    queued: Api, method: str, path: str, length: str | None
) -> None:
    """S2: A WSGI server that does not decode chunks gets 411; the body never counts as absent, and nothing changes."""
    queued = with_queue(queued)
    queued.send("jobs", "kept")
    environ = {"HTTP_TRANSFER_ENCODING": "chunked", **({"CONTENT_LENGTH": length} if length is not None else {})}
    refused = send(queued.unchecked(**environ), method, path, None, 411)
    assert "Content-Length" in refused.json["description"]
    assert queued.seen("jobs") == ["kept"]
    assert "chunky" not in queued.queues()


@every_row("header", ["CLIENT_ID", "X_PROJECT_ID", "X_ROLES", "EXTRA_SPEC", "ACCEPT", "X_OPENSTACK_REQUEST_ID"])
@every_row("value", ["a\r\nX-Injected: 1", "a\nX-Injected: 1", "\x00", "\x7f", "\xff" * 300, "x" * 100000])
def test_no_header_of_the_request_gets_into_the_answers(api: Api, header: str, value: str) -> None:
    """1.3: Line ends, control characters and huge values are refused or harmless."""
    for method, path in (("GET", "/v2/queues"), ("PUT", "/v2/queues/injected"), ("POST", f"{QUEUE}/claims")):
        answer = api.unchecked().call(method, path, None, headers={header.replace("_", "-"): value})
        assert answer.status_int < 500
        assert "X-Injected" not in answer.headers
        assert not any(char in text for text in answer.headers.values() for char in "\r\n\x00")


@every_row(
    "part",
    [
        "..%2F..%2Fetc",
        "%2e%2e",
        "a%0D%0AX-Injected:%201",
        "a%00b",
        "%FF%FE",
        "%25%32%46",
        "a%3Fb",
        "a%23b",
        "{0.__class__}",
        "%",
        "%zz",
        "%u0041",
        "a;b",
        "a\\b",
    ],
)
def test_a_path_cannot_play_tricks(queued: Api, part: str) -> None:
    """1.7: Names are refused or routed as text, and ids are not found; no response contains injected text."""
    queued = with_queue(queued)
    queued.send("jobs", "kept")
    for path in (
        f"/v2/queues/{part}",
        f"/v2/queues/{part}/messages",
        f"{MESSAGES}/{part}",
        f"{QUEUE}/claims/{part}",
        f"/{part}",
    ):
        for method in ("GET", "PUT", "DELETE", "POST", "PATCH"):
            answer = queued.unchecked().call(method, path, None, b"{}" if method in ("PUT", "POST", "PATCH") else None)
            assert answer.status_int < 500
            assert "X-Injected" not in answer.headers
    assert queued.seen("jobs") == ["kept"]
    assert set(queued.queues()) <= {"jobs", "..", "."}
