# SPDX-License-Identifier: Apache-2.0
"""Access to query parameters, headers and bodies of requests (contract sections 1.5, 1.6)."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import falcon

from zq.errors import Invalid, InvalidBody, InvalidHeader, InvalidParameter, Unavailable
from zq.http import heads
from zq.http.context import Request
from zq.model import Fence, limits
from zq.model.attributes import AttributeValue, trace_context
from zq.model.scopes import Kind, Verb
from zq.wire.numbers import MAX_BODY_NUMBER

# Media type that curl sends by default.
FORM: Final = "application/x-www-form-urlencoded"
# Environment key of ``Transfer-Encoding``, which is set for chunked bodies.
CHUNKED: Final = "HTTP_TRANSFER_ENCODING"
_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,25})\s*", re.ASCII)
_TRUE = frozenset({"true", "True", "t", "yes", "y", "1", "on"})
_FALSE = frozenset({"false", "False", "f", "no", "n", "0", "off"})


def text(req: Request, name: str) -> str:
    """Return the parameter's last value, or "" if it is absent."""
    value = req.params.get(name) or ""
    return value if isinstance(value, str) else value[-1]


def integer(req: Request, name: str) -> int | None:
    """Return the parameter's last value as an integer, or ``None`` if the parameter is missing or empty.

    Raises ``InvalidParameter`` for a value that is not an integer.
    """
    if name not in req.params or not (value := text(req, name)):
        return None
    return as_integer(name, value)


@lru_cache(maxsize=256)
def as_integer(name: str, value: str) -> int:
    """Parse an integer with an optional sign. Raises ``InvalidParameter`` for any other text."""
    match = _INTEGER.fullmatch(value)
    if match is None:
        raise InvalidParameter(f"{name} must be an integer.")
    return int(match[1])


def looks_like_integer(value: str) -> bool:
    """Return whether ``as_integer`` accepts the text."""
    return _INTEGER.fullmatch(value) is not None


def boolean(req: Request, name: str) -> bool | None:
    """Return the parameter's last value as a boolean, or ``None`` if the parameter is missing or empty.

    Raises ``InvalidParameter`` for a value that is not a boolean.
    """
    if name not in req.params or not (value := text(req, name)):
        return None
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidParameter(f"{name} must be true or false.")


def starts(req: Request) -> bool:
    """Return whether the request has ``bodies=start`` (truncated bodies).

    Raises ``InvalidParameter`` if ``bodies`` is neither "start" nor "whole".
    """
    value = text(req, "bodies") if "bodies" in req.params else ""
    if value not in ("", "start", "whole"):
        raise InvalidParameter(f"bodies must be start or whole, not {value[:32]}.")
    return value == "start"


def values(req: Request, name: str) -> list[str]:
    """Return all values of a repeated or comma-separated parameter."""
    value = req.params.get(name, [])
    return [value] if isinstance(value, str) else [part for part in value if part]


def fence(req: Request) -> Fence | None:
    """Parse the parameter ``fence=<name>:<epoch>``. Return ``None`` if the parameter is missing or empty.

    Raises ``InvalidParameter`` if the value is malformed. Raises ``NotAuthorized`` if the client may not advance the
    fence.
    """
    if "fence" not in req.params or not (value := text(req, "fence")):
        return None
    name, _, epoch = value.rpartition(":")
    if not epoch.isascii() or not epoch.isdigit():
        raise InvalidParameter("fence must be <name>:<epoch>, with the epoch from POST /v2/fences/<name>.")
    req.context.allowance.authorize("claims:update", Verb.CONSUME, Kind.WORK, limits.check_free_name("fence", name))
    return Fence(name, limits.check_range("The epoch of fence", int(epoch[:20]), 1, MAX_BODY_NUMBER))


def hops(req: Request) -> int:
    """Return the number in the header ``Zq-Hops``: how often subscriptions have delivered the message.

    The server uses the number to detect delivery loops between queues. Without the header, the number is 0. Raises
    ``InvalidHeader`` if the header is malformed.
    """
    given: str = req.env.get("HTTP_ZQ_HOPS", "0")
    if not (given.isascii() and given.isdigit() and len(given) <= 3):
        raise InvalidHeader("Invalid header value", "Zq-Hops must be a number of at most 3 digits.")
    return int(given)


def trace_attributes(req: Request) -> Mapping[str, AttributeValue]:
    """Return the request's trace context as message attributes.

    If the request has no valid ``traceparent`` header, the result is empty. The context belongs to the sender, like any
    other attribute and like the ``AWSTraceHeader`` of SQS. Therefore, there is no option ``propagate`` that disables
    it, and it is stored with its ``tracestate`` even if it is not sampled.
    """
    parent = req.env.get("HTTP_TRACEPARENT")
    return trace_context(parent, req.env.get("HTTP_TRACESTATE", "")) if parent else {}


def trace_id(req: Request) -> str:
    """Return the trace id of the request, or "" if the request has no valid ``traceparent`` header."""
    parent = trace_attributes(req).get("traceparent")
    return (parent.string_value or "")[3:35] if parent else ""


def format_parameters(parameters: dict[str, Any]) -> dict[str, str]:
    """Format the query parameters of the link to the next page. ``None`` and "" are omitted."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in parameters.items()
        if value not in (None, "")
    }


def next_page_query(marker: str | None, **given: Any) -> dict[str, str] | None:
    """Return the query parameters of the link to the next page, or ``None`` if ``marker`` is ``None``.

    ``given`` contains the query parameters of the current page.
    """
    return None if marker is None else format_parameters(given) | {"marker": marker}


def body(req: Request, bound: int = limits.MAX_CONTROL_BODY, *, required: bool = False, form: bool = False) -> bytes:
    """Read and return the body. If the request has no body, return ``b""``.

    Raises ``Invalid`` if the body exceeds ``bound`` bytes. Raises ``InvalidBody`` if the body is incomplete, or if a
    required body is missing.

    Args:
        required: Whether a body is required.
        form: Whether the media type of HTML forms is accepted.
    """
    announced = None if CHUNKED in req.env else req.content_length
    if announced is None:
        raw = _read_unknown_size(req, bound, form)
    else:
        if announced > bound:
            limits.check_body_size(announced, bound)
        raw = _read(req, announced)
        if len(raw) < announced:
            _reject_withheld(req)
            raise InvalidBody(f"The body ended after {len(raw)} of {announced} bytes.")
    req.context.body_is_read = True
    req.context.received = len(raw)
    if required and not raw:
        raise InvalidBody("The body is missing.")
    return raw


def max_announced_size(req: Request, bound: int) -> int:
    """Return an upper bound of the body's size in bytes, without reading the body.

    The result is the ``Content-Length``, or ``bound`` if the size is unknown. Without a body, the result is 0.
    """
    announced: int | None = None if CHUNKED in req.env else req.content_length
    return announced if announced is not None else bound if _may_have_body(req) else 0


def _may_have_body(req: Request) -> bool:
    """Return whether a request without ``Content-Length`` may have a body."""
    # Requests with chunked encoding and HTTP/2 requests may.
    return CHUNKED in req.env or bool(req.env.get("wsgi.input_terminated"))


def reject_form(req: Request) -> None:
    """Raise ``InvalidHeader`` if the body has the media type of a form."""
    if req.env.get("CONTENT_TYPE", "").lower() == FORM:
        raise InvalidHeader("Invalid Content-Type", "Content-Type must not be a form type, because bodies are JSON.")


def _read_unknown_size(req: Request, bound: int, form: bool) -> bytes:
    if not _may_have_body(req):
        return b""
    if not req.env.get("wsgi.input_terminated"):
        raise falcon.HTTPError(
            falcon.HTTP_411, title=falcon.HTTP_411, description="Content-Length is missing: this server requires it."
        )
    raw = _read(req, bound + 1)
    # Some servers report malformed chunks as an empty body, and a purge with an empty body would delete everything.
    if not raw and CHUNKED in req.env:
        _reject_withheld(req)
        raise InvalidBody("The body is empty although the request has Transfer-Encoding.")
    if len(raw) > bound:
        raise Invalid(f"The body must be at most {bound} bytes; it is larger.")
    if raw and not form:
        reject_form(req)
    return raw


def _reject_withheld(req: Request) -> None:
    if heads.WITHHELD_KEY in req.env:
        raise Unavailable("The credential could not be checked in time. Try again later.")


def _read(req: Request, size: int) -> bytes:
    source = req.env["wsgi.input"]
    try:
        raw: bytes = source.read(size)
        if 0 < len(raw) < size:
            whole = bytearray(raw)
            while len(whole) < size and (piece := source.read(size - len(whole))):
                whole += piece
            raw = bytes(whole)
    except TimeoutError as error:
        raise falcon.HTTPError(
            falcon.HTTP_408, title=falcon.HTTP_408, description="The body was not received in time."
        ) from error
    except Exception as error:  # each server raises its own class for malformed chunks
        raise InvalidBody("The body cannot be read completely.") from error
    return raw
