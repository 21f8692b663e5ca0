# SPDX-License-Identifier: Apache-2.0
"""A request's body as Granian gives it, in the loop: whole, within a bound and a deadline."""

import time
from collections.abc import Callable
from typing import Any, Final

from zq.engines.environ import UNANNOUNCED, announced
from zq.engines.process import Gone, Process

BODY_RATE: Final = 10_000
"""Bytes a second at which a body extends its deadline."""

Receive = Callable[[], Any]


def announces(environ: dict[str, Any]) -> bool:
    """Whether a body comes, or is to come."""
    return UNANNOUNCED in environ or ("CONTENT_LENGTH" in environ and announced(environ) != 0)


async def read(process: Process, environ: dict[str, Any], receive: Receive) -> tuple[bytes, bool]:
    """The body, and whether something of it may be left unread: one larger than any that is allowed is not read.

    What is read is counted by the process. Raises ``TimeoutError``, and ``Gone`` for a body that ends early.
    """
    size = announced(environ)
    if size == 0 or not ("CONTENT_LENGTH" in environ or environ.pop(UNANNOUNCED, False)):
        return b"", False
    if size is not None and size > process.limits.max_body:
        return b"", True  # the application refuses it by its announced size
    return await _read(process, size, receive)


async def _read(process: Process, length: int | None, receive: Receive) -> tuple[bytes, bool]:
    """Read as much as was announced, for Granian tells its end only when it is asked once more."""
    pieces, size, limits, begun = [], 0, process.limits, time.monotonic()
    more = True
    try:
        while more and size <= limits.max_body:
            event = await process.deadlines.bound(receive(), begun + limits.body + size / BODY_RATE)
            if event["type"] != "http.request":
                raise Gone
            pieces.append(event.get("body", b""))
            size += len(pieces[-1])
            process.took(len(pieces[-1]))
            more = event.get("more_body", False) and size != length
    except BaseException:
        process.took(-size)
        raise
    return pieces[0] if len(pieces) == 1 else b"".join(pieces), more
