# SPDX-License-Identifier: Apache-2.0
"""Signatures of deliveries by HTTP: Standard Webhooks 1.0 (criterion E5), for those who send and those who receive.

What is signed is ``id.timestamp.body``; a secret is ``whsec_`` and the base64 of 24 to 64 bytes.
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
# Bytes of a secret: how many a new one has, and within which bounds any may.
SIZE: Final = 32
LEAST, MOST = 24, 64


def new_secret() -> str:
    """A secret for a new subscription."""
    return PREFIX + base64.b64encode(os.urandom(SIZE)).decode()


def key(secret: str) -> bytes:
    """The bytes of a secret. Raises ``Invalid``."""
    try:
        raw = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raw = b""
    if not LEAST <= len(raw) <= MOST:
        raise Invalid(f"A webhook's secret is whsec_ and the base64 of {LEAST} to {MOST} bytes.")
    return raw


def signature(secret: str, message: str, timestamp: int, body: bytes) -> str:
    """One signature, with its version."""
    signed = b"%b.%d.%b" % (message.encode(), timestamp, body)
    return VERSION + base64.b64encode(hmac.digest(key(secret), signed, "sha256")).decode()


def headers(secrets: Iterable[str], message: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a delivery; several secrets while one is being replaced."""
    signatures = [signature(secret, message, timestamp, body) for secret in secrets]
    return {ID: message, TIMESTAMP: str(timestamp)} | ({SIGNATURE: " ".join(signatures)} if signatures else {})


def verified(secret: str, given: Mapping[str, str], body: bytes, now: float, tolerance: float) -> str:
    """The id of a delivery that was signed with the secret at most ``tolerance`` seconds before or after ``now``.

    ``given``: the request's headers, in whatever case. Raises ``Invalid``.
    """
    found = {name.lower(): value for name, value in given.items()}
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
        raise Invalid("No signature of the delivery fits the secret.")
    return message
