# SPDX-License-Identifier: Apache-2.0
"""Verification of AWS Signature Version 4, as pure functions.

``check_time`` and ``check_headers`` need no body; ``check_signature`` does. Each function raises
``SignatureRejection``.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, quote_from_bytes, unquote_plus, unquote_to_bytes

from msgspec import Struct

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "sqs"
TERMINATOR: Final = "aws4_request"
# Timestamp format of ``X-Amz-Date`` and of the string to sign.
TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
# Maximum difference in seconds between a request's timestamp and the store's clock.
MAX_SKEW: Final = 900
# Maximum validity of a pre-signed request in seconds: one week.
MAX_EXPIRES: Final = 604_800
# Value of the header X-Amz-Content-Sha256 if the signature does not cover the body.
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
# Required query parameters of a pre-signed request, without the prefix ``X-Amz-``.
PARAMETERS: Final = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
# Maximum number of cached signing keys.
MAX_CACHED_KEYS: Final = 4096

NOT_SIGNED: Final = "MissingAuthenticationToken"
INCOMPLETE_SIGNATURE: Final = "IncompleteSignature"
MISMATCH: Final = "SignatureDoesNotMatch"
UNKNOWN_KEY: Final = "InvalidClientTokenId"

NO_SIGNATURE: Final = "Request is missing Authentication Token"
NO_SUCH_KEY: Final = "The security token included in the request is invalid."
WRONG_SIGNATURE: Final = (
    "The request signature we calculated does not match the signature you provided. Check your access key and signing "
    "method."
)

_FIELDS: Final = re.compile(ALGORITHM + r"[ \t]+(.*)", re.DOTALL)
_CREDENTIAL: Final = re.compile(r"([A-Za-z0-9]{1,128})/([0-9]{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/([a-z0-9_]+)")
_NAMES: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+(;[!#$%&'*+.^_`|~0-9a-z-]+)*")
_SIGNATURE: Final = re.compile(r"[0-9a-f]{64}")
_STAMP: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")


class SignatureRejection(Exception):
    """An error that rejects a request because its signature or access key is not valid.

    The error has an AWS error code, a message and an HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Head(NamedTuple):
    """A request head, as in WSGI: lower-case header names, Latin-1 values, repeated values joined by commas."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    secure: bool = False
    """Whether the request was received over TLS."""


class RequestSignature(Struct, frozen=True):
    """The parsed but unverified signature of a request.

    ``expires`` is the lifetime of a pre-signed URL in seconds. It is None if the request is not a pre-signed URL.
    """

    key: str
    date: str
    region: str
    service: str
    terminator: str
    timestamp: str
    seconds: float
    signed: tuple[str, ...]
    signature: str
    expires: int | None = None

    @property
    def scope(self) -> str:
        """Return the credential scope as it is written in the string to sign."""
        return f"{self.date}/{self.region}/{self.service}/{self.terminator}"


def read(head: Head) -> RequestSignature:
    """Parse the signature in a request head.

    Raises ``SignatureRejection`` if the signature is incomplete or made for another service.
    """
    parameters = _parameters(head.query)
    header = head.headers.get("authorization")
    if header is None and "Algorithm" not in parameters:
        raise SignatureRejection(NOT_SIGNED, NO_SIGNATURE)
    if header is not None and "Algorithm" in parameters:
        raise _incomplete("Sign the request in the header Authorization or in the query string, not in both.")
    parsed = _parse_query(parameters) if header is None else _parse_header(header, head.headers)
    if parsed.service != SERVICE or parsed.terminator != TERMINATOR:
        raise SignatureRejection(MISMATCH, f"Credential should be scoped to {SERVICE} and end with '{TERMINATOR}'.")
    if parsed.date != parsed.timestamp[:8]:
        stated = f"'{parsed.date}' != '{parsed.timestamp[:8]}', from '{parsed.timestamp}'."
        raise SignatureRejection(
            MISMATCH, f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date: {stated}"
        )
    return parsed


def check_time(parsed: RequestSignature, now: float) -> None:
    """Check that the signature has not expired and is not in the future. Raises ``SignatureRejection``."""
    life = MAX_SKEW if parsed.expires is None else parsed.expires
    if now > parsed.seconds + life:
        since = f"{_format_time(now - life)} ({_format_time(now)} - {_format_minutes(life)}.)"
        raise SignatureRejection(MISMATCH, f"Signature expired: {parsed.timestamp} is now earlier than {since}")
    if now < parsed.seconds - MAX_SKEW:
        until = f"{_format_time(now + MAX_SKEW)} ({_format_time(now)} + {_format_minutes(MAX_SKEW)}.)"
        raise SignatureRejection(MISMATCH, f"Signature not yet current: {parsed.timestamp} is still later than {until}")


def check_headers(parsed: RequestSignature, head: Head) -> None:
    """Check that ``Host`` and all ``X-Amz-`` headers are signed, and that all signed headers are present."""
    signed = set(parsed.signed)
    missing = sorted(({"host"} | {name for name in head.headers if name.startswith("x-amz-")}) - signed)
    if missing:
        raise SignatureRejection(MISMATCH, f"These headers must be signed: {', '.join(missing)}.")
    absent = sorted(signed - head.headers.keys())
    if absent:
        raise SignatureRejection(MISMATCH, f"These signed headers are missing: {', '.join(absent)}.")


def check_signature(parsed: RequestSignature, head: Head, secret: str, body_hash: str) -> None:
    """Verify the signature. ``body_hash`` is the hexadecimal SHA-256 of the raw body. Raises ``SignatureRejection``."""
    stated = head.headers.get("x-amz-content-sha256", body_hash)
    fits = hmac.compare_digest(stated.encode(), body_hash.encode()) or (stated == UNSIGNED and head.secure)
    text = string_to_sign(parsed, canonical_request(parsed, head, stated))
    right = hmac.new(signing_key(secret, parsed.date, parsed.region), text, hashlib.sha256).hexdigest()
    if not (hmac.compare_digest(right, parsed.signature) and fits):
        raise SignatureRejection(MISMATCH, WRONG_SIGNATURE)


def reject_session(head: Head) -> None:
    """Reject temporary credentials, which are not supported. Raises ``SignatureRejection``."""
    if "x-amz-security-token" in head.headers or "Security-Token" in _parameters(head.query):
        raise SignatureRejection(UNKNOWN_KEY, NO_SUCH_KEY)


def canonical_request(parsed: RequestSignature, head: Head, body_hash: str) -> bytes:
    """Return the canonical request that Signature Version 4 defines."""
    headers = [name.encode() + b":" + _collapse(head.headers[name]) + b"\n" for name in parsed.signed]
    names = ";".join(parsed.signed)
    first = f"{head.method}\n{_canonical_path(head.path)}\n{_canonical_query(parsed, head.query)}\n"
    return first.encode() + b"".join(headers) + f"\n{names}\n{body_hash}".encode("latin-1")


def string_to_sign(parsed: RequestSignature, canonical: bytes) -> bytes:
    return f"{ALGORITHM}\n{parsed.timestamp}\n{parsed.scope}\n{hashlib.sha256(canonical).hexdigest()}".encode()


@lru_cache(MAX_CACHED_KEYS)
def signing_key(secret: str, date: str, region: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (date, region, SERVICE, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _incomplete(message: str) -> SignatureRejection:
    return SignatureRejection(INCOMPLETE_SIGNATURE, message, 400)


def _parameters(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if "X-Amz-" not in query and "%" not in query:
        return found
    for name, value in _pairs(query):
        word = unquote_plus(name)
        if word.startswith("X-Amz-"):
            if word[6:] in found:
                raise _incomplete(f"{word} must be given once.")
            found[word[6:]] = unquote_plus(value)
    return found


def _parse_header(header: str, headers: Mapping[str, str]) -> RequestSignature:
    matched = _FIELDS.fullmatch(header)
    if matched is None:
        raise _incomplete(f"Authorization must begin with {ALGORITHM}.")
    fields: dict[str, str] = {}
    for part in matched[1].split(","):
        name, _, value = part.strip().partition("=")
        if name in fields:
            raise _incomplete(f"{name[:100]} must be given once in Authorization.")
        fields[name] = value
    for name in ("Credential", "Signature", "SignedHeaders"):
        if name not in fields:
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    return _parse_signature(
        fields["Credential"], fields["SignedHeaders"], fields["Signature"], _read_timestamp(headers)
    )


def _parse_query(parameters: Mapping[str, str]) -> RequestSignature:
    for name in PARAMETERS:
        if name not in parameters:
            raise _incomplete(f"X-Amz-{name} is missing.")
    if parameters["Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    stated = parameters["Expires"]
    expires = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 8 else 0
    if not 1 <= expires <= MAX_EXPIRES:
        raise _incomplete(f"X-Amz-Expires must be between 1 and {MAX_EXPIRES} seconds.")
    credential, names, signature = (parameters[name] for name in ("Credential", "SignedHeaders", "Signature"))
    return _parse_signature(credential, names, signature, parameters["Date"], expires)


def _parse_signature(
    credential: str, names: str, signature: str, timestamp: str, expires: int | None = None
) -> RequestSignature:
    parts = _CREDENTIAL.fullmatch(credential)
    if parts is None:
        raise _incomplete("Credential must be <key>/<date>/<region>/<service>/aws4_request.")
    signed = tuple(names.split(";"))
    if _NAMES.fullmatch(names) is None or list(signed) != sorted(set(signed)):
        raise _incomplete("SignedHeaders must be distinct header names in lower case, sorted and separated by ';'.")
    if _SIGNATURE.fullmatch(signature) is None:
        raise _incomplete("Signature must be 64 characters from 0-9 and a-f.")
    key, date, region, service, terminator = parts.groups()
    seconds = _to_seconds(timestamp)
    return RequestSignature(key, date, region, service, terminator, timestamp, seconds, signed, signature, expires)


def _read_timestamp(headers: Mapping[str, str]) -> str:
    if (given := headers.get("x-amz-date")) is not None:
        return given.strip()
    given = headers.get("date", "").strip()
    if _STAMP.fullmatch(given):
        return given
    try:
        stated = parsedate_to_datetime(given)
        return stated.replace(tzinfo=stated.tzinfo or UTC).astimezone(UTC).strftime(TIME_FORMAT)
    except (ValueError, OverflowError):
        raise _incomplete("X-Amz-Date or Date must contain the time of the request.") from None


def _to_seconds(timestamp: str) -> float:
    if _STAMP.fullmatch(timestamp):
        with suppress(ValueError):
            return datetime.strptime(timestamp, TIME_FORMAT).replace(tzinfo=UTC).timestamp()
    raise _incomplete("X-Amz-Date must have the format 20300131T235959Z.")


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME_FORMAT)


def _format_minutes(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            yield name, value


def _canonical_query(parsed: RequestSignature, query: str) -> str:
    if not query:
        return ""
    pairs = sorted((_encode(name), _encode(value)) for name, value in _pairs(query))
    left_out = None if parsed.expires is None else "X-Amz-Signature"
    return "&".join(f"{name}={value}" for name, value in pairs if name != left_out)


def _encode(text: str) -> str:
    return quote_from_bytes(unquote_to_bytes(text.replace("+", " ").encode("latin-1")), safe="-_.~")


def _canonical_path(path: str) -> str:
    """Remove dot segments from an encoded path, and percent-encode it once more, as Signature Version 4 requires."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    text = "/" + "/".join(kept) + ("/" if kept and path.endswith("/") else "")
    return quote(text.encode("latin-1"), safe="/-_.~")


def _collapse(value: str) -> bytes:
    return b" ".join(value.encode("latin-1").split())
