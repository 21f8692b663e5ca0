# SPDX-License-Identifier: Apache-2.0
"""The verification of AWS Signature Version 4: pure functions without a clock, a store or a body.

``read`` takes from a request's head what its signature claims, ``check_moment`` and ``check_headers`` judge that, and
``check_signature`` compares it, for which the hash of the body must be known. Each raises ``Refusal``.
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
# How a moment is written, in ``X-Amz-Date`` and in the text that is signed.
MOMENT: Final = "%Y%m%dT%H%M%SZ"
# Seconds by which the moment of a request may differ from the store's clock.
SKEW: Final = 900
# Seconds that a pre-signed request may be valid, at most: a week.
MOST_EXPIRES: Final = 604_800
# What stands for the body's hash where the body is not signed.
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
# What a query says of a pre-signed request's signature, each once.
PARAMETERS: Final = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
# Signing keys that one process remembers.
MOST_KEYS: Final = 4096

ABSENT: Final = "MissingAuthenticationToken"
INCOMPLETE: Final = "IncompleteSignature"
MISMATCH: Final = "SignatureDoesNotMatch"
UNKNOWN_KEY: Final = "InvalidClientTokenId"

NO_SIGNATURE: Final = "Request is missing Authentication Token"
NO_SUCH_KEY: Final = "The security token included in the request is invalid."
OTHER_SIGNATURE: Final = (
    "The request signature we calculated does not match the signature you provided. Check your access key and signing "
    "method."
)

_FIELDS: Final = re.compile(ALGORITHM + r"[ \t]+(.*)", re.DOTALL)
_CREDENTIAL: Final = re.compile(r"([A-Za-z0-9]{1,128})/([0-9]{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/([a-z0-9_]+)")
_NAMES: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+(;[!#$%&'*+.^_`|~0-9a-z-]+)*")
_SIGNATURE: Final = re.compile(r"[0-9a-f]{64}")
_STAMP: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")


class Refusal(Exception):
    """The refusal of a signature: an error code of AWS, its sentence, and the status."""

    def __init__(self, code: str, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Head(NamedTuple):
    """A request without its body. ``path`` and ``query`` as sent; ``headers``: by names in lower case, repeats joined
    by a comma, each byte a character (as WSGI has it)."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    secure: bool = False
    """Whether the request came over TLS."""


class Claim(Struct, frozen=True):
    """What a request says of its signature. ``seconds``: its moment, since 1970; ``expires``: seconds for which it is
    valid then; None = it is not pre-signed."""

    key: str
    date: str
    region: str
    service: str
    terminator: str
    moment: str
    seconds: float
    signed: tuple[str, ...]
    signature: str
    expires: int | None = None

    @property
    def scope(self) -> str:
        """Return the scope of the signing key."""
        return f"{self.date}/{self.region}/{self.service}/{self.terminator}"


def read(head: Head) -> Claim:
    """Return the claim of a request's head. Raises ``Refusal`` if it is incomplete or for another service."""
    parameters = _parameters(head.query)
    header = head.headers.get("authorization")
    if header is None and "Algorithm" not in parameters:
        raise Refusal(ABSENT, NO_SIGNATURE)
    if header is not None and "Algorithm" in parameters:
        raise _incomplete("A request must be signed by its header Authorization or by its query, not by both.")
    claim = _presigned(parameters) if header is None else _by_header(header, head.headers)
    if claim.service != SERVICE or claim.terminator != TERMINATOR:
        raise Refusal(MISMATCH, f"Credential should be scoped to {SERVICE} and end with '{TERMINATOR}'.")
    if claim.date != claim.moment[:8]:
        said = f"'{claim.date}' != '{claim.moment[:8]}', from '{claim.moment}'."
        raise Refusal(
            MISMATCH, f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date: {said}"
        )
    return claim


def check_moment(claim: Claim, now: float) -> None:
    """Raise ``Refusal`` unless the request is of the present."""
    life = SKEW if claim.expires is None else claim.expires
    if now > claim.seconds + life:
        since = f"{_written(now - life)} ({_written(now)} - {_minutes(life)}.)"
        raise Refusal(MISMATCH, f"Signature expired: {claim.moment} is now earlier than {since}")
    if now < claim.seconds - SKEW:
        until = f"{_written(now + SKEW)} ({_written(now)} + {_minutes(SKEW)}.)"
        raise Refusal(MISMATCH, f"Signature not yet current: {claim.moment} is still later than {until}")


def check_headers(claim: Claim, head: Head) -> None:
    """Raise ``Refusal`` unless the host is signed, and every header by which AWS's protocols say anything."""
    signed = set(claim.signed)
    missing = sorted(({"host"} | {name for name in head.headers if name.startswith("x-amz-")}) - signed)
    if missing:
        raise Refusal(MISMATCH, f"These headers must be signed: {', '.join(missing)}.")
    absent = sorted(signed - head.headers.keys())
    if absent:
        raise Refusal(MISMATCH, f"These headers are signed, and missing: {', '.join(absent)}.")


def check_signature(claim: Claim, head: Head, secret: str, body_hash: str) -> None:
    """Raise ``Refusal`` unless the signature is that of the request by this secret. ``body_hash``: SHA-256 of the raw
    body, in hex."""
    said = head.headers.get("x-amz-content-sha256", body_hash)
    fits = hmac.compare_digest(said.encode(), body_hash.encode()) or (said == UNSIGNED and head.secure)
    text = string_to_sign(claim, canonical_request(claim, head, said))
    right = hmac.new(signing_key(secret, claim.date, claim.region), text, hashlib.sha256).hexdigest()
    if not (hmac.compare_digest(right, claim.signature) and fits):
        raise Refusal(MISMATCH, OTHER_SIGNATURE)


def refuse_session(head: Head) -> None:
    """Raise ``Refusal`` for temporary credentials: there are none."""
    if "x-amz-security-token" in head.headers or "Security-Token" in _parameters(head.query):
        raise Refusal(UNKNOWN_KEY, NO_SUCH_KEY)


def canonical_request(claim: Claim, head: Head, body_hash: str) -> bytes:
    """Return the canonical request."""
    headers = [name.encode() + b":" + _trimmed(head.headers[name]) + b"\n" for name in claim.signed]
    names = ";".join(claim.signed)
    first = f"{head.method}\n{_canonical_path(head.path)}\n{_canonical_query(claim, head.query)}\n"
    return first.encode() + b"".join(headers) + f"\n{names}\n{body_hash}".encode("latin-1")


def string_to_sign(claim: Claim, canonical: bytes) -> bytes:
    """Return the string to sign."""
    return f"{ALGORITHM}\n{claim.moment}\n{claim.scope}\n{hashlib.sha256(canonical).hexdigest()}".encode()


@lru_cache(MOST_KEYS)
def signing_key(secret: str, date: str, region: str) -> bytes:
    """Return the signing key of a day and a region."""
    key = b"AWS4" + secret.encode()
    for part in (date, region, SERVICE, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _incomplete(message: str) -> Refusal:
    return Refusal(INCOMPLETE, message, 400)


def _parameters(query: str) -> dict[str, str]:
    """Return the parameters of a signature by names without ``X-Amz-``. Raises ``Refusal`` for a repeated name."""
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


def _by_header(header: str, headers: Mapping[str, str]) -> Claim:
    """Return the claim of the header ``Authorization``, whose fields may have any order."""
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
    return _claim(fields["Credential"], fields["SignedHeaders"], fields["Signature"], _moment(headers))


def _presigned(parameters: Mapping[str, str]) -> Claim:
    for name in PARAMETERS:
        if name not in parameters:
            raise _incomplete(f"X-Amz-{name} is missing.")
    if parameters["Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
    said = parameters["Expires"]
    expires = int(said) if said.isascii() and said.isdigit() and len(said) < 8 else 0
    if not 1 <= expires <= MOST_EXPIRES:
        raise _incomplete(f"X-Amz-Expires must be 1 to {MOST_EXPIRES} seconds.")
    credential, names, signature = (parameters[name] for name in ("Credential", "SignedHeaders", "Signature"))
    return _claim(credential, names, signature, parameters["Date"], expires)


def _claim(credential: str, names: str, signature: str, moment: str, expires: int | None = None) -> Claim:
    parts = _CREDENTIAL.fullmatch(credential)
    if parts is None:
        raise _incomplete("Credential must be <key>/<date>/<region>/<service>/aws4_request.")
    signed = tuple(names.split(";"))
    if _NAMES.fullmatch(names) is None or list(signed) != sorted(set(signed)):
        raise _incomplete("SignedHeaders must be names of headers in lower case, sorted, each once, joined by ';'.")
    if _SIGNATURE.fullmatch(signature) is None:
        raise _incomplete("Signature must be 64 characters of 0-9 a-f.")
    key, date, region, service, terminator = parts.groups()
    seconds = _seconds(moment)
    return Claim(key, date, region, service, terminator, moment, seconds, signed, signature, expires)


def _moment(headers: Mapping[str, str]) -> str:
    """Return the time of ``X-Amz-Date``, or else of ``Date`` in either of its forms."""
    if (given := headers.get("x-amz-date")) is not None:
        return given.strip()
    given = headers.get("date", "").strip()
    if _STAMP.fullmatch(given):
        return given
    try:
        said = parsedate_to_datetime(given)
        return said.replace(tzinfo=said.tzinfo or UTC).astimezone(UTC).strftime(MOMENT)
    except (ValueError, OverflowError):
        raise _incomplete("X-Amz-Date or Date must tell the moment of the request.") from None


def _seconds(moment: str) -> float:
    """Return a time in seconds since 1970. Raises ``Refusal`` for another text."""
    if _STAMP.fullmatch(moment):
        with suppress(ValueError):
            return datetime.strptime(moment, MOMENT).replace(tzinfo=UTC).timestamp()
    raise _incomplete("X-Amz-Date must be as 20300131T235959Z.")


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(MOMENT)


def _minutes(seconds: int) -> str:
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            yield name, value


def _canonical_query(claim: Claim, query: str) -> str:
    if not query:
        return ""
    pairs = sorted((_encoded(name), _encoded(value)) for name, value in _pairs(query))
    left_out = None if claim.expires is None else "X-Amz-Signature"
    return "&".join(f"{name}={value}" for name, value in pairs if name != left_out)


def _encoded(text: str) -> str:
    """Return a text decoded once and encoded in the form that is signed."""
    return quote_from_bytes(unquote_to_bytes(text.replace("+", " ").encode("latin-1")), safe="-_.~")


def _canonical_path(path: str) -> str:
    """Return the path without dot segments, encoded once more."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    text = "/" + "/".join(kept) + ("/" if kept and path.endswith("/") else "")
    return quote(text.encode("latin-1"), safe="/-_.~")


def _trimmed(value: str) -> bytes:
    """Return a value without ASCII blanks at its ends and with single blanks inside."""
    return b" ".join(value.encode("latin-1").split())
