# SPDX-License-Identifier: Apache-2.0
"""Callers, among whom the event loop and the threads are shared."""

from collections.abc import Sequence

import pytest

from zq.serving.fairness import CREDENTIALS, KEYSTONE, PROJECTS, caller

SIGNATURE = "AWS4-HMAC-SHA256 SignedHeaders=host, Credential=AKIA1/20261127/us-east-1/sqs/aws4_request, Signature=77"


@pytest.mark.parametrize(
    ("headers", "given", "found"),
    [
        (CREDENTIALS, {"authorization": "Bearer zq_a"}, b"zq_a"),
        (CREDENTIALS, {"authorization": "bearer   zq_a", "x-auth-token": "junk"}, b"zq_a"),
        (CREDENTIALS, {"x-auth-token": "zq_a"}, b"zq_a"),
        (CREDENTIALS, {"url-signature": "f00", "authorization": "junk"}, b"f00"),
        (CREDENTIALS, {"authorization": SIGNATURE}, b"AKIA1"),
        (KEYSTONE, {"x-auth-token": "gAAA", "authorization": "junk"}, b"gAAA"),
        (KEYSTONE, {"x-storage-token": "gAAA"}, b"gAAA"),
        (PROJECTS, {"x-project-id": "acme", "authorization": "junk"}, b"acme"),
        (PROJECTS, {"x-tenant-id": "acme"}, b"acme"),
        (PROJECTS, {"authorization": SIGNATURE}, b"AKIA1"),
        (PROJECTS, {}, bytes((10, 0, 0, 1))),
    ],
)
def test_a_caller_is_the_credential_or_project_that_counts(
    headers: Sequence[bytes], given: dict[str, str], found: bytes
) -> None:
    """A client cannot become several callers by headers that authentication ignores, or by other spellings."""
    scope = {
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("10.0.0.1", 4711),
    }
    assert caller(scope, headers) == found
