# SPDX-License-Identifier: Apache-2.0
"""Raw requests and the expected responses of a server: one table for all engines and their parsers."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from zq.http import heads

CLOSED: Final = 0
"""The status that represents a connection closed without a response."""
MARK: Final = b"Qm7zMarker"
"""Part of each refused value; no response may quote it."""
SAMPLES: Final = ("x-domain-id", "x-identity-status", "x-project-name", "x-service-roles", "x-tenant-name", "x-user-id")
"""One header for each of ``heads.IDENTITY_PREFIXES``."""
BASE: Final = {"host": b"127.0.0.1", "client-id": b"30387f00c63a4a30ac1f3e2cf1b0c3a1", "x-project-id": b"acme"}
PENDING: Final = {
    # Granian's parser accepts these requests and hides the flaw from zq.
    "granian": frozenset({"two lengths, the same", "bare line feeds", "one bare line feed"}),
    # gunicorn waits for a chunk of any size.
    "gunicorn": frozenset({"a chunk size of b'fffffffffffffffff'"}),
}
"""Names of rows, by engine, to which the engine does not yet respond as expected."""
OK, BAD = frozenset({200}), frozenset({400})


class Row(NamedTuple):
    """A request, sent unchanged on a connection of its own."""

    name: str
    raw: bytes
    expected: frozenset[int]
    pending: frozenset[str] = frozenset()
    """Engines known not to respond as expected. The test fails once they do."""


def head(
    *lines: bytes, start: bytes = b"GET /v2/queues HTTP/1.1", without: tuple[str, ...] = (), body: bytes = b""
) -> bytes:
    """Return a request with the headers of ``BASE``, then the given header lines, and a body."""
    base = [name.encode() + b": " + value for name, value in BASE.items() if name not in without]
    return b"\r\n".join([start, *base, *lines, b"", b""]) + body


def rows() -> list[Row]:
    """Return all rows; their names are unique."""
    plain = [*_well(), *_targets(), *_framing(), *_chunks(), *_heads()]
    return [*_identity(), *(row._replace(pending=_pending(row.name)) for row in plain)]


def _pending(name: str) -> frozenset[str]:
    return frozenset(engine for engine, names in PENDING.items() if name in names)


def _well() -> Iterator[Row]:
    """Yield valid requests as controls: without them the other rows would prove nothing."""
    yield Row("well", head(), OK)
    yield Row("well, an empty line before", b"\r\n" + head(), OK)
    yield Row("well, http/1.0", head(start=b"GET /v2/queues HTTP/1.0"), OK)
    yield Row("well, a strange header with an underscore", head(b"x_strange: 1"), frozenset({200, 400}))
    yield Row("well, a body", post(b"content-length: 36"), frozenset({201}))
    yield Row("well, an encoded name", head(start=b"GET /v2/queues/%61 HTTP/1.1"), OK)


def post(*lines: bytes, body: bytes = b'{"messages":[{"body":1,"ttl":3600}]}') -> bytes:
    """Return a request that posts one message."""
    return head(*lines, start=b"POST /v2/queues/raw/messages HTTP/1.1", body=body)


def _identity() -> Iterator[Row]:
    for name in sorted({*heads.IDENTITY, *SAMPLES}):
        plain, rest = name.encode(), (name,)
        value = BASE.get(name, b"one")
        first, second = plain + b": " + value, plain + b": " + MARK
        yield Row(f"{name} given twice", head(first, second, without=rest), BAD)
        yield Row(f"{name} given twice, the same", head(first, first.upper(), without=rest), BAD)
        if b"-" in plain:
            spelled = plain.replace(b"-", b"_", 1) + b": " + MARK
            yield Row(f"{name} with an underscore", head(spelled, without=rest), BAD)
            yield Row(f"{name} with an underscore behind", head(first, spelled, without=rest), BAD)
            yield Row(f"{name} with an underscore before", head(spelled, first, without=rest), BAD)
            yield Row(f"{name} with underscores, in capitals", head(first, _shouted(spelled), without=rest), BAD)


def _shouted(line: bytes) -> bytes:
    name, _, value = line.partition(b":")
    return name.replace(b"-", b"_").upper() + b":" + value


def _targets() -> Iterator[Row]:
    for coded in (b"%2F", b"%2f", b"%5C", b"%5c"):
        start = b"GET /v2/queues/a" + coded + b"messages HTTP/1.1"
        yield Row(f"a target with {coded.decode()}", head(start=start), BAD)
        yield Row(f"an absolute target with {coded.decode()}", head(start=start.replace(b"/v2", b"http://h/v2")), BAD)
    yield Row(
        "an encoded slash in the query", head(start=b"GET /v2/queues?marker=a%2Fb HTTP/1.1"), frozenset({200, 400})
    )
    prefix = head(b"SCRIPT_NAME: /public", start=b"GET /public/metrics HTTP/1.1")
    yield Row("script_name moves no route", prefix, frozenset({400, 404}))
    yield Row("script-name moves no route", prefix.replace(b"SCRIPT_NAME", b"SCRIPT-NAME"), frozenset({400, 404}))
    yield Row(
        "script_name breaks none", head(b"SCRIPT_NAME: /v2", start=b"GET /healthz HTTP/1.1"), frozenset({200, 400})
    )
    forged = (b"x-forwarded-proto: https", b"x-forwarded-for: 1.2.3.4", b"x-forwarded-prefix: /x", b"forwarded: for=1")
    yield Row("forwarded headers", head(*forged), OK)
    yield Row("forwarded schemes that differ", head(b"x-forwarded-proto: https", b"x-forwarded-ssl: off"), OK)
    yield Row("path_info", head(b"PATH_INFO: /metrics", b"remote_addr: 1.2.3.4"), frozenset({200, 400}))
    yield Row("a target with two slashes first", head(start=b"GET //v2/queues HTTP/1.1"), BAD)
    yield Row("a probe with three slashes first", head(start=b"GET ///healthz HTTP/1.1"), BAD)
    yield Row("a target without a slash", head(start=b"GET v2/queues HTTP/1.1"), BAD)
    yield Row("a target with a blank", head(start=b"GET /v2/queues /x HTTP/1.1"), BAD)
    yield Row("a target with a control character", head(start=b"GET /v2/que\x01ues HTTP/1.1"), BAD)


def _framing() -> Iterator[Row]:
    yield Row("length and coding", post(b"content-length: 36", b"transfer-encoding: chunked"), BAD)
    yield Row("coding and length", post(b"transfer-encoding: chunked", b"content-length: 36"), BAD)
    yield Row("two lengths", post(b"content-length: 36", b"content-length: 35"), BAD)
    yield Row("two lengths, the same", post(b"content-length: 36", b"content-length: 36"), BAD)
    yield Row("a list of lengths", post(b"content-length: 36, 36"), BAD)
    for length in (b"+36", b"-36", b"3_6", b"0x24", b"36 36", b"", b"36a", b"1" + b"0" * 20, b"\xef\xbc\x93"):
        yield Row(f"a length of {length!r}", post(b"content-length: " + length), frozenset({400, 413}))
    for coding in (b"chunked, chunked", b"gzip", b"identity", b"x" + MARK, b"chunked, gzip", b"\x0bchunked"):
        yield Row(f"a coding {coding!r}", post(b"transfer-encoding: " + coding), frozenset({400, 501}))
    early = post(b"transfer-encoding: chunked").replace(b"HTTP/1.1", b"HTTP/1.0")
    yield Row("a coding in http/1.0", early, BAD)


def _chunks() -> Iterator[Row]:
    body = b'{"messages":[{"body":1,"ttl":3600}]}'
    coding = b"transfer-encoding: chunked"
    good = b"24\r\n" + body + b"\r\n0\r\n\r\n"
    yield Row("chunks", post(coding, body=good), frozenset({201}))
    pieces = b"12;a=b\r\n" + body[:18] + b"\r\n12\r\n" + body[18:] + b"\r\n0\r\nx-trailer: 1\r\n\r\n"
    yield Row("chunks, an extension and a trailer", post(coding, body=pieces), frozenset({201}))
    for size in (b"+24", b"-24", b"0x24", b"2_4", b"", b"zz", b" 24", b"f" * 17, b"24" + MARK):
        yield Row(f"a chunk size of {size!r}", post(coding, body=size + good[2:]), frozenset({400, 413, CLOSED}))
    yield Row("a chunk without its end", post(coding, body=good.replace(b"}\r\n0", b"}xx0")), frozenset({400, CLOSED}))


def _heads() -> Iterator[Row]:
    yield Row("a folded header", head(b"x-strange: a\r\n b"), BAD)
    yield Row("a folded project", head(b"x-project-id: fa\r\n\tb", without=("x-project-id",)), BAD)
    yield Row("a fold before any header", b"GET /healthz HTTP/1.1\r\n x: y\r\nhost: a\r\n\r\n", BAD)
    yield Row("bare line feeds", head().replace(b"\r\n", b"\n"), BAD)
    yield Row("one bare line feed", head(b"x-a: b\nx-c: d"), BAD)
    yield Row("a bare carriage return", head(b"x-a: b\rx-c: d"), BAD)
    yield Row("no host", head(without=("host",)), frozenset({400, 421}))
    yield Row("two hosts", head(b"host: b"), frozenset({400, 421}))
    yield Row("http/0.9", b"GET /healthz\r\n\r\n", frozenset({400, CLOSED}))
    yield Row("http/2.0 in a line", head(start=b"GET /v2/queues HTTP/2.0"), frozenset({400, 505, CLOSED}))
    yield Row("http/3", head(start=b"GET /v2/queues HTTP/3"), frozenset({400, 505, CLOSED}))
    yield Row("no request", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", frozenset({400, CLOSED}))
    yield Row("a blank before the colon", head(b"x-strange : " + MARK), BAD)
    yield Row("a name with a bracket", head(b"x(strange: " + MARK), BAD)
    yield Row("a header without a name", head(b": " + MARK), BAD)
    yield Row("a header without a colon", head(MARK), BAD)
    yield Row("a value with a nul", head(b"x-strange: " + MARK + b"\x00"), BAD)
    yield Row("a long header", head(b"x-strange: " + MARK * 1000), frozenset({400, 431}))
    yield Row("many headers", head(*[b"x-%d: 1" % n for n in range(300)]), frozenset({400, 431, CLOSED}))
    yield Row(
        "a long target", head(start=b"GET /v2/queues?a=" + b"a" * 9000 + b" HTTP/1.1"), frozenset({414, 431, 400})
    )
    yield Row(
        "an expectation nobody knows", post(b"expect: " + MARK, b"content-length: 36"), frozenset({417, 400, 201})
    )
