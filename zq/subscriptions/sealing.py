# SPDX-License-Identifier: Apache-2.0
"""Encryption of the secrets of subscriptions in the store."""

import os
from collections.abc import Callable

from zq.auth.signatures import derived
from zq.errors import Invalid
from zq.model.identity import ShareOptions

LABEL = "subscription secrets"
NONCE = 12


class SecretSealer:
    """Encrypts with AES-256-GCM under the first key, and decrypts with any key.

    ``options`` returns the current keys, which a reload may change.
    """

    def __init__(self, options: Callable[[], ShareOptions]) -> None:
        self._options = options

    def seal(self, secret: str) -> bytes:
        """Encrypt a secret. Raises ``Invalid`` if there is no key."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secrets = self._options().secrets
        if not secrets:
            raise Invalid("This server takes no subscriptions: [signed_url] secret_key is not set.")
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(derived(secrets[0].encode(), LABEL)).encrypt(nonce, secret.encode(), None)

    def open(self, sealed: bytes) -> str:
        """Decrypt a secret; "" if no key decrypts it."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in self._options().secrets:
            try:
                return AESGCM(derived(key.encode(), LABEL)).decrypt(sealed[:NONCE], sealed[NONCE:], None).decode()
            except (InvalidTag, ValueError):
                continue
        return ""
