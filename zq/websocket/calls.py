# SPDX-License-Identifier: Apache-2.0
"""Requests of HTTP to the application in this process, as an engine would hand them over."""

from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlencode
from wsgiref.util import setup_testing_defaults

import msgspec

from zq.errors import Invalid
from zq.http.authentication import CONNECTION
from zq.websocket.actions import Reply, Request
from zq.wire import refusals

Application = Callable[..., Iterable[bytes]]


def call(app: Application, peer: str, headers: Mapping[str, str], asked: Request, connection: str) -> Reply:
    """What the application answers. ``headers``: by their names in HTTP; ``connection``: its id. Raises ``Invalid``."""
    try:
        raw = b"" if asked.document is None else msgspec.json.encode(asked.document)
        env: dict[str, Any] = {
            "REQUEST_METHOD": asked.method,
            "PATH_INFO": asked.path.encode().decode("latin-1"),
            "QUERY_STRING": urlencode(asked.query),
            "wsgi.input": BytesIO(raw),
            "REMOTE_ADDR": peer,
            "SERVER_PROTOCOL": "HTTP/1.1",
            CONNECTION: connection,
        }
    except UnicodeEncodeError as error:
        raise Invalid("Bad request. A text holds half of a surrogate pair.") from error
    if raw:
        env |= {"CONTENT_LENGTH": str(len(raw)), "CONTENT_TYPE": "application/json"}
    env |= {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()}
    setup_testing_defaults(env)
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    pieces = app(env, lambda status, given, _error=None: begun.append((status, given)))
    try:
        content = b"".join(pieces)
    finally:
        getattr(pieces, "close", int)()
    status, given = begun[0]
    told = {name.lower(): value for name, value in given}
    document = msgspec.json.decode(content) if content and "json" in told.get("content-type", "json") else None
    return Reply(int(status[:3]), document, told.get("location", ""), told.get(refusals.HEADER.lower(), ""))
