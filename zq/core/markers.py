# SPDX-License-Identifier: Apache-2.0
"""Page markers that do not reveal the name at which a page ended.

Such a marker is the name, encrypted with a key that is in the store, so that every server can read it. It reveals
neither the name nor its length. It begins with a character that names cannot contain.
"""

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

from zq.clock import Clock
from zq.errors import InvalidParameter
from zq.limits import MAX_NAME
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

# The document that holds the key.
KEY: Final = DocumentRef("", "marker-key", "1")
# First character of an encrypted marker.
SEALED: Final = "~"
# Bytes of the key.
KEY_LENGTH: Final = 32
# Bytes of the tag that authenticates a marker.
TAG_LENGTH: Final = 16
# Bytes of one block of the mask.
BLOCK_LENGTH: Final = 64


class Markers:
    """Encryption and decryption of page markers.

    A marker is valid only for the listing that the argument ``about`` identifies.
    """

    def __init__(self, documents: DocumentController, clock: Clock, max_name_length: int = MAX_NAME) -> None:
        """Use a marker length that fits names of up to ``max_name_length`` characters."""
        self._documents = documents
        self._clock = clock
        self._length = max_name_length

    def seal(self, about: str, name: str) -> str:
        """Return a marker that continues after ``name``. Raises ``Unavailable``."""
        key, plain = self._key(), name.encode().ljust(self._length, b"\0")
        tag = _tag(key, about, plain)
        return SEALED + urlsafe_b64encode(tag + _masked(key, tag, plain)).decode().rstrip("=")

    def open(self, about: str, marker: str) -> str:
        """Return the name after which the listing continues. A marker that is not encrypted is returned unchanged.

        Raises ``InvalidParameter`` if the marker was not created for this listing, ``Unavailable``.
        """
        if not marker.startswith(SEALED):
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
        raise InvalidParameter(f"marker begins with {SEALED}, but is of no link of this listing.")

    def _key(self) -> bytes:
        """Return the key; create it if the store has none."""
        while (document := self._documents.get(KEY, self._clock.now())) is None:
            self._documents.put(KEY, os.urandom(KEY_LENGTH), self._clock.now(), expected="")
        return document.value


def _tag(key: bytes, about: str, plain: bytes) -> bytes:
    return blake2b(plain + about.encode(), digest_size=TAG_LENGTH, key=key, person=b"marker tag").digest()


def _masked(key: bytes, tag: bytes, text: bytes) -> bytes:
    """Return ``text`` XOR a mask derived from ``tag``. Applied twice, it returns the original text."""
    seeds = (tag + b"\1" * at for at in range(-(-len(text) // BLOCK_LENGTH)))
    mask = b"".join(blake2b(seed, digest_size=BLOCK_LENGTH, key=key, person=b"marker mask").digest() for seed in seeds)
    return bytes(one ^ other for one, other in zip(text, mask, strict=False))
