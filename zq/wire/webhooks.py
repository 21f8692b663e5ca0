# SPDX-License-Identifier: Apache-2.0
"""Signatures of HTTP deliveries according to Standard Webhooks 1.0, for senders and receivers.

The signed content is ``id.timestamp.body``. A secret is ``whsec_`` followed by the base64 encoding of 24 to 64 bytes.
"""

import base64
import binascii
import hmac
import os
from collections.abc import Iterable, Mapping
from typing import Final

from zq.errors import Invalid

PREFIX: Final = "whsec_"
VERSION: Final = "v1,"
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
# Size in bytes of a new secret, and the bounds of a valid one.
SECRET_SIZE: Final = 32
MIN_SECRET_SIZE: Final = 24
MAX_SECRET_SIZE: Final = 64


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(SECRET_SIZE)).decode()


def key(secret: str) -> bytes:
    """Decode a secret to the bytes of its key. Raises ``Invalid`` if the secret is malformed."""
    try:
        raw = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raw = b""
    if not MIN_SECRET_SIZE <= len(raw) <= MAX_SECRET_SIZE:
        raise Invalid(
            f"A webhook secret must be whsec_ followed by the base64 encoding of {MIN_SECRET_SIZE} to "
            f"{MAX_SECRET_SIZE} bytes."
        )
    return raw


def signature(secret: str, message: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a delivery, with its version prefix."""
    signed = b"%b.%d.%b" % (message.encode(), timestamp, body)
    return VERSION + base64.b64encode(hmac.digest(key(secret), signed, "sha256")).decode()


def headers(secrets: Iterable[str], message: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery. Each secret adds one signature; there are two secrets during a rotation."""
    signatures = [signature(secret, message, timestamp, body) for secret in secrets]
    return {ID: message, TIMESTAMP: str(timestamp)} | ({SIGNATURE: " ".join(signatures)} if signatures else {})


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float, tolerance: float) -> str:
    """Verify a delivery and return its id.

    Raises ``Invalid`` if a header is missing or malformed, no signature is valid, or the timestamp differs from ``now``
    by more than ``tolerance`` seconds.
    """
    found = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not found.get(name)]
    if missing:
        raise Invalid(f"The header {missing[0]} is missing.")
    message, moment = found[ID], found[TIMESTAMP]
    if not (moment.isascii() and moment.isdigit() and len(moment) <= 15):
        raise Invalid(f"The header {TIMESTAMP} must be a number of seconds.")
    if abs(now - int(moment)) > tolerance:
        raise Invalid(f"The delivery was signed more than {tolerance:g} seconds before or after now.")
    ours = signature(secret, message, int(moment), body).encode()
    matches = [hmac.compare_digest(ours, each.encode()) for each in found[SIGNATURE].split(" ")]
    if not any(matches):
        raise Invalid("No signature of the delivery matches the secret.")
    return message
