# SPDX-License-Identifier: Apache-2.0
"""Data keys: random keys per project that encrypt message bodies.

Data keys are stored encrypted ("wrapped") with a master key from the operator's key file. A change of the master key
rewrites only the data keys, not the messages.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.errors import Invalid, MetadataConflict, Unavailable
from zq.model.documents import Document, DocumentRef
from zq.storage.api import DocumentController
from zq.wire.answers import SafeCount

LOG = logging.getLogger(__name__)
# Kind of the documents with data keys. Each project has one document.
DATA_KEYS_KIND: Final = "data_keys"
# Key length in bytes.
KEY_SIZE: Final = 32
# Length of a random GCM nonce in bytes.
NONCE: Final = 12
# HKDF label of the wrapping keys.
LABEL: Final = b"zq data keys 1"
# Maximum number of projects in the cache.
CACHE_SIZE: Final = 10_000
# Seconds for which a project's keys are cached.
CACHE_TTL: Final = 60.0
# Maximum number of compare-and-set attempts.
MAX_ATTEMPTS: Final = 20
# Number of documents per page of ``rekey``.
PAGE_SIZE: Final = 100
NO_KEY: Final = "This server cannot encrypt the queue's messages: message_encryption_key_file is not set."


class ProjectKeys(Struct, frozen=True, array_like=True):
    """The stored data keys of a project by number. An entry is the id of the master key and the wrapped data key."""

    last: int
    keys: dict[int, tuple[str, bytes]]


class RekeyResult(Struct, frozen=True):
    """The result of rewrapping all data keys. ``left`` counts the projects with a key that no master key can unwrap."""

    projects: SafeCount
    left: SafeCount


_decoder: Final = msgspec.msgpack.Decoder(ProjectKeys)


class DataKeys:
    """The data keys of all projects. Thread-safe.

    ``masters`` are 32-byte master keys by id. The first master key wraps new data keys.
    """

    def __init__(self, documents: DocumentController, clock: Clock, masters: Mapping[str, bytes]) -> None:
        self._documents = documents
        self._clock = clock
        self._masters = dict(masters)
        self.enabled = bool(masters)
        # A project without keys is not cached, because its first key may be created at any time.
        self._ciphers = ReadThroughCache(self._read_ciphers, CACHE_SIZE, lambda known: CACHE_TTL if known[0] else 0.0)

    def replace(self, masters: Mapping[str, bytes]) -> None:
        """Replace the master keys and clear the cache."""
        self._masters, self.enabled = dict(masters), bool(masters)
        self._ciphers.clear()

    def ensure_cipher(self, project: str) -> tuple[str, Any]:
        """Return the id and cipher of the project's newest usable data key. If there is none, create one."""
        if not self._masters:
            raise Unavailable(NO_KEY)
        _, ciphers = self._ciphers.get(project)
        if not ciphers:
            _, ciphers = self._unwrap_all(project, self._rotate(project))
        newest = max(ciphers)
        return str(newest), ciphers[newest]

    def find_cipher(self, project: str, id: str) -> Any:
        """Return the cipher of a data key; ``None`` if the key does not exist or cannot be unwrapped."""
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 10 else 0
        if not self._masters or not number:
            return None
        last, ciphers = self._ciphers.get(project)
        if number > last:  # another server has created the key
            self._ciphers.forget(project)
            ciphers = self._ciphers.get(project)[1]
        return ciphers.get(number)

    def rekey(self) -> RekeyResult:
        """Rewrap all data keys, and create a new data key for each project.

        Raises ``Invalid`` if there is no master key.
        """
        if not self._masters:
            raise Invalid("message_encryption_key_file is not set on this server.")
        projects = left = 0
        after = ""
        while True:
            page = self._documents.list("", DATA_KEYS_KIND, "", after, PAGE_SIZE, self._clock.now())
            for document in page.items:
                held = self._rotate(document.ref.name)
                first = next(iter(self._masters))
                projects, left = projects + 1, left + any(master != first for master, _ in held.keys.values())
            if page.next is None or len(page.items) < PAGE_SIZE:
                return RekeyResult(projects, left)
            after = page.next

    def _read_ciphers(self, project: str) -> tuple[int, dict[int, Any]]:
        """Return the number of the newest data key, and the ciphers of all usable keys by number."""
        stored = self._stored(project)
        return self._unwrap_all(project, _decoder.decode(stored.value)) if stored else (0, {})

    def _unwrap_all(self, project: str, held: ProjectKeys) -> tuple[int, dict[int, Any]]:
        opened = {number: self._unwrap(project, number, *kept) for number, kept in held.keys.items()}
        return held.last, {number: _cipher(key) for number, key in opened.items() if key is not None}

    def _rotate(self, project: str) -> ProjectKeys:
        """Create a new data key, and rewrap the other data keys. Keys that no master key can unwrap are not changed."""
        for _ in range(MAX_ATTEMPTS):
            stored = self._stored(project)
            held = _decoder.decode(stored.value) if stored else ProjectKeys(0, {})
            keys = {number: self._rewrap(project, number, *kept) for number, kept in held.keys.items()}
            number = held.last + 1
            keys[number] = self._wrap(project, number, os.urandom(KEY_SIZE))
            new = ProjectKeys(number, keys)
            version = stored.version if stored else ""
            ref = DocumentRef("", DATA_KEYS_KIND, project)
            if self._documents.put(ref, msgspec.msgpack.encode(new), self._clock.now(), expected=version):
                self._ciphers.forget(project)
                return new
        raise MetadataConflict("The project's keys were changed concurrently. Try again.")

    def _stored(self, project: str) -> Document | None:
        return self._documents.get(DocumentRef("", DATA_KEYS_KIND, project), self._clock.now())

    def _wrap(self, project: str, number: int, key: bytes) -> tuple[str, bytes]:
        id, master = next(iter(self._masters.items()))
        nonce = os.urandom(NONCE)
        return id, nonce + _wrapping_cipher(master).encrypt(nonce, key, _associated_data(id, project, number))

    def _unwrap(self, project: str, number: int, id: str, wrapped: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        master = self._masters.get(id)
        if master is None:
            return None
        try:
            key: bytes = _wrapping_cipher(master).decrypt(
                wrapped[:NONCE], wrapped[NONCE:], _associated_data(id, project, number)
            )
        except (InvalidTag, ValueError):
            LOG.error(
                "Data key %d of a project cannot be unwrapped: it or master key %s was modified.",
                number,
                id,
            )
            return None
        return key

    def _rewrap(self, project: str, number: int, id: str, wrapped: bytes) -> tuple[str, bytes]:
        """Rewrap a data key with the first master key. Return the master key's id and the wrapped data key.

        If no master key can unwrap the data key, return ``id`` and ``wrapped`` unchanged.
        """
        key = self._unwrap(project, number, id, wrapped)
        return (id, wrapped) if key is None else self._wrap(project, number, key)


def _cipher(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _wrapping_cipher(master: bytes) -> Any:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return _cipher(HKDF(SHA256(), KEY_SIZE, None, LABEL).derive(master))


def _associated_data(id: str, project: str, number: int) -> bytes:
    return b"\x00".join(part.encode() for part in (id, project, str(number)))
