# SPDX-License-Identifier: Apache-2.0
"""The signed text of pre-signed URLs, and the keys (contract 10.2)."""

import json
import random
from contextlib import closing

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.blocks import only
from tests.rotation import SEED
from zq.auth.signatures import (
    CACHE_TTL,
    Signatures,
    derive_key,
    derive_signing_key,
    format_time,
    make_scope,
    parse_time,
    signature,
)
from zq.clock import ManualClock
from zq.model.identity import SignedUrlOptions
from zq.storage import connect

VECTOR = "302e54ae1be123644775d85a02149fc91f8da5bac5f243456fad6c740c9ac6f4"


def test_the_vector_of_the_contract() -> None:
    """The signature is that of the contract, unless the project has revoked signatures (contract 10.1, 10.2)."""
    signed = (["/v2/queues/q/messages"], ["GET"], "p1", "2030-01-01T00:00:00")
    assert signature(derive_signing_key("test", "p1", 0), *signed) == VECTOR
    assert signature(derive_signing_key("test", "p1", 1), *signed) != VECTOR


def test_the_page_shows_the_vector() -> None:
    """Readers of the page can compute it themselves."""
    format_time = json.loads(only("api-ref/policy.md", "json"))
    assert format_time["signature"] == VECTOR
    assert signature(b"test", *(format_time[name] for name in ("paths", "methods", "project", "expires"))) == VECTOR


def test_keys_are_derived_by_rfc_5869() -> None:
    """Keys also differ by project and by number of revocations."""
    source = random.Random(SEED)
    for label in ("", "a", "share 1 acme", "é" * 50):
        secret = source.randbytes(source.randrange(1, 100))
        assert derive_key(secret, label) == HKDF(SHA256(), 32, None, label.encode()).derive(secret)
    assert len({derive_signing_key("k" * 32, project, epoch) for project in ("a", "b") for epoch in (1, 2)}) == 4


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("2030-01-01T00:00:00", "2030-01-01T00:00:00"),
        ("2030-01-01 00:00", "2030-01-01T00:00:00"),
        ("2030-01-01T00:00:00.999999", "2030-01-01T00:00:00"),
        ("2030-01-01T02:00:00+02:00", "2030-01-01T00:00:00"),
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00"),
    ],
)
def test_moments_are_of_utc_and_whole(text: str, seen: str) -> None:
    """Offsets are converted to UTC and fractions are cut (contract 10.1)."""
    assert format_time(parse_time(text)) == seen


@pytest.mark.parametrize("text", ["", "20300101", "1893456000", "2030-01-01", "2030-13-01T00:00:00", "soon", "٢030"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """Texts that look like integers are refused too (contract 10.1)."""
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


def test_a_signature_is_worth_its_methods_on_its_queue() -> None:
    """A signature for reading does not allow deletion, nor vice versa."""
    assert make_scope("q", ["GET", "HEAD"]) == "observe:queue/q"
    assert make_scope("q", ["DELETE"]) == "consume+manage:queue/q"
    assert make_scope("q", ["POST"]) == "consume+produce:queue/q"


def test_a_revocation_holds_everywhere_within_five_seconds() -> None:
    """Verified signatures are checked again when the number of revocations has changed (D3)."""
    clock, passed = ManualClock(1e9), [0.0]
    with closing(connect("memory:")) as storage:
        here, elsewhere = (
            Signatures(lambda: SignedUrlOptions(secret_key="s" * 32), storage.documents, clock, lambda: passed[0])
            for _ in range(2)
        )
        expires = clock.now() + 60
        path = "/v2/queues/q/messages"
        env = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "HTTP_URL_SIGNATURE": here.sign("p", [path], ["GET"], expires),
            "HTTP_URL_PATHS": path,
            "HTTP_URL_METHODS": "GET",
            "HTTP_URL_EXPIRES": format_time(expires),
        }
        elsewhere.sign("p", [path], ["GET"], expires)  # reads the number of revocations
        passed[0] += CACHE_TTL - 0.1
        identity = elsewhere.authenticate("p", env, "peer")
        assert identity is not None
        assert elsewhere.authenticate("p", env, "peer") is identity, "the same object, by which rights are remembered"
        here.revoke("p")
        assert here.authenticate("p", env, "peer") is None
        assert elsewhere.authenticate("p", env, "peer") is identity, "for less than five seconds"
        passed[0] += 0.2
        assert elsewhere.authenticate("p", env, "peer") is None
