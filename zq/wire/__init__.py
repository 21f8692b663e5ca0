# SPDX-License-Identifier: Apache-2.0
"""Conversion between JSON on the wire and values of the model, for server and client.

``answers`` declares responses, and ``encoding`` encodes them. Defaults and limits are not applied here. Message bodies
stay raw bytes: they are checked for encoding, syntax and numbers, but are not decoded.
"""

import json
import re
from collections.abc import Callable
from hashlib import md5
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from zq.errors import InvalidBody
from zq.wire.attributes import JsonValue
from zq.wire.numbers import check_numbers

T = TypeVar("T")


class Posted(Struct):
    """One message in the body of a post.

    If the queue's ``_default_message_delay`` is unset or 0, ``delay`` is ignored, even if it is not valid.
    """

    body: Raw
    ttl: int | UnsetType = UNSET
    # Raw, so that decoding a post does not reject an invalid delay.
    delay: Raw | UnsetType = UNSET
    group: str | UnsetType = UNSET
    attributes: dict[str, JsonValue] | UnsetType = UNSET


class Post(Struct):
    """The body of a request that posts messages."""

    messages: list[Posted]


class ClaimTerms(Struct):
    """The body of a request that creates or renews a claim."""

    ttl: int | UnsetType = UNSET
    grace: int | UnsetType = UNSET


class Purge(Struct):
    """The body of a request that purges a queue or topic."""

    resource_types: list[str]


class Operation(Struct):
    """One operation of a metadata patch."""

    op: str
    path: str
    value: Any = UNSET


encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
# JSON escapes. The group captures an unpaired surrogate.
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_post_decoder: Final = msgspec.json.Decoder(Post)
_terms_decoder: Final = msgspec.json.Decoder(ClaimTerms)
_purge_decoder: Final = msgspec.json.Decoder(Purge)
_patch_decoder: Final = msgspec.json.Decoder(list[Operation])
_object_decoder: Final = msgspec.json.Decoder(dict[str, Any])
_value_decoder: Final = msgspec.json.Decoder()
_delay_decoder: Final = msgspec.json.Decoder(int)


def parse_post(raw: bytes) -> list[Posted]:
    """Parse the body of a post. Raises ``InvalidBody`` if it is not valid or contains no message."""
    messages = decode(_post_decoder, raw).messages
    if not messages:
        raise InvalidBody("messages must contain at least one message.")
    return messages


def parse_delay(delay: Raw) -> int:
    """Parse the delay of a posted message. Raises ``InvalidBody`` if it is not an integer."""
    try:
        return _delay_decoder.decode(delay)
    except msgspec.MsgspecError as error:
        raise InvalidBody(f"delay must be an integer: {error}.") from error


def claim_terms(raw: bytes) -> ClaimTerms:
    """Parse the body of a request that creates or renews a claim. Raises ``InvalidBody`` if it is not valid."""
    return decode(_terms_decoder, raw)


def purge_types(raw: bytes) -> list[str]:
    """Return the ``resource_types`` in the body of a purge. Raises ``InvalidBody`` if the body is not valid."""
    return decode(_purge_decoder, raw).resource_types


def patch(raw: bytes) -> list[Operation]:
    """Parse a metadata patch. Raises ``InvalidBody`` if it is not a list of operations."""
    return decode(_patch_decoder, raw)


def json_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ``InvalidBody`` if the text is not a valid JSON object."""
    return decode(_object_decoder, raw)


def json_value(raw: bytes) -> Any:
    """Parse any JSON value. Raises ``InvalidBody`` if the text is not valid JSON."""
    return decode(_value_decoder, raw)


def decode(decoder: "msgspec.json.Decoder[T]", raw: bytes) -> T:
    """Decode JSON, and check its encoding and numbers. Raises ``InvalidBody`` if the JSON is not valid."""
    try:
        value = decoder.decode(raw)
        if not raw.isascii():
            raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"The body must be UTF-8; byte {error.start} is not.") from error
    except RecursionError as error:
        raise InvalidBody("The body is nested too deeply.") from error
    except msgspec.ValidationError as error:
        raise InvalidBody(f"The body is not valid: {error}.") from error
    except msgspec.MsgspecError as error:
        reason = _lone_surrogate(raw) or str(error)
        raise InvalidBody(f"The body could not be parsed: {reason}.") from error
    check_numbers(raw)
    return value


def _lone_surrogate(raw: bytes) -> str:
    """Return an error sentence if the JSON has an unpaired surrogate, or "" if it has none.

    The errors of msgspec do not explain unpaired surrogates.
    """
    half = next((escape for escape in _ESCAPES.finditer(raw) if escape[1]), None)
    if half is None:
        return ""
    return f"\\{half[1].decode()} at byte {half.start()} is half of a surrogate pair, not a character"


def checksum(body: bytes) -> str:
    """Return the checksum of a body: ``MD5:`` and the digest of its normalized JSON, or "" for ``null``."""
    value = json.loads(body)
    if value is None:
        return ""
    return "MD5:" + md5(json.dumps(value).encode(), usedforsecurity=False).hexdigest()
