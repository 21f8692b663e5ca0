# SPDX-License-Identifier: Apache-2.0
"""Access keys: an id that requests name, and a secret with which they are signed.

Documents, which expire with their key:

    ("", "sqs-key", id)        the key with its secret, as JSON
    (project, "sqs-key", id)   empty: an index entry for listings, written first and deleted last

The secret must be readable, because an HMAC needs it. It is sealed with AES-256-GCM under the first master key of
``[sqs] key_file``, and opened by the master key that has sealed it. The tag covers id and project, so that a sealed
secret is invalid in the document of another key. A key that is created as plain stores its secret as it is.
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
from cachetools import FIFOCache, TTLCache
from msgspec import Struct, structs

from zq.auth.credentials import FailureLimit
from zq.auth.signatures import derived
from zq.auth.tokens import encode
from zq.clock import Clock
from zq.errors import Invalid, MetadataConflict, NotFound, QuotaExceeded
from zq.model import Page, Seconds
from zq.model.documents import DocumentRef
from zq.model.quotas import PROJECT
from zq.sqs.sigv4 import NO_SUCH_KEY, UNKNOWN_KEY, Refusal
from zq.storage.api import DocumentController

LOG = logging.getLogger(__name__)
OPTION: Final = "[sqs] key_file"
# The kind of the documents.
KEY: Final = "sqs-key"
# The prefix of an id, and the number of characters from A-Z 2-7 that follow.
PREFIX: Final = "ZQ"
ID_LENGTH: Final = 18
SECRET_LENGTH: Final = 40
# The purpose for which sealing keys are derived from master keys.
LABEL: Final = "sqs keys 1"
NONCE: Final = 12
# Keys of one project.
MOST: Final = 100
DAY: Final = 86_400
# Seconds for which a key is cached, and the size of the cache.
REMEMBERED: Final = 1.0
MOST_REMEMBERED: Final = 10_000
TRIES: Final = 20


class Stored(Struct, frozen=True, omit_defaults=True):
    """The document of a key.

    Args:
        secret: The plain secret; "" if it is ``sealed`` under the master key ``master``.
        actions: The operations that the key allows; None = all.
        expires: None = never.
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
    """A key without its secret."""

    id: str
    stored: Stored


class Made(NamedTuple):
    """A new key and its secret, which only its creator sees."""

    key: SqsKey
    secret: str


class Holder(Struct, frozen=True):
    """A valid key: its project, the operations that it allows (None = all), its secret and its expiry."""

    project: str
    actions: frozenset[str] | None
    secret: str
    expires: Seconds

    def lives(self, now: Seconds) -> bool:
        """Return whether the key has not expired."""
        return now < self.expires


class SqsKeys:
    """The keys of all projects. ``masters``: master keys of 32 bytes by id; the first one seals, all of them open."""

    def __init__(self, documents: DocumentController, clock: Clock, masters: Mapping[str, bytes]) -> None:
        self._documents = documents
        self._clock = clock
        self._masters = dict(masters)

    def replace(self, masters: Mapping[str, bytes]) -> None:
        """Replace the master keys."""
        self._masters = dict(masters)

    def create(
        self, project: str, actions: Sequence[str] | None = None, days: int | None = None, plain: bool = False
    ) -> Made:
        """Create a key that expires in ``days``; None = never.

        Raises ``QuotaExceeded``, and ``Invalid`` if there is no master key and the secret must not be ``plain``.
        """
        now = self._clock.now()
        id = PREFIX + b32encode(os.urandom(12)).decode()[:ID_LENGTH]
        secret = encode(int.from_bytes(os.urandom(32)), SECRET_LENGTH)
        stored = Stored(
            project=project,
            created=now,
            actions=None if actions is None else sorted(set(actions)),
            expires=None if days is None else now + days * DAY,
        )
        if plain:
            stored = structs.replace(stored, secret=secret)
        else:
            sealed, master = self._sealed(id, project, secret)
            stored = structs.replace(stored, sealed=sealed, master=master)
        if len(self._documents.list(project, KEY, "", "", MOST, now).items) >= MOST:
            raise QuotaExceeded(f"The project may have {MOST} keys of SQS; delete one first.")
        self._documents.put(DocumentRef("", PROJECT, project), b"{}", now, expected="")
        self._documents.put(DocumentRef(project, KEY, id), b"{}", now, expires=stored.expires)
        self._documents.put(DocumentRef("", KEY, id), msgspec.json.encode(stored), now, expires=stored.expires)
        return Made(SqsKey(id, stored), secret)

    def get(self, id: str) -> SqsKey:
        """Return the key. Raises ``NotFound``."""
        document = self._documents.get(DocumentRef("", KEY, id), self._clock.now())
        if document is None:
            raise NotFound("There is no key of SQS of this id.")
        return SqsKey(id, _decode(document.value))

    def list(self, project: str, after: str, limit: int) -> Page[SqsKey]:
        """Return keys of the project (of all projects for ""), ordered by id, from ``after`` on."""
        page = self._documents.list(project, KEY, "", after, limit, self._clock.now())
        if not project:
            return Page([SqsKey(entry.ref.name, _decode(entry.value)) for entry in page.items], page.next)
        keys = []
        for entry in page.items:
            try:
                keys.append(self.get(entry.ref.name))
            except NotFound:  # an index entry whose key was not written, or is gone
                continue
        return Page(keys, page.next)

    def disable(self, id: str, disabled: bool = True) -> SqsKey:
        """Disable or enable the key on every server within a second. Raises ``NotFound``."""
        for _ in range(TRIES):
            now = self._clock.now()
            document = self._documents.get(DocumentRef("", KEY, id), now)
            if document is None:
                raise NotFound("There is no key of SQS of this id.")
            stored = structs.replace(_decode(document.value), disabled=disabled)
            value, version = msgspec.json.encode(stored), document.version
            if self._documents.put(document.ref, value, now, expected=version, expires=stored.expires):
                return SqsKey(id, stored)
        raise MetadataConflict("Others change the key at the same time. Try again.")

    def delete(self, id: str) -> None:
        """Delete the key; every server refuses it within a second. Raises ``NotFound``."""
        project, now = self.get(id).stored.project, self._clock.now()
        for owner in ("", project):
            self._documents.delete(DocumentRef(owner, KEY, id), now)

    def holder(self, id: str) -> Holder | None:
        """Return the holder of the key; None if it is unknown, disabled or expired, or its secret cannot be opened."""
        now = self._clock.now()
        document = self._documents.get(DocumentRef("", KEY, id), now)
        if document is None:
            return None
        stored = _decode(document.value)
        secret = "" if stored.disabled else stored.secret or self._opened(id, stored)
        actions = None if stored.actions is None else frozenset(stored.actions)
        holder = Holder(stored.project, actions, secret, inf if stored.expires is None else stored.expires)
        return holder if secret and holder.lives(now) else None

    def _sealed(self, id: str, project: str, secret: str) -> tuple[bytes, str]:
        """Return the sealed secret, and the id of its master key."""
        if not self._masters:
            raise Invalid(f"{OPTION} is not set: nothing seals the secret of this key. It can be made plain only.")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        master, key = next(iter(self._masters.items()))
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(derived(key, LABEL)).encrypt(nonce, secret.encode(), _bound_to(id, project)), master

    def _opened(self, id: str, stored: Stored) -> str:
        """Return the secret. If no master key opens it, log that and return ""."""
        key, sealed = self._masters.get(stored.master), stored.sealed
        if key is not None:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            try:
                bound = _bound_to(id, stored.project)
                return AESGCM(derived(key, LABEL)).decrypt(sealed[:NONCE], sealed[NONCE:], bound).decode()
            except (InvalidTag, ValueError):
                pass
        LOG.error(
            "The secret of key %s cannot be opened: it was changed, or %s lacks %.32r.", id, OPTION, stored.master
        )
        return ""


class SqsKeyLookup:
    """The lookup of keys for requests, with a cache of a second and a limit on addresses that guess."""

    def __init__(self, keys: SqsKeys, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._known: TTLCache[str, Holder | None] = TTLCache(MOST_REMEMBERED, REMEMBERED, monotonic)
        # Ids of keys that were valid when they were looked up last.
        self._valid: FIFOCache[str, None] = FIFOCache(MOST_REMEMBERED)
        self.failures = FailureLimit(monotonic)
        """The failures of addresses that named invalid keys."""

    def known(self, id: str) -> bool | None:
        """Return whether the key is valid, by the cache alone; None if it is not cached. Counts no failure."""
        with self._lock:
            return self._known[id] is not None if id in self._known else None

    def find(self, id: str, peer: str) -> Holder:
        """Return the holder of the key. Raises ``Refusal``, ``TooManyRequests``, ``Unavailable``."""
        with self._lock:
            found, known, was_valid = self._known.get(id), id in self._known, id in self._valid
        if not known:
            if not was_valid:
                self.failures.check(peer)
            found = self._keys.holder(id)
            with self._lock:
                self._known[id] = found
                self._valid.pop(id, None)
                if found is not None:
                    self._valid[id] = None
        if found is None or not found.lives(self._clock.now()):
            self.failures.count(peer)
            raise Refusal(UNKNOWN_KEY, NO_SUCH_KEY)
        return found


_decode: Final = msgspec.json.Decoder(Stored).decode


def _bound_to(id: str, project: str) -> bytes:
    """Return the associated data of a sealed secret."""
    return f"{id}\x00{project}".encode()
