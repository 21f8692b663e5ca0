# SPDX-License-Identifier: Apache-2.0
"""Markers of listings that end at a name which the caller must not see.

Such a marker is the name, sealed with a key that only the store has: every server can go on from it, and it tells a
caller neither the name nor its length. It begins with a character that no name has.
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

KEY: Final = DocumentRef("", "marker-key", "1")
SEALED: Final = "~"
# Bytes of the key, of what shows that a marker was made here, and of a piece of the mask.
KEY_LENGTH: Final = 32
TAG_LENGTH: Final = 16
PIECE: Final = 64


class Markers:
    """Seals names and opens them again. ``about``: what they were sealed for, and are good for alone."""

    def __init__(self, documents: DocumentController, clock: Clock, longest: int = MAX_NAME) -> None:
        """``longest``: characters of a name at most."""
        self._documents = documents
        self._clock = clock
        self._length = longest

    def seal(self, about: str, name: str) -> str:
        """A marker that goes on behind the name. Raises ``Unavailable``."""
        key, plain = self._key(), name.encode().ljust(self._length, b"\0")
        tag = _tag(key, about, plain)
        return SEALED + urlsafe_b64encode(tag + _masked(key, tag, plain)).decode().rstrip("=")

    def open(self, about: str, marker: str) -> str:
        """The name behind which a listing goes on: what was sealed, or the marker as it is.

        Raises ``InvalidParameter``, ``Unavailable``.
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
        """The key, which the first server that needs it makes."""
        while (document := self._documents.get(KEY, self._clock.now())) is None:
            self._documents.put(KEY, os.urandom(KEY_LENGTH), self._clock.now(), expected="")
        return document.value


def _tag(key: bytes, about: str, plain: bytes) -> bytes:
    return blake2b(plain + about.encode(), digest_size=TAG_LENGTH, key=key, person=b"marker tag").digest()


def _masked(key: bytes, tag: bytes, text: bytes) -> bytes:
    """The text under a mask that the tag chooses; masked again, it is what it was."""
    seeds = (tag + b"\1" * at for at in range(-(-len(text) // PIECE)))
    mask = b"".join(blake2b(seed, digest_size=PIECE, key=key, person=b"marker mask").digest() for seed in seeds)
    return bytes(one ^ other for one, other in zip(text, mask, strict=False))
