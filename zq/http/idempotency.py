# SPDX-License-Identifier: Apache-2.0
"""The header ``Idempotency-Key``: a request that is to have its effect once (extensions 6)."""

import re
from hashlib import sha256
from typing import Final

import falcon

from zq.errors import InvalidHeader
from zq.limits import MAX_KEY
from zq.model import Once

HEADER: Final = "HTTP_IDEMPOTENCY_KEY"
_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_KEY}}}", re.ASCII)


def once(req: falcon.Request, verb: str, raw: bytes, window: int, *more: str) -> Once | None:
    """What a repeat of the request must have in common with it, its body ``raw`` and ``more``; None without a key.

    Raises ``InvalidHeader``.
    """
    key = req.env.get(HEADER)
    if key is None:
        return None
    if _KEY.fullmatch(key) is None:
        raise InvalidHeader("Invalid header value", f"Idempotency-Key must be 1 to {MAX_KEY} visible ASCII characters.")
    told = b"\0".join([raw, req.query_string.encode(), *(part.encode() for part in more)])
    return Once(f"{verb}:{key}", sha256(told).digest(), window)


def tell(resp: falcon.Response, replayed: bool) -> None:
    """Say that the answer is the first one's."""
    if replayed:
        resp.set_header("Idempotency-Replayed", "true")
