# SPDX-License-Identifier: Apache-2.0
"""JSON on the wire to values of the model and back, for server and client. No defaults, no bounds but JSON's own.

Message bodies stay raw bytes in both directions: they are checked (UTF-8, syntax, 64-bit integers), never decoded.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import md5
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from zq.errors import InvalidBody
from zq.limits import integer_in_body
from zq.model import Claim, Landmark, Message, Seconds, Stats, age

T = TypeVar("T")
NO_DELAY: Final = Raw(b"")
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19


class Posted(Struct):
    """One element of a post. ``delay`` is left as it came: on a normal queue nobody looks at it (contract 7.2)."""

    body: Raw
    ttl: int | UnsetType = UNSET
    delay: Raw = NO_DELAY


class _Post(Struct):
    messages: list[Posted]


class ClaimTerms(Struct):
    """The body of a claim or a renewal."""

    ttl: int | UnsetType = UNSET
    grace: int | UnsetType = UNSET


class _Purge(Struct):
    resource_types: list[str]


class Operation(Struct):
    """One step of a metadata patch."""

    op: str
    path: str
    value: Any = UNSET


class _MessageOut(Struct, omit_defaults=True):
    id: str
    href: str
    ttl: int
    age: int
    body: Raw
    checksum: str = ""


class _PoppedOut(Struct, omit_defaults=True):
    id: str
    age: int
    ttl: int
    body: Raw
    claim_id: str | None
    claim_count: int
    checksum: str = ""


encode: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
_post_decoder: Final = msgspec.json.Decoder(_Post)
_terms_decoder: Final = msgspec.json.Decoder(ClaimTerms)
_purge_decoder: Final = msgspec.json.Decoder(_Purge)
_patch_decoder: Final = msgspec.json.Decoder(list[Operation])
_object_decoder: Final = msgspec.json.Decoder(dict[str, Any])
_delay_decoder: Final = msgspec.json.Decoder(int)


# ---- requests


def posted(raw: bytes) -> list[Posted]:
    """The messages of a post, at least one. Raises ``InvalidBody``."""
    messages = _decode(_post_decoder, raw).messages
    if not messages:
        raise InvalidBody("messages must hold at least one message.")
    return messages


def posted_delay(delay: Raw) -> int | None:
    """The ``delay`` of a posted message; None if it has none."""
    if not delay:
        return None
    try:
        return _delay_decoder.decode(delay)
    except msgspec.MsgspecError as error:
        raise InvalidBody(f"delay must be an integer: {error}.") from error


def claim_terms(raw: bytes) -> ClaimTerms:
    """The terms of a claim. Raises ``InvalidBody``."""
    return _decode(_terms_decoder, raw)


def purge_types(raw: bytes) -> list[str]:
    """The ``resource_types`` of a purge. Raises ``InvalidBody``."""
    return _decode(_purge_decoder, raw).resource_types


def patch(raw: bytes) -> list[Operation]:
    """The operations of a metadata patch. Raises ``InvalidBody``."""
    return _decode(_patch_decoder, raw)


def json_object(raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises ``InvalidBody``."""
    return _decode(_object_decoder, raw)


def _decode(decoder: "msgspec.json.Decoder[T]", raw: bytes) -> T:
    """Decode and validate in one pass, then check what the decoder lets through: encoding and giant integers."""
    try:
        value = decoder.decode(raw)
        if not raw.isascii():
            raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidBody(f"The body must be UTF-8; byte {error.start} is not.") from error
    except RecursionError as error:
        raise InvalidBody("The body is nested too deeply.") from error
    except msgspec.MsgspecError as error:
        raise InvalidBody(f"The body cannot be used: {error}.") from error
    if _LONG_NUMBER in raw.translate(_DIGITS):
        _check_integers(raw)
    return value


def _check_integers(raw: bytes) -> None:
    """Refuse integers beyond 64 bits, wherever they stand; called only when there are 19 digits in a row."""

    def integer(digits: str) -> int:
        # Python itself refuses to read numbers of thousands of digits, so long ones are refused unread.
        return integer_in_body(int(digits) if len(digits) < 30 else 10**30)

    try:
        json.loads(raw, parse_int=integer, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise InvalidBody("The body is nested too deeply.") from error


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidBody(f"{name} is not JSON.")


# ---- responses


def message_href(queue: str, message: str, claim: str = "") -> str:
    """Where a message is; under a live claim with its id."""
    return f"/v2/queues/{queue}/messages/{message}" + (f"?claim_id={claim}" if claim else "")


def claim_href(queue: str, claim: str) -> str:
    """Where a claim is."""
    return f"/v2/queues/{queue}/claims/{claim}"


def message_page(queue: str, messages: Iterable[Message], now: Seconds, query: dict[str, str] | None) -> bytes:
    """A listing; ``query`` is what the next page's link repeats, None on an empty page."""
    links = [] if query is None else [next_link(f"/v2/queues/{queue}/messages", query)]
    return encode({"messages": _outs(queue, messages, now), "links": links})


def next_link(path: str, query: dict[str, str]) -> dict[str, str]:
    """The one element of ``links``."""
    return {"rel": "next", "href": f"{path}?{urlencode(query, quote_via=quote)}"}


def message(queue: str, message: Message, now: Seconds) -> bytes:
    """One representation (contract 7.1)."""
    return encode(_out(f"/v2/queues/{queue}/messages/", message, now))


def messages(queue: str, messages: Iterable[Message], now: Seconds) -> bytes:
    """Representations without links: by ids, or claimed."""
    return encode({"messages": _outs(queue, messages, now)})


def popped(messages: Iterable[Message], now: Seconds) -> bytes:
    """What a pop returns (contract 7.7)."""
    return encode(
        {
            "messages": [
                _PoppedOut(m.id, m.age(now), m.ttl, Raw(m.body), None, m.claim_count, m.checksum) for m in messages
            ]
        }
    )


def post_result(queue: str, ids: Sequence[str]) -> bytes:
    """The hrefs of posted messages."""
    return encode({"resources": [message_href(queue, message) for message in ids]})


def claim(queue: str, claim: Claim, now: Seconds) -> bytes:
    """A claim with its messages (contract 8.2)."""
    return encode(
        {
            "age": age(claim.created, now),
            "ttl": claim.ttl,
            "href": claim_href(queue, claim.id),
            "messages": _outs(queue, claim.messages, now),
        }
    )


def stats(queue: str, stats: Stats, now: Seconds) -> bytes:
    """Counts and, unless the queue is empty, its landmarks (contract 6.7)."""
    counts: dict[str, Any] = {"claimed": stats.claimed, "free": stats.free, "total": stats.claimed + stats.free}
    if stats.oldest is not None and stats.newest is not None:
        counts["oldest"] = _landmark(queue, stats.oldest, now)
        counts["newest"] = _landmark(queue, stats.newest, now)
    return encode({"messages": counts})


def checksum(body: bytes) -> str:
    """``MD5:`` and the digest of the body in the form that contract 7.10 fixes; "" for null."""
    value = json.loads(body)
    if value is None:
        return ""
    return "MD5:" + md5(json.dumps(value).encode(), usedforsecurity=False).hexdigest()


def _landmark(queue: str, landmark: Landmark, now: Seconds) -> dict[str, Any]:
    created = datetime.fromtimestamp(int(landmark.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"href": message_href(queue, landmark.id), "age": age(landmark.created, now), "created": created}


def _outs(queue: str, messages: Iterable[Message], now: Seconds) -> list[_MessageOut]:
    prefix = f"/v2/queues/{queue}/messages/"
    return [_out(prefix, message, now) for message in messages]


def _out(prefix: str, message: Message, now: Seconds) -> _MessageOut:
    href = prefix + message.id
    if message.claim:
        href += "?claim_id=" + message.claim
    return _MessageOut(message.id, href, message.ttl, message.age(now), Raw(message.body), message.checksum)
