# SPDX-License-Identifier: Apache-2.0
"""Query parameters and bodies of a request, as contract 1.5 and 1.6 read them."""

import re
from typing import Any

import falcon

from zq import limits
from zq.errors import InvalidBody, InvalidParameter
from zq.model import Fence

_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,25})\s*", re.ASCII)
_TRUE = frozenset({"true", "True", "t", "yes", "y", "1", "on"})
_FALSE = frozenset({"false", "False", "f", "no", "n", "0", "off"})


def text(req: falcon.Request, name: str) -> str:
    """The last value; "" if absent or blank."""
    value = req.params.get(name) or ""
    return value if isinstance(value, str) else value[-1]


def integer(req: falcon.Request, name: str) -> int | None:
    """The last value as an integer; None if absent or blank."""
    value = text(req, name)
    return None if value == "" else as_integer(name, value)


def as_integer(name: str, value: str) -> int:
    """A text of an optional sign and digits as an integer."""
    match = _INTEGER.fullmatch(value)
    if match is None:
        raise InvalidParameter(f"{name} must be an integer.")
    return int(match[1])


def looks_like_integer(value: str) -> bool:
    """Whether ``as_integer`` would take it."""
    return _INTEGER.fullmatch(value) is not None


def boolean(req: falcon.Request, name: str) -> bool | None:
    """The last value as a boolean; None if absent or blank."""
    value = text(req, name)
    if value == "":
        return None
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise InvalidParameter(f"{name} must be true or false.")


def values(req: falcon.Request, name: str) -> list[str]:
    """All values, whether repeated or separated by commas; duplicates stay."""
    value = req.params.get(name, [])
    return [value] if isinstance(value, str) else [part for part in value if part]


def fence(req: falcon.Request) -> Fence | None:
    """``fence=<name>:<epoch>``; None if absent."""
    value = text(req, "fence")
    if not value:
        return None
    name, _, epoch = value.rpartition(":")
    if not epoch.isascii() or not epoch.isdigit():
        raise InvalidParameter("fence must be <name>:<epoch>, as POST /v2/fences/<name> gave it.")
    return Fence(limits.free_name("fence", name), limits.within("fence", int(epoch[:20]), 1, limits.MAX_BODY_NUMBER))


def repeated(given: dict[str, Any]) -> dict[str, str]:
    """The parameters that a next link repeats: those that were given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if value not in (None, "")
    }


def body(req: falcon.Request, bound: int = limits.MAX_CONTROL_BODY) -> bytes:
    """The body as announced by ``Content-Length``; b"" without one. Larger ones are refused unread."""
    announced: int = req.content_length or 0
    limits.body_size(announced, bound)
    if not announced:
        return b""
    raw: bytes = req.bounded_stream.read()
    if len(raw) < announced:
        raise InvalidBody(f"The body ended after {len(raw)} of {announced} bytes.")
    return raw


def needed_body(req: falcon.Request, bound: int = limits.MAX_CONTROL_BODY) -> bytes:
    """As ``body``, for verbs that cannot do without."""
    raw = body(req, bound)
    if not raw:
        raise InvalidBody("The body is missing.")
    return raw
