# SPDX-License-Identifier: Apache-2.0
"""Encrypted page markers, which hide the name at which a page ended.

A page may end at a name that the client must not see. Therefore the marker of the next page is the encrypted name. Its
length does not depend on the name, and it begins with a character that names cannot contain. All servers share the
encryption key through the store.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from zq.clock import Clock
from zq.errors import InvalidParameter
from zq.model.documents import DocumentRef
from zq.model.limits import MAX_NAME
from zq.storage.api import DocumentController

# Reference of the document with the encryption key.
KEY: Final = DocumentRef("", "marker-key", "1")
# First character of an encrypted marker.
ENCRYPTED_PREFIX: Final = "~"
# Key length in bytes.
KEY_LENGTH: Final = 32
# Length of a marker's authentication tag in bytes.
TAG_LENGTH: Final = 16
# Length of a mask block in bytes.
BLOCK_LENGTH: Final = 64


class Markers:
    """Encryption and decryption of page markers.

    The argument ``about`` identifies a listing. A marker is valid for one listing only.
    """

    def __init__(self, documents: DocumentController, clock: Clock, max_name_length: int = MAX_NAME) -> None:
        self._documents = documents
        self._clock = clock
        self._length = max_name_length

    def seal(self, about: str, name: str) -> str:
        """Encrypt ``name``, the last name of a page, and return the result as the marker of the next page."""
        key, plain = self._key(), name.encode().ljust(self._length, b"\0")
        tag = _tag(key, about, plain)
        return ENCRYPTED_PREFIX + urlsafe_b64encode(tag + _masked(key, tag, plain)).decode().rstrip("=")

    def open(self, about: str, marker: str) -> str:
        """Decrypt the marker and return the name at which the page ended. Return an unencrypted marker unchanged.

        Raises ``InvalidParameter`` if the marker is not valid for the listing.
        """
        if not marker.startswith(ENCRYPTED_PREFIX):
            return marker
        try:
            sealed = urlsafe_b64decode(marker[1:].encode("ascii") + b"==")
        except ValueError:
            sealed = b""
        if len(sealed) == TAG_LENGTH + self._length:
            key, tag = self._key(), sealed[:TAG_LENGTH]
            plain = _masked(key, tag, sealed[TAG_LENGTH:])
            if compare_digest(tag, _tag(key, about, plain)):
                return plain.rstrip(b"\0").decode()
        raise InvalidParameter("marker is not valid for this listing; use the marker in the link to the next page.")

    def _key(self) -> bytes:
        while (document := self._documents.get(KEY, self._clock.now())) is None:
            self._documents.put(KEY, os.urandom(KEY_LENGTH), self._clock.now(), expected="")
        return document.value


def _tag(key: bytes, about: str, plain: bytes) -> bytes:
    return blake2b(plain + about.encode(), digest_size=TAG_LENGTH, key=key, person=b"marker tag").digest()


def _masked(key: bytes, tag: bytes, text: bytes) -> bytes:
    """Return ``text`` XOR a mask derived from ``tag``. The function is its own inverse."""
    seeds = (tag + b"\1" * at for at in range(-(-len(text) // BLOCK_LENGTH)))
    mask = b"".join(blake2b(seed, digest_size=BLOCK_LENGTH, key=key, person=b"marker mask").digest() for seed in seeds)
    return bytes(one ^ other for one, other in zip(text, mask, strict=False))
