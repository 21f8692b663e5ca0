# SPDX-License-Identifier: Apache-2.0
"""Raw HTTP requests for every kind of object in a project, and damaged variants of these requests.

Damage to values, headers and bodies keeps a request readable; damage to bytes may hit any part of it.
"""

import json
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.servers import CLIENT

FOR_KNOWN = ("/v2/quota", "/v2/tokens", "/v2/admin/", "/v2/health", "/v2/servers")
"""Paths that require authentication; test_quota, test_tokens and test_figures cover them."""
SUBSCRIBER = "mailto:somebody@example.org"
"""A subscriber that gets no mail, because no page for its confirmation is configured."""
NASTY = [
    *(b"", b"0", b"-1", b"1e400", b"9" * 40, b"2147483648", b"9223372036854775807", b"1.5", b"NaN", b"null", b"true"),
    *(b"%00", b"%2F", b"%2e%2e", b"%ff%fe", b"..", b"\x00", b"\xff\xfe", "é☃".encode(), b"\xed\xa0\x80", b"a" * 5000),
    *(b"{}", b"[]", b'""', b'"\\u0000"', b'"\\ud800"', b"[" * 2000, b'{"a":' * 500, b"$where", b"' OR 1=1", b"{{7*7}}"),
    *(b"_reserved", b"MD5:0", b"a,b", b"a\\b", b" a ", b"*", b"acme\r\nX-Evil: 1"),
]
HEADERS = [
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Content-Length: 0", b"Content-Length: -1"),
    *(b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Expect: 100-continue", b"Expect: nonsense"),
    *(b"X_Project_ID: other", b"X-Project-ID: other", b"x-project-id: other", b"Client-ID: no-uuid", b"Client_ID: x"),
    *(
        b"Accept: text/html",
        b"Accept: */*;q=0",
        b"Accept-Encoding: gzip",
        b"Content-Encoding: gzip",
        b"Range: bytes=0-1",
    ),
    *(b"Upgrade: h2c", b"Connection: upgrade", b"SCRIPT_NAME: /v2", b"X-Forwarded-Prefix: /x", b"X-Forwarded-For: ::1"),
    *(
        b"Idempotency-Key: k",
        b"Idempotency-Key: " + b"k" * 300,
        b"URL-Signature: ",
        b"URL-Signature: x",
        b"X-Roles: admin",
    ),
    *(
        b"X-HTTP-Method-Override: DELETE",
        b"If-Match: *",
        b"Cookie: a=b",
        b"Host: other.example",
        b": empty",
        b"No colon",
    ),
    *(b" folded: yes", b"X-Long: " + b"x" * 9000, b"X-Null: \x00", b"Last-Event-ID: -1", b"Content-Type: text/xml"),
]
SINCE, UNTIL = "2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
METHODS = [
    b"GET",
    b"HEAD",
    b"PUT",
    b"POST",
    b"PATCH",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"BREW",
    b"get",
    b"",
]


class Request(NamedTuple):
    """An HTTP request. ``path`` is quoted and includes the query; ``headers`` are header lines."""

    method: bytes
    path: bytes
    headers: tuple[bytes, ...]
    body: bytes | None = None

    def raw(self) -> bytes:
        """Return the bytes of the request, with a Content-Length unless a header gives the length of the body."""
        told = any(line.lower().startswith((b"content-length", b"transfer-encoding")) for line in self.headers)
        length = () if self.body is None or told else (b"Content-Length: %d" % len(self.body),)
        lines = [b"%s %s HTTP/1.1" % (self.method, self.path), *self.headers, *length, b"", self.body or b""]
        return b"\r\n".join(lines)


def request(project: str, method: str, path: str, document: object = None) -> Request:
    """Return a valid request of a project."""
    kind = "application/openstack-messaging-v2.0-json-patch" if method == "PATCH" else "application/json"
    headers = ("Host: localhost", f"Client-ID: {CLIENT}", f"X-Project-ID: {project}", f"Content-Type: {kind}")
    body = None if document is None else json.dumps(document).encode()
    return Request(method.encode(), path.encode(), tuple(line.encode() for line in headers), body)


def recorded(project: str, free: str, held: str, claim: str, subscription: str) -> list[Request]:
    """Return valid requests for every object that ``furnish`` creates, by the ids of these objects."""
    jobs, news = "/v2/queues/jobs", "/v2/topics/news"
    messages = {"messages": [{"body": {"n": 1}, "ttl": 600, "delay": 0}, {"body": "two"}]}
    patch = [{"op": "replace", "path": "/metadata/colour", "value": "red"}]
    settle = {"delete": [held], "release": [{"id": free, "delay": 1}], "move": [], "bury": []}
    commit = {"producer": "etl", "batch": 2, "publish": ["night"], "settle": [{"queue": "jobs", "claim": "kept.1"}]}
    told: list[tuple[str, str, object]] = [
        *(("GET", path, None) for path in ("/", "/v2/", "/v2/ping", "/v2/limits", "/healthz", "/readyz")),
        *(("GET", path, None) for path in ("/v2/queues?detailed=true&with_count=true&limit=5", "/v2/topics?limit=2")),
        *(("GET", f"{jobs}{path}", None) for path in ("/figures?window=300", "/depth")),
        *(
            ("GET", f"/v2/figures{path}", None)
            for path in ("?window=600", "/queues?kind=queues&sort=ready&order=asc&limit=5&name=j&marker=WyI")
        ),
        *(("GET", f"{jobs}{path}", None) for path in ("", "/stats", f"/claims/{claim}", f"/messages/{free}")),
        ("GET", f"{jobs}/messages?limit=5&echo=true&include_claimed=true&include_delayed=true&detailed=true", None),
        ("GET", f"{jobs}/messages?ids={free},{held}", None),
        ("GET", f"{jobs}/messages?marker=1&limit=2", None),
        ("GET", f"{jobs}/messages?state=ready&marker=1.1.1&limit=2&bodies=start", None),
        ("GET", f"/v2/messages/{free}?detailed=true", None),
        *(("GET", f"{path}/claims?limit=2&marker=am9icy8", None) for path in (jobs, "/v2")),
        ("GET", f"{jobs}/history?limit=3&order=desc", None),
        ("PUT", jobs, {"colour": "blue", "_max_claim_count": 3, "_dead_letter_queue": "dead"}),
        ("PATCH", jobs, patch),
        ("POST", f"{jobs}/messages", messages),
        ("POST", f"{jobs}/messages?stage=night", messages),
        ("POST", f"{jobs}/claims?limit=2", {"ttl": 60, "grace": 60}),
        ("PUT", f"{jobs}/claims/kept.1?limit=1", {"ttl": 60, "grace": 60}),
        ("PATCH", f"{jobs}/claims/{claim}", {"ttl": 90, "grace": 60}),
        ("POST", f"{jobs}/claims/{claim}/settle", settle),
        ("DELETE", f"{jobs}/claims/{claim}", None),
        ("DELETE", f"{jobs}/messages/{held}?claim_id={claim}", None),
        ("DELETE", f"{jobs}/messages?pop=1", None),
        ("DELETE", f"{jobs}/messages?ids={free}", None),
        ("POST", f"{jobs}/purge", {"resource_types": ["messages"]}),
        ("POST", "/v2/queues/dead/redrive", {"limit": 5}),
        ("POST", f"{jobs}/history/replay", {"ids": [held]}),
        ("POST", "/v2/fences/etl", None),
        ("DELETE", "/v2/stages/night", None),
        ("POST", "/v2/commits", commit),
        ("GET", "/v2/commits/etl", None),
        *(("GET", f"/v2/{work}?limit=3&marker=a", None) for work in ("commits", "fences", "stages")),
        *(("GET", f"{news}{path}", None) for path in ("", "/stats", "/messages?limit=5&detailed=true")),
        ("PUT", news, {"colour": "blue"}),
        ("PATCH", news, patch),
        ("POST", f"{news}/messages", {"messages": [{"body": 1, "ttl": 600}]}),
        ("DELETE", "/v2/queues/none", None),
        ("DELETE", "/v2/topics/none", None),
    ]
    subscribing = [one for source in (jobs, news) for one in of_subscriptions(source, subscription)]
    return [request(project, *one) for one in told + subscribing] + rarer(project, free, held, claim)


def of_subscriptions(source: str, subscription: str) -> list[tuple[str, str, object]]:
    """Return method, path and document of requests for the subscriptions of a queue or topic."""
    terms = {"subscriber": SUBSCRIBER, "ttl": 600, "options": {"subject": "news"}}
    one = f"{source}/subscriptions/{subscription}"
    return [
        ("GET", f"{source}/subscriptions?limit=2&marker=1", None),
        ("POST", f"{source}/subscriptions", terms),
        ("GET", one, None),
        ("PATCH", one, {"ttl": 900, "options": {"from": "a@example.org"}}),
        ("PUT", f"{one}/confirm", {"confirmed": True}),
        ("POST", f"{one}/secret", None),
        ("GET", f"{one}/deliveries?limit=2&marker=1", None),
        ("GET", f"{one}/deliveries?state=waiting", None),
        ("POST", f"{one}/deliveries", None),
        ("POST", f"{one}/deliveries/redrive", {"limit": 3}),
        ("DELETE", f"{one}/deliveries?ids=a,b", None),
        ("DELETE", f"{source}/subscriptions/none", None),
    ]


def rarer(project: str, free: str, held: str, claim: str) -> list[Request]:
    """Return requests with parameters and headers that ``recorded`` omits. No request waits."""
    jobs, news = "/v2/queues/jobs", "/v2/topics/news"
    terms, bodies = {"ttl": 60, "grace": 60}, {"messages": [{"body": 1}]}
    rest = {"delete": [held], "move": [{"id": free, "queue": "dead"}], "bury": [{"id": "none", "reason": "late"}]}
    commit = {"producer": "etl", "batch": 3, "publish": [{"stage": "night", "messages": 2}]}
    pages = ("/stats?detailed=true", "/messages?ids=1,2", "/messages?marker=1")
    told: list[tuple[str, str, object]] = [
        *(("HEAD", path, None) for path in ("/v2/ping", "/healthz", "/readyz", "/metrics")),
        *(("GET", path, None) for path in ("/metrics", "/v2/openapi.json", "/v2/whoami", "/v2/me", "/v2/audit")),
        ("GET", f"/v2/audit?limit=2&since={SINCE}&marker={'9' * 18}.{'a' * 8}", None),
        ("POST", f"{jobs}/share", {"paths": ["messages"], "methods": ["GET"]}),
        ("POST", "/v2/share/revoke", None),
        ("POST", "/v2/admin/rekey", None),
        *(
            ("GET", f"/v2/{kind}?name=s&marker=a&limit=3&detailed=true&colour=blue", None)
            for kind in ("queues", "topics")
        ),
        *(("GET", f"{jobs}{path}?detailed=true", None) for path in ("/stats", f"/claims/{claim}", f"/messages/{free}")),
        *(("GET", f"{news}{path}", None) for path in pages),
        ("GET", f"{news}/messages/1?detailed=true", None),
        ("GET", f"{jobs}/history?since={SINCE}&until={UNTIL}&marker=1&detailed=true&order=desc", None),
        ("GET", f"{jobs}/history?state=all&marker=1&limit=3&bodies=start", None),
        *(("GET", f"{jobs}/messages?state={state}&detailed=true", None) for state in ("delayed", "claimed")),
        *(
            ("GET", f"{path}?bodies=start", None)
            for path in (f"{jobs}/claims/{claim}", f"{jobs}/messages/{held}", f"/v2/messages/{held}")
        ),
        ("POST", f"{jobs}/history/replay", {"since": SINCE, "until": UNTIL, "limit": 3}),
        ("POST", f"{jobs}/redrive", {"to": "done", "limit": 5}),
        ("POST", f"{jobs}/redrive", {"ids": [held], "dry_run": True}),
        ("POST", f"{jobs}/claims?limit=1&detailed=true", terms),
        ("PUT", f"{jobs}/claims/kept.2?limit=1&detailed=true&fence=etl:1", terms),
        ("PATCH", f"{jobs}/claims/kept.2?fence=etl:1", terms),
        ("POST", f"{jobs}/claims/kept.2/settle?fence=etl:1", rest),
        ("DELETE", f"{jobs}/claims/kept.2?delay=1", None),
        ("DELETE", f"{jobs}/messages?pop=1&detailed=true", None),
        ("DELETE", f"{jobs}/messages?ids={held}&claim_ids={claim}", None),
        ("POST", "/v2/commits?fence=etl:1", commit),
        ("POST", f"{news}/purge", {"resource_types": ["messages"]}),
    ]
    keyed: list[tuple[str, object]] = [
        (f"{jobs}/messages", bodies),
        (f"{news}/messages", bodies),
        (f"{jobs}/claims/{claim}/settle", rest),
    ]
    again = [request(project, "POST", path, document) for path, document in keyed]
    return [
        *(request(project, *one) for one in told),
        *(one._replace(headers=(*one.headers, b"Idempotency-Key: again")) for one in again),
    ]


def mutant(random: Random, requests: list[Request]) -> bytes:
    """Return a request with one or two damaged parts, and in 30 % of cases with damaged bytes."""
    made = random.choice(requests)
    for _ in range(random.randint(1, 2)):
        made = random.choice(PARTS)(random, made)
    raw = made.raw()
    return in_bytes(random, raw, requests) if random.random() < 0.3 else raw


def in_path(random: Random, one: Request) -> Request:
    """Replace a part of the path between two separators."""
    start = random.randrange(len(one.path))
    end = min((at for at in (one.path.find(c, start + 1) for c in b"/?&=,") if at > 0), default=len(one.path))
    return one._replace(path=one.path[: start + 1] + random.choice(NASTY).replace(b" ", b"+") + one.path[end:])


def in_headers(random: Random, one: Request) -> Request:
    """Add, remove or repeat a header."""
    at = random.randrange(len(one.headers))
    way = random.randrange(4)
    if way == 0:
        return one._replace(headers=one.headers[:at] + one.headers[at + 1 :])
    added = one.headers[at] if way == 1 else random.choice(HEADERS)
    return one._replace(headers=(*one.headers, added))


def in_value(random: Random, one: Request) -> Request:
    """Replace the value of a header."""
    at = random.randrange(1, len(one.headers))
    name = one.headers[at].split(b":")[0]
    return one._replace(headers=(*one.headers[:at], name + b": " + random.choice(NASTY), *one.headers[at + 1 :]))


def in_method(random: Random, one: Request) -> Request:
    return one._replace(method=random.choice(METHODS))


def in_body(random: Random, one: Request) -> Request:
    """Replace or remove a piece of the body, or add a body."""
    body = one.body or b"{}"
    start = random.randrange(len(body))
    end = random.randint(start, min(len(body), start + 12))
    return one._replace(body=body[:start] + random.choice([*NASTY, b""]) + body[end:])


def in_chunks(random: Random, one: Request) -> Request:
    """Send the body in chunks without a length; in 20 % of cases the chunk sizes are wrong."""
    body = one.body or b""
    cut = random.randint(0, len(body))
    pieces = [piece for piece in (body[:cut], body[cut:]) if piece]
    size: Callable[[bytes], int] = (lambda piece: len(piece)) if random.random() < 0.8 else lambda piece: len(piece) + 1
    chunks = b"".join(b"%x\r\n%s\r\n" % (size(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return one._replace(headers=(*one.headers, b"Transfer-Encoding: chunked"), body=chunks)


PARTS = [in_path, in_path, in_headers, in_value, in_method, in_body, in_body, in_chunks]


def in_bytes(random: Random, raw: bytes, requests: list[Request]) -> bytes:
    """Flip a bit, remove or repeat bytes, or append the end of another request."""
    start = random.randrange(len(raw))
    end = random.randint(start, min(len(raw), start + 30))
    way = random.randrange(5)
    if way == 0:
        return raw[:start] + bytes([raw[start] ^ (1 << random.randrange(8))]) + raw[start + 1 :]
    if way == 1:
        return raw[:start] + raw[end:]
    if way == 2:
        return raw[:end] + raw[start:]
    if way == 3:
        return raw[:start] + random.randbytes(end - start) + raw[end:]
    other = random.choice(requests).raw()
    return raw[:start] + other[random.randrange(len(other)) :]
