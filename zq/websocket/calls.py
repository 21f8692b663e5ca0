# SPDX-License-Identifier: Apache-2.0
"""In-process requests to the WSGI application."""

from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from typing import Any
from urllib.parse import urlencode
from wsgiref.util import setup_testing_defaults

import msgspec

from zq.errors import Invalid
from zq.http.features import CONNECTION
from zq.websocket.actions import Reply, Request
from zq.wire import refusals

Application = Callable[..., Iterable[bytes]]


def call(app: Application, peer: str, headers: Mapping[str, str], request: Request, connection: str) -> Reply:
    """Execute a request and return the response. Blocks.

    Args:
        app: The WSGI application.
        peer: The client's address.
        headers: The request headers.
        request: The request.
        connection: The id of the WebSocket connection. It becomes the subscriber if a new subscription has none.

    Raises ``Invalid`` if a text cannot be encoded as UTF-8.
    """
    try:
        raw = b"" if request.document is None else msgspec.json.encode(request.document)
        env: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path.encode().decode("latin-1"),
            "QUERY_STRING": urlencode(request.query),
            "wsgi.input": BytesIO(raw),
            "REMOTE_ADDR": peer,
            "SERVER_PROTOCOL": "HTTP/1.1",
            CONNECTION: connection,
        }
    except UnicodeEncodeError as error:
        raise Invalid("Bad request. A string contains half of a surrogate pair.") from error
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
    received = {name.lower(): value for name, value in given}
    document = msgspec.json.decode(content) if content and "json" in received.get("content-type", "json") else None
    return Reply(int(status[:3]), document, received.get("location", ""), received.get(refusals.HEADER.lower(), ""))
