# SPDX-License-Identifier: Apache-2.0
"""The header ``Idempotency-Key``: a request that is to have its effect once (extensions 6)."""

import re
from functools import partial
from hashlib import sha256
from typing import Final

import falcon

from zq.broker.values import Upload
from zq.errors import InvalidHeader
from zq.http import query
from zq.limits import MAX_KEY
from zq.model import IdempotencyKey

# The key of the environment that holds the header.
HEADER: Final = "HTTP_IDEMPOTENCY_KEY"
# The value of the header.
_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY}}}", re.ASCII)


def upload(req: falcon.Request, verb: str, bound: int, window: int) -> Upload:
    """The body of a post, which is read when the queue's rules are known; ``bound`` holds for any queue."""
    key = partial(idempotency_key, req, verb, window)
    return Upload(query.most(req, bound), partial(query.needed_body, req), key, query.hops(req))


def idempotency_key(req: falcon.Request, verb: str, window: int, raw: bytes, *more: str) -> IdempotencyKey | None:
    """What a repeat of the request must have in common with it, its body ``raw`` and ``more``; None without a key.

    Raises ``InvalidHeader``.
    """
    key = req.env.get(HEADER)
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise InvalidHeader("Invalid header value", f"Idempotency-Key must be 1 to {MAX_KEY} visible ASCII characters.")
    asked = b"\0".join([raw, req.query_string.encode(), *(part.encode() for part in more)])
    return IdempotencyKey(f"{verb}:{key}", sha256(asked).digest(), window)


def mark_replayed(resp: falcon.Response, replayed: bool) -> None:
    """Say that the answer is the first one's."""
    if replayed:
        resp.set_header("Idempotency-Replayed", "true")
