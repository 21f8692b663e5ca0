# SPDX-License-Identifier: Apache-2.0
"""The ``Idempotency-Key`` header, which makes a repeated request take effect only once (extensions, section 6)."""

import re
from hashlib import sha256
from typing import Final

import falcon

from zq.errors import InvalidHeader
from zq.http.context import Request
from zq.model import IdempotencyKey
from zq.model.limits import MAX_KEY

# Environment key of the header.
HEADER: Final = "HTTP_IDEMPOTENCY_KEY"
# Valid values of the header.
_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY}}}", re.ASCII)


def read_key(req: Request, verb: str, window: int, raw: bytes, *more: str) -> IdempotencyKey:
    """Return the key from the header ``Idempotency-Key``, together with a digest of the request.

    The request must have the header. With the digest, the store detects if a client uses a key again for a different
    request. Raises ``InvalidHeader`` if the key is malformed.

    Args:
        verb: The operation. The same key can be used once for each operation.
        window: The number of seconds for which the store remembers the key.
        raw: The request body, which is part of the digest.
        more: Further strings to include in the digest.
    """
    key = req.env[HEADER]
    if _KEY.fullmatch(key) is None:
        raise InvalidHeader("Invalid header value", f"Idempotency-Key must be 1 to {MAX_KEY} visible ASCII characters.")
    content = b"\0".join([raw, req.query_string.encode(), *(part.encode() for part in more)])
    return IdempotencyKey(f"{verb}:{key}", sha256(content).digest(), window)


def mark_replayed(resp: falcon.Response) -> None:
    """Add the header ``Idempotency-Replayed`` to a response that repeats the response to an earlier request."""
    resp.set_header("Idempotency-Replayed", "true")
