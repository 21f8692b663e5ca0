# SPDX-License-Identifier: Apache-2.0
"""Bodies that are encrypted in the store, each by itself (contract 7.9).

A sealed body begins with a byte that no JSON text begins with, so that nobody can post what is taken for one, and each
message tells itself whether it is sealed. Then follow the length of the master key's id, the id, 12 random bytes, and
the body as AES-256-GCM has encrypted it, with its tag of 16 bytes. The tag covers the project and the message's id,
too: a body that was put into another message's place cannot be opened.
"""

import logging
import os
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachetools import FIFOCache
from msgspec import structs

from zq import wire
from zq.errors import MessageUnreadable, Unavailable
from zq.events import NO_EVENTS, Events
from zq.model import HistoryEntry, Message, Messages

LOG = logging.getLogger(__name__)
# The first byte of a sealed body: the version of the form. JSON begins with a blank, a bracket, a quote, a digit, a
# minus sign or a letter.
MARK: Final = b"\x01"
NONCE: Final = 12
TAG: Final = 16
# What the keys of projects are derived for.
LABEL: Final = b"zq message bodies 1"
# Keys of projects that one process remembers.
MOST: Final = 10_000
# Seconds after which a message is ready again that was claimed or popped and could not be opened.
SET_ASIDE: Final = 60
NO_KEY: Final = "This server cannot encrypt what this queue stores: it has no message_encryption_key_file."
UNREADABLE: Final = "The message's body is encrypted, and cannot be opened with the keys of this server."


class Sealing:
    """Seals and opens bodies. ``keys``: master keys of 32 bytes by their ids; the first one seals, all open."""

    def __init__(self, keys: Mapping[str, bytes] | None = None, events: Events = NO_EVENTS) -> None:
        self._events = events
        self._lock = threading.Lock()
        self.replace(keys or {})

    def replace(self, keys: Mapping[str, bytes]) -> None:
        """Use these keys from now on."""
        self._keys = dict(keys)
        # By the master key itself: under an id may be another one tomorrow.
        self._ciphers: FIFOCache[tuple[bytes, str], Any] = FIFOCache(MOST)

    @property
    def enabled(self) -> bool:
        """Whether there is a key to seal with."""
        return bool(self._keys)

    def seal(self, project: str, id: str, body: bytes) -> bytes:
        """The body as it is stored for the message of this id. Raises ``Unavailable`` if there is no key."""
        key, master = next(iter(self._keys.items()), ("", b""))
        if not master:
            raise Unavailable(NO_KEY)
        nonce = os.urandom(NONCE)
        sealed: bytes = self._cipher(master, project).encrypt(nonce, body, _bound_to(key, project, id))
        return MARK + bytes([len(key)]) + key.encode() + nonce + sealed

    def open(self, project: str, id: str, body: bytes) -> bytes:
        """The body as it was posted, whether it is sealed or not. Raises ``MessageUnreadable``."""
        if body[:1] != MARK:
            return body
        end = 2 + body[1] if len(body) > 1 else 0
        key = body[2:end].decode("ascii", "replace")
        master = self._keys.get(key)
        if master is None or len(body) < end + NONCE + TAG:
            raise self._failed(id, key)
        from cryptography.exceptions import InvalidTag

        nonce, sealed = body[end : end + NONCE], body[end + NONCE :]
        try:
            opened: bytes = self._cipher(master, project).decrypt(nonce, sealed, _bound_to(key, project, id))
        except InvalidTag as error:
            raise self._failed(id, key) from error
        return opened

    def stored(self, project: str, id: str, body: bytes, *, seals: bool, checksum: bool) -> tuple[bytes, str]:
        """The body as it is stored, and the checksum of that, "" without (contract 7.10)."""
        if not seals:
            return body, wire.checksum(body) if checksum else ""
        sealed = self.seal(project, id, body)
        return sealed, wire.checksum(b'"' + b64encode(sealed) + b'"') if checksum else ""

    def opened(self, project: str, messages: Messages) -> Messages:
        """The messages with their bodies as they were posted; those that cannot be opened are left out."""
        if not [1 for message in messages if message.body[:1] == MARK]:
            return messages
        return [shown for message in messages if (shown := self.opened_or_none(project, message)) is not None]

    def opened_or_none(self, project: str, message: Message) -> Message | None:
        """One message with its body as it was posted; None if that cannot be opened."""
        try:
            return self.opened_one(project, message)
        except MessageUnreadable:
            return None

    def opened_one(self, project: str, message: Message) -> Message:
        """The same. Raises ``MessageUnreadable``."""
        if not is_sealed(message):
            return message
        return structs.replace(message, body=self.open(project, message.id, message.body))

    def opened_entries(self, project: str, entries: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
        """As ``opened``, of history."""
        if not any(is_sealed(entry.message) for entry in entries):
            return entries
        shown = [(entry, self.opened_or_none(project, entry.message)) for entry in entries]
        return [structs.replace(entry, message=message) for entry, message in shown if message is not None]

    def _cipher(self, master: bytes, project: str) -> Any:
        known = self._ciphers.get((master, project))
        if known is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF

            info = LABEL + b"\x00" + project.encode()
            known = AESGCM(HKDF(SHA256(), 32, None, info).derive(master))
            with self._lock:
                self._ciphers[master, project] = known
        return known

    def _failed(self, id: str, key: str) -> MessageUnreadable:
        self._events.unreadable()
        if key in self._keys:
            LOG.error("Message %s cannot be opened: it was changed or moved in the store, or key %s was.", id, key)
        else:
            LOG.error("Message %s cannot be opened: this server has no key %.32r.", id, key)
        return MessageUnreadable(UNREADABLE)


def is_sealed(message: Message) -> bool:
    """Whether its body stands encrypted in the store."""
    return message.body[:1] == MARK


def _bound_to(key: str, project: str, id: str) -> bytes:
    """What the tag of a body covers besides the body; no part can hold the byte between them."""
    return MARK + b"\x00".join(part.encode() for part in (key, project, id))
