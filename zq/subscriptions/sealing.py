# SPDX-License-Identifier: Apache-2.0
"""Encryption of subscription secrets at rest."""

import os
from collections.abc import Callable

from zq.auth.signatures import derive_key
from zq.errors import Invalid
from zq.model.identity import SignedUrlOptions

LABEL = "subscription secrets"
NONCE = 12


class SecretSealer:
    """A sealer that uses AES-256-GCM. The first configured key encrypts; all of them decrypt."""

    def __init__(self, options: Callable[[], SignedUrlOptions]) -> None:
        self._options = options

    def seal(self, secret: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secrets = self._options().secrets
        if not secrets:
            raise Invalid("Subscriptions are not available: [signed_url] secret_key is not set on the server.")
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(derive_key(secrets[0].encode(), LABEL)).encrypt(nonce, secret.encode(), None)

    def open(self, sealed: bytes) -> str:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in self._options().secrets:
            try:
                return AESGCM(derive_key(key.encode(), LABEL)).decrypt(sealed[:NONCE], sealed[NONCE:], None).decode()
            except (InvalidTag, ValueError):
                continue
        return ""
