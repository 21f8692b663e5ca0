# SPDX-License-Identifier: Apache-2.0
"""AWS Signature Version 4: random requests that botocore signs are accepted, and refused after a change.

See SQS contract 3.
"""

import hashlib
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.rotation import SEED, examples
from zq.sqs import sigv4
from zq.sqs.sigv4 import Head, SignatureRejection

NOW = datetime(2030, 1, 31, 23, 59, 30, tzinfo=UTC)
MOMENT = NOW.timestamp()
KEY, SECRET = "ZQABCDEFGHIJKLMNOP77", "s/cret+" * 5
# Characters of paths, queries and headers: plain, reserved and blank ones, and letters beyond ASCII.
CHARACTERS = "ab-_.~Z09 %+&=/?:@!$'()*,;é€\N{GRINNING FACE}"


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None))


def some_text(source: random.Random, most: int = 12) -> str:
    return "".join(source.choices(CHARACTERS, k=source.randrange(most)))


def some_request(source: random.Random) -> tuple[AWSRequest, bytes]:
    """Return an unsigned request with a URL like those of SDKs, and with blanks and repeated headers."""
    path = "".join("/" + quote(some_text(source), safe="~") for _ in range(source.randrange(4)))
    path += source.choice(["", "/", "/.", "/..", "/../x", "//"])
    names = source.choices(["Action", "a", "A", "b c", "€", "X-Amz", ""], k=source.randrange(5))
    pairs = [(quote(name, safe="-_.~"), quote(some_text(source), safe="-_.~")) for name in names]
    url = f"http://{source.choice(['localhost:8888', 'sqs.example'])}{path}"
    if query := "&".join(f"{name}={value}" for name, value in pairs):
        url += "?" + query
    body = source.randbytes(source.randrange(40))
    headers = {"X-Amz-Target": "AmazonSQS.SendMessage", "X-Custom": "  a   b\t c ", "User-Agent": "x"}
    headers |= {"X-Word": some_text(source).strip()} if source.randrange(2) else {}
    headers |= {"Date": "x"} if source.randrange(3) == 0 else {}
    request = AWSRequest(source.choice(["GET", "POST"]), url or "/", headers=headers, data=body)
    if source.randrange(2):
        request.headers.add_header("X-Custom", " c,  d")
    return request, body


def head_of(request: AWSRequest, secure: bool = False) -> Head:
    """Return the head as a server has it: each byte is a character, and repeated headers are joined."""
    parts = urlsplit(request.url)
    headers: dict[str, str] = {}
    for name, value in [("Host", parts.netloc), *request.headers.items()]:
        raw = value.strip().encode().decode("latin-1")
        headers[name.lower()] = f"{headers[name.lower()]},{raw}" if name.lower() in headers else raw
    return Head(request.method, parts.path, parts.query, headers, secure)


def signed(source: random.Random, presign: bool, secret: str = SECRET, token: str | None = None) -> tuple[Head, bytes]:
    request, body = some_request(source)
    if presign:
        request.data, body = b"", b""
    signer: Any = SigV4QueryAuth if presign else SigV4Auth
    signer(Credentials(KEY, secret, token), "sqs", source.choice(["eu-central-1", "us-east-1"])).add_auth(request)
    return head_of(request), body


def verify(head: Head, body: bytes, now: float = MOMENT, secret: str = SECRET) -> None:
    """Run all checks of a signature in the order of the contract."""
    claim = sigv4.read(head)
    assert claim.key == KEY
    sigv4.check_time(claim, now)
    sigv4.check_headers(claim, head)
    sigv4.check_signature(claim, head, secret, hashlib.sha256(body).hexdigest())
    sigv4.reject_session(head)


def refusal(head: Head, body: bytes = b"", **more: Any) -> str:
    with pytest.raises(SignatureRejection) as refused:
        verify(head, body, **more)
    assert refused.value.message
    assert refused.value.status == (400 if refused.value.code == sigv4.INCOMPLETE_SIGNATURE else 403)
    return refused.value.code


@pytest.mark.parametrize("presign", [False, True])
def test_what_botocore_signs_is_accepted(presign: bool) -> None:
    """The requests have paths, queries, repeated headers, blanks and characters of all of Unicode."""
    source = random.Random(SEED)
    for _ in range(examples(400)):
        verify(*signed(source, presign))


def changed(head: Head, body: bytes) -> Iterator[tuple[Head, bytes]]:
    """Yield the request with each of its parts changed in turn."""
    yield head._replace(method="PUT"), body
    yield head._replace(path=head.path + "/x"), body
    yield head._replace(query=head.query + "&more=1"), body
    yield head, body + b"x"
    for name, value in head.headers.items():
        if name not in ("authorization", "user-agent", "x-amz-date", "date"):
            yield head._replace(headers=head.headers | {name: value + "x"}), body
    if "authorization" in head.headers:
        said = head.headers["authorization"]
        end = "0" if said[-1] != "0" else "1"
        yield head._replace(headers=head.headers | {"authorization": said[:-1] + end}), body
        for old, new in (("us-east-1", "eu-east-1"), ("eu-central-1", "us-east-1")):
            if old in said:
                yield head._replace(headers=head.headers | {"authorization": said.replace(old, new)}), body
    else:
        end = "0" if head.query[-1] != "0" else "1"
        yield head._replace(query=head.query[:-1] + end), body
        yield head._replace(query=head.query.replace("X-Amz-Expires=3600", "X-Amz-Expires=7200")), body


@pytest.mark.parametrize("presign", [False, True])
def test_a_request_of_which_a_part_was_changed_is_refused(presign: bool) -> None:
    """Method, path, query, each signed header, body, region, time and signature are changed."""
    source = random.Random(SEED)
    for _ in range(examples(60)):
        for head, body in changed(*signed(source, presign)):
            assert refusal(head, body) == sigv4.MISMATCH, head


def test_another_secret_makes_another_signature() -> None:
    assert refusal(*signed(random.Random(1), False, secret="other")) == sigv4.MISMATCH


@pytest.mark.parametrize(
    ("presign", "after", "accepted"),
    [
        (False, 900, True),
        (False, 901, False),
        (False, -900, True),
        (False, -901, False),
        (True, 3600, True),
        (True, 3601, False),
        (True, -901, False),
    ],
)
def test_a_request_is_valid_for_a_while(presign: bool, after: int, accepted: bool) -> None:
    """A request is valid for 15 minutes before and after its time, or for its pre-signed period."""
    head, body = signed(random.Random(5), presign)
    if accepted:
        verify(head, body, MOMENT + after)
        return
    with pytest.raises(
        SignatureRejection, match=r"Signature (expired|not yet current): 20300131T235930Z is"
    ) as refused:
        verify(head, body, MOMENT + after)
    assert refused.value.code == sigv4.MISMATCH


def test_headers_of_aws_and_the_host_must_be_signed() -> None:
    """An unsigned header may have been added in transit, and a signature without a host is valid for any host."""
    head, body = signed(random.Random(2), False)
    assert refusal(head._replace(headers=head.headers | {"x-amz-more": "1"}), body) == sigv4.MISMATCH
    without = head.headers["authorization"].replace("host;", "")
    hostless = head._replace(headers=head.headers | {"authorization": without})
    with pytest.raises(SignatureRejection, match="must be signed: host"):
        verify(hostless, body)
    missing = {name: value for name, value in head.headers.items() if name != "x-amz-target"}
    assert refusal(head._replace(headers=missing), body) == sigv4.MISMATCH
    verify(head._replace(headers=head.headers | {"x-more": "1"}), body)


@pytest.mark.parametrize(
    ("said", "secure", "accepted"),
    [
        (hashlib.sha256(b"body").hexdigest(), False, True),
        (hashlib.sha256(b"else").hexdigest(), True, False),
        (sigv4.UNSIGNED, True, True),
        (sigv4.UNSIGNED, False, False),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", True, False),
        ("é", True, False),
    ],
)
def test_the_hash_in_a_header_must_be_that_of_the_body(said: str, secure: bool, accepted: bool) -> None:
    """With TLS, the hash may be omitted."""
    request = AWSRequest("POST", "http://h/", headers={"X-Amz-Content-SHA256": said}, data=b"body")
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "us-east-1").add_auth(request)
    if accepted:
        verify(head_of(request, secure), b"body")
    else:
        assert refusal(head_of(request, secure), b"body") == sigv4.MISMATCH


@pytest.mark.parametrize("presign", [False, True])
def test_there_are_no_temporary_credentials(presign: bool) -> None:
    assert refusal(*signed(random.Random(3), presign, token="session")) == sigv4.UNKNOWN_KEY


def test_a_request_without_a_signature_is_refused() -> None:
    assert refusal(Head("GET", "/", "Action=ListQueues", {"host": "h"})) == sigv4.NOT_SIGNED


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("AWS4-HMAC-SHA256", "Bearer", sigv4.INCOMPLETE_SIGNATURE),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", sigv4.INCOMPLETE_SIGNATURE),
        ("Credential=", "Credentials=", sigv4.INCOMPLETE_SIGNATURE),
        (f"={KEY}/", "=", sigv4.INCOMPLETE_SIGNATURE),
        ("SignedHeaders=", "SignedHeaders=x;", sigv4.INCOMPLETE_SIGNATURE),
        ("SignedHeaders=", "Signed=", sigv4.INCOMPLETE_SIGNATURE),
        ("Signature=", "Signature=A", sigv4.INCOMPLETE_SIGNATURE),
        ("Signature=", "Signature=0, Signature=", sigv4.INCOMPLETE_SIGNATURE),
        ("/sqs/", "/sns/", sigv4.MISMATCH),
        ("aws4_request", "aws3_request", sigv4.MISMATCH),
        ("/20300131/", "/20300130/", sigv4.MISMATCH),
    ],
)
def test_a_header_that_says_something_else_is_refused(old: str, new: str, code: str) -> None:
    """Malformed headers are refused with 400."""
    head, _ = signed(random.Random(4), False)
    said = head.headers["authorization"]
    assert old in said
    with pytest.raises(SignatureRejection) as refused:
        sigv4.read(head._replace(headers=head.headers | {"authorization": said.replace(old, new)}))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X-Amz-Credential", "X-Amz-Creed"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=0"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=604801"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=%D9%A1"),
        ("X-Amz-Date=2030", "X-Amz-Date=3030&X-Amz-Date=2030"),
        ("X-Amz-Date=20300131", "X-Amz-Date=20300231"),
        ("X-Amz-Algorithm=AWS4", "X-Amz-Algorithm=AWS5"),
    ],
)
def test_a_query_that_is_malformed_is_refused(old: str, new: str) -> None:
    head, _ = signed(random.Random(4), True)
    assert old in head.query
    assert refusal(head._replace(query=head.query.replace(old, new))) == sigv4.INCOMPLETE_SIGNATURE


@pytest.mark.parametrize(
    "given", ["", "yesterday", "Thu, 99 Jan 2030 23:59:30 GMT", "20309931T235930Z", "Thu, 1 Jan 0001"]
)
def test_what_is_no_moment_is_refused(given: str) -> None:
    """The rule applies to both headers."""
    request, body = some_request(random.Random(6))
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "us-east-1").add_auth(request)
    head = head_of(request)
    others = {name: value for name, value in head.headers.items() if name not in ("date", "x-amz-date")}
    for name in ("date", "x-amz-date"):
        assert refusal(head._replace(headers=others | {name: given}), body) == sigv4.INCOMPLETE_SIGNATURE


def test_a_request_signed_twice_is_refused() -> None:
    """The two signatures may contradict each other."""
    head, _ = signed(random.Random(4), True)
    said = "AWS4-HMAC-SHA256 Credential=x"
    assert refusal(head._replace(headers=head.headers | {"authorization": said})) == sigv4.INCOMPLETE_SIGNATURE
