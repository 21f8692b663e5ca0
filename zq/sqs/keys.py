# SPDX-License-Identifier: Apache-2.0
"""Access keys. An access key has an id, which identifies the caller, and a secret, which signs requests.

Each key is stored in two documents, which expire with the key:

    ("", "sqs-key", id)        the key and its secret, as JSON
    (project, "sqs-key", id)   an empty index entry for listings, written first and deleted last

The server needs the secret to verify signatures, so a stored hash is not enough. Unless the key was created with
``plain``, the secret is encrypted with AES-256-GCM under the first master key. The associated data are the key's id and
project, so an encrypted secret cannot be used in another key's document.
"""

import logging
import os
import threading
import time
from base64 import b32encode
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

import msgspec
from cachetools import FIFOCache
from msgspec import Struct, structs

from zq.auth.credentials import FailureLimit
from zq.auth.signatures import derive_key
from zq.auth.tokens import encode_base62
from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.errors import Invalid, MetadataConflict, NotFound, QuotaExceeded
from zq.model import Page, Seconds
from zq.model.documents import DocumentRef
from zq.model.quotas import PROJECT
from zq.sqs.settings import KEY_FILE
from zq.sqs.sigv4 import NO_SUCH_KEY, UNKNOWN_KEY, SignatureRejection
from zq.storage.api import DocumentController

LOG = logging.getLogger(__name__)
# Document kind.
KEY: Final = "sqs-key"
# Prefix of a key id, and number of base32 characters after the prefix.
PREFIX: Final = "ZQ"
ID_LENGTH: Final = 18
SECRET_LENGTH: Final = 40
# Label for deriving encryption keys from master keys.
LABEL: Final = "sqs keys 1"
NONCE: Final = 12
# Maximum number of keys per project.
MAX_KEYS: Final = 100
DAY: Final = 86_400
# Time for which a lookup is cached in seconds, and maximum number of cached lookups.
CACHE_TTL: Final = 1.0
MAX_CACHED: Final = 10_000
# Marks a key that is not in the cache.
NOT_CACHED: Final = object()
MAX_TRIES: Final = 20


class StoredKey(Struct, frozen=True, omit_defaults=True):
    """The stored form of an access key.

    Args:
        secret: The unencrypted secret; "" if the secret is encrypted.
        actions: The permitted operations; None = all.
        expires: The expiry time; None = never.
    """

    project: str
    created: Seconds
    secret: str = ""
    sealed: bytes = b""
    master: str = ""
    actions: list[str] | None = None
    disabled: bool = False
    expires: Seconds | None = None


class SqsKey(NamedTuple):
    """An access key without its secret."""

    id: str
    stored: StoredKey


class NewKey(NamedTuple):
    """A new access key and its secret."""

    key: SqsKey
    secret: str


class ValidKey(Struct, frozen=True):
    """A valid access key with its decrypted secret. ``actions`` are the permitted operations; None = all."""

    project: str
    actions: frozenset[str] | None
    secret: str
    expires: Seconds

    def is_valid(self, now: Seconds) -> bool:
        """Return whether the key has not expired."""
        return now < self.expires


class SqsKeys:
    """The access keys of all projects.

    The first master key encrypts new secrets. To decrypt a secret, the server uses the master key that encrypted it.
    """

    def __init__(self, documents: DocumentController, clock: Clock, masters: Mapping[str, bytes]) -> None:
        self._documents = documents
        self._clock = clock
        self._masters = dict(masters)

    def replace(self, masters: Mapping[str, bytes]) -> None:
        self._masters = dict(masters)

    def create(
        self, project: str, actions: Sequence[str] | None = None, days: int | None = None, plain: bool = False
    ) -> NewKey:
        """Create and store an access key.

        Raises ``QuotaExceeded`` if the project has ``MAX_KEYS`` access keys. Raises ``Invalid`` if ``plain`` is false
        and no master key is configured.

        Args:
            actions: The permitted operations; None = all.
            days: The lifetime in days; None = unlimited.
        """
        now = self._clock.now()
        id = PREFIX + b32encode(os.urandom(12)).decode()[:ID_LENGTH]
        secret = encode_base62(int.from_bytes(os.urandom(32)), SECRET_LENGTH)
        stored = StoredKey(
            project=project,
            created=now,
            actions=None if actions is None else sorted(set(actions)),
            expires=None if days is None else now + days * DAY,
        )
        if plain:
            stored = structs.replace(stored, secret=secret)
        else:
            sealed, master = self._encrypt(id, project, secret)
            stored = structs.replace(stored, sealed=sealed, master=master)
        if len(self._documents.list(project, KEY, "", "", MAX_KEYS, now).items) >= MAX_KEYS:
            raise QuotaExceeded(f"The project has {MAX_KEYS} SQS access keys, the maximum. Delete a key first.")
        self._documents.put(DocumentRef("", PROJECT, project), b"{}", now, expected="")
        self._documents.put(DocumentRef(project, KEY, id), b"{}", now, expires=stored.expires)
        self._documents.put(DocumentRef("", KEY, id), msgspec.json.encode(stored), now, expires=stored.expires)
        return NewKey(SqsKey(id, stored), secret)

    def get(self, id: str) -> SqsKey:
        """Return the key with the given id. Raises ``NotFound``."""
        document = self._documents.get(DocumentRef("", KEY, id), self._clock.now())
        if document is None:
            raise NotFound("There is no SQS access key with this id.")
        return SqsKey(id, _decode(document.value))

    def list(self, project: str, after: str, limit: int) -> Page[SqsKey]:
        """Return a page of the project's keys, sorted by id. An empty ``project`` lists the keys of all projects."""
        page = self._documents.list(project, KEY, "", after, limit, self._clock.now())
        if not project:
            return Page([SqsKey(entry.ref.name, _decode(entry.value)) for entry in page.items], page.next)
        keys = []
        for entry in page.items:
            try:
                keys.append(self.get(entry.ref.name))
            except NotFound:  # the key is just being created or deleted
                continue
        return Page(keys, page.next)

    def disable(self, id: str, disabled: bool = True) -> SqsKey:
        """Disable or enable the key. All servers apply the change within a second.

        Raises ``NotFound`` if there is no key with this id, and ``MetadataConflict`` if concurrent changes prevent the
        update.
        """
        for _ in range(MAX_TRIES):
            now = self._clock.now()
            document = self._documents.get(DocumentRef("", KEY, id), now)
            if document is None:
                raise NotFound("There is no SQS access key with this id.")
            stored = structs.replace(_decode(document.value), disabled=disabled)
            value, version = msgspec.json.encode(stored), document.version
            if self._documents.put(document.ref, value, now, expected=version, expires=stored.expires):
                return SqsKey(id, stored)
        raise MetadataConflict("The access key was changed concurrently. Try again.")

    def delete(self, id: str) -> None:
        """Delete the key. All servers reject it within a second. Raises ``NotFound`` if no key has this id."""
        project, now = self.get(id).stored.project, self._clock.now()
        for owner in ("", project):
            self._documents.delete(DocumentRef(owner, KEY, id), now)

    def find_valid(self, id: str) -> ValidKey | None:
        """Return the decrypted key, or None if the key is missing, disabled, expired or cannot be decrypted."""
        now = self._clock.now()
        document = self._documents.get(DocumentRef("", KEY, id), now)
        if document is None:
            return None
        stored = _decode(document.value)
        secret = "" if stored.disabled else stored.secret or self._decrypt(id, stored)
        actions = None if stored.actions is None else frozenset(stored.actions)
        holder = ValidKey(stored.project, actions, secret, inf if stored.expires is None else stored.expires)
        return holder if secret and holder.is_valid(now) else None

    def _encrypt(self, id: str, project: str, secret: str) -> tuple[bytes, str]:
        if not self._masters:
            raise Invalid(
                f"The secret cannot be encrypted, because {KEY_FILE} is not set. Set this option, or send "
                '"plain": true to store the secret unencrypted.'
            )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        master, key = next(iter(self._masters.items()))
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(derive_key(key, LABEL)).encrypt(
            nonce, secret.encode(), _associated_data(id, project)
        ), master

    def _decrypt(self, id: str, stored: StoredKey) -> str:
        """Decrypt the secret. If that fails, log an error and return ""."""
        key, sealed = self._masters.get(stored.master), stored.sealed
        if key is not None:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            try:
                associated = _associated_data(id, stored.project)
                return AESGCM(derive_key(key, LABEL)).decrypt(sealed[:NONCE], sealed[NONCE:], associated).decode()
            except (InvalidTag, ValueError):
                pass
        LOG.error(
            "Cannot decrypt the secret of access key %s: it was changed, or %s lacks the master key %.32r.",
            id,
            KEY_FILE,
            stored.master,
        )
        return ""


class SqsKeyLookup:
    """A cache that keeps each access key for one second. Failed lookups are rate-limited per client address."""

    def __init__(self, keys: SqsKeys, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known = ReadThroughCache(keys.find_valid, MAX_CACHED, CACHE_TTL, monotonic)
        # Ids of keys that were valid at their last lookup. The rate limit does not apply to them.
        self._valid: FIFOCache[str, None] = FIFOCache(MAX_CACHED)
        self.failures = FailureLimit(monotonic)

    def cached_validity(self, id: str) -> bool | None:
        """Return whether the cached key is valid, or None if the key is not cached."""
        found = self._known.peek(id, NOT_CACHED)
        return None if found is NOT_CACHED else found is not None

    def find(self, id: str, peer: str) -> ValidKey:
        """Return the valid key with this id.

        Raises ``SignatureRejection`` if there is no valid key; this counts as a failure of the client address ``peer``.
        Raises ``TooManyRequests`` if ``peer`` has too many failures.
        """
        if self._known.peek(id, NOT_CACHED) is NOT_CACHED and id not in self._valid:
            self.failures.check(peer)
        found = self._known.get(id)
        if found is None or not found.is_valid(self._clock.now()):
            with self._lock:
                self._valid.pop(id, None)
            self.failures.count(peer)
            raise SignatureRejection(UNKNOWN_KEY, NO_SUCH_KEY)
        if id not in self._valid:
            with self._lock:
                self._valid[id] = None
        return found


_decode: Final = msgspec.json.Decoder(StoredKey).decode


def _associated_data(id: str, project: str) -> bytes:
    return f"{id}\x00{project}".encode()
