# SPDX-License-Identifier: Apache-2.0
"""Data keys: random keys per project that encrypt message bodies.

Data keys are stored encrypted ("wrapped") with a master key from the operator's key file. A change of the master key
rewrites only the data keys, not the messages. Each rotation adds 65 to 110 bytes to the project's document. Old data
keys stay, because stored messages and backups may need them.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.errors import Conflict, Invalid, MetadataConflict, Unavailable
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
# Maximum number of passes of ``rekey`` that look for data keys to rewrap.
MAX_PASSES: Final = 5
# Maximum number of master keys in an error message.
MAX_NAMES: Final = 5
NO_KEY: Final = "This server cannot encrypt the queue's messages: message_encryption_key_file is not set."


class ProjectKeys(Struct, frozen=True, array_like=True):
    """The stored data keys of a project by number. An entry is the id of the master key and the wrapped data key."""

    last: int
    keys: dict[int, tuple[str, bytes]]


class RekeyResult(Struct, frozen=True):
    """The result of rewrapping all data keys.

    ``master_key`` is the id of the first master key, which wraps the data keys of ``projects`` projects. ``left``
    counts the projects that still need another master key: a data key is damaged, or a server that does not use the new
    master key has created it during the rekey.
    """

    master_key: str
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
        """Wrap all data keys with the first master key, and create new data keys.

        If a project has data keys that another master key wraps, only such projects get a new data key. A repetition
        therefore completes an interrupted rekey. Otherwise, all projects get a new data key.

        A server that does not use the new master key yet may add a data key to a project that a pass has already read.
        Therefore, passes are repeated until one finds nothing to rewrap, at most ``MAX_PASSES`` times.

        Raises ``Invalid`` if there is no master key, and ``Conflict`` if a required master key is missing. In both
        cases, nothing has changed.
        """
        if not self._masters:
            raise Invalid("message_encryption_key_file is not set on this server.")
        missing: set[str] = set()
        is_rewrap = False
        for project, held in self._list():
            missing |= {id for id, _ in held.keys.values() if id not in self._masters}
            is_rewrap = is_rewrap or self._needs_rewrap(project, held)
        if missing:
            raise Conflict(
                "message_encryption_key_file lacks master keys of projects, so nothing has changed. Add the lines of "
                f"these keys: {', '.join(sorted(missing)[:MAX_NAMES])}."
            )
        for _ in range(MAX_PASSES):
            has_rotated = False
            for project, held in self._list():
                if not is_rewrap or self._needs_rewrap(project, held):
                    self._rotate(project)
                    has_rotated = True
            if not has_rotated:
                break
            is_rewrap = True
        first = next(iter(self._masters))
        needs_others = [any(id != first for id, _ in held.keys.values()) for _, held in self._list()]
        return RekeyResult(first, len(needs_others), sum(needs_others))

    def _list(self) -> Iterator[tuple[str, ProjectKeys]]:
        """Yield the projects and their data keys."""
        after: str | None = ""
        while after is not None:
            page = self._documents.list("", DATA_KEYS_KIND, "", after, PAGE_SIZE, self._clock.now())
            for document in page.items:
                yield document.ref.name, _decoder.decode(document.value)
            after = page.next if len(page.items) == PAGE_SIZE else None

    def _needs_rewrap(self, project: str, held: ProjectKeys) -> bool:
        """Return whether another master key than the first wraps a data key, and can unwrap it."""
        first = next(iter(self._masters))
        return any(
            kept[0] != first and self._unwrap(project, number, *kept) is not None for number, kept in held.keys.items()
        )

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
