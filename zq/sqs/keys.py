# SPDX-License-Identifier: Apache-2.0
"""Access keys. An access key has an id, which requests name, and a secret, which signs them.

Each key has two documents, which expire with the key:

    ("", "sqs-key", id)        the key with its secret, as JSON
    (project, "sqs-key", id)   empty: an index entry for listings, written first and deleted last

The server needs the secret to compute signatures, so a hash of it would not suffice. The secret is sealed with
AES-256-GCM under the first master key of ``[sqs] key_file``, and opened with the master key that sealed it. The
associated data contain the key's id and project, so that a sealed secret is invalid in the document of another key. A
key that is created with ``plain`` stores its secret in plain text.
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
# The prefix of an id, and the number of characters from A-Z and 2-7 after it.
PREFIX: Final = "ZQ"
ID_LENGTH: Final = 18
SECRET_LENGTH: Final = 40
# The label with which sealing keys are derived from master keys.
LABEL: Final = "sqs keys 1"
NONCE: Final = 12
# The maximum number of keys of a project.
MOST: Final = 100
DAY: Final = 86_400
# The seconds for which a lookup is cached, and the maximum number of cached lookups.
CACHE_TTL: Final = 1.0
MAX_CACHED: Final = 10_000
TRIES: Final = 20


class Stored(Struct, frozen=True, omit_defaults=True):
    """The document of a key.

    Args:
        secret: The secret in plain text; "" if it is sealed.
        sealed: The sealed secret.
        master: The id of the master key that sealed the secret.
        actions: The operations that the key permits; None = all.
        expires: The moment of expiry; None = never.
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
    """A new key and its secret, which is shown only at creation."""

    key: SqsKey
    secret: str


class Holder(Struct, frozen=True):
    """A valid key: its project, the operations that it permits (None = all), its secret and its expiry."""

    project: str
    actions: frozenset[str] | None
    secret: str
    expires: Seconds

    def lives(self, now: Seconds) -> bool:
        """Return whether the key is unexpired at ``now``."""
        return now < self.expires


class SqsKeys:
    """The keys of all projects.

    ``masters``: the master keys of 32 bytes by id. The first one seals secrets, and all of them open secrets.
    """

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
        """Create and store a key.

        Args:
            project: The project of the key.
            actions: The operations that the key permits; None = all.
            days: The days until the key expires; None = never.
            plain: True to store the secret in plain text instead of sealing it.

        Raises ``QuotaExceeded``, and ``Invalid`` if the secret must be sealed and no master key is configured.
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
        """Return a page of the project's keys (of all keys for ""), ordered by id, after the id ``after``."""
        page = self._documents.list(project, KEY, "", after, limit, self._clock.now())
        if not project:
            return Page([SqsKey(entry.ref.name, _decode(entry.value)) for entry in page.items], page.next)
        keys = []
        for entry in page.items:
            try:
                keys.append(self.get(entry.ref.name))
            except NotFound:  # an index entry whose key was not written yet, or is deleted
                continue
        return Page(keys, page.next)

    def disable(self, id: str, disabled: bool = True) -> SqsKey:
        """Disable or enable the key. Every server applies the change within a second.

        Raises ``NotFound``, ``MetadataConflict``.
        """
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
        """Delete the key. Every server refuses it within a second. Raises ``NotFound``."""
        project, now = self.get(id).stored.project, self._clock.now()
        for owner in ("", project):
            self._documents.delete(DocumentRef(owner, KEY, id), now)

    def holder(self, id: str) -> Holder | None:
        """Read a valid key from the store.

        Return None if the key is unknown, disabled or expired, or its secret cannot be opened.
        """
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
        """Seal the secret, and return it with the id of its master key. Raises ``Invalid`` without a master key."""
        if not self._masters:
            raise Invalid(f"{OPTION} is not set: nothing seals the secret of this key. It can be made plain only.")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        master, key = next(iter(self._masters.items()))
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(derived(key, LABEL)).encrypt(nonce, secret.encode(), _aad(id, project)), master

    def _opened(self, id: str, stored: Stored) -> str:
        """Open and return the secret. If its master key is missing or does not open it, log an error and return ""."""
        key, sealed = self._masters.get(stored.master), stored.sealed
        if key is not None:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            try:
                associated = _aad(id, stored.project)
                return AESGCM(derived(key, LABEL)).decrypt(sealed[:NONCE], sealed[NONCE:], associated).decode()
            except (InvalidTag, ValueError):
                pass
        LOG.error(
            "The secret of key %s cannot be opened: it was changed, or %s lacks %.32r.", id, OPTION, stored.master
        )
        return ""


class SqsKeyLookup:
    """Looks up access keys for requests.

    Results are cached for one second, and failed lookups are rate-limited per client address.
    """

    def __init__(self, keys: SqsKeys, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._known: TTLCache[str, Holder | None] = TTLCache(MAX_CACHED, CACHE_TTL, monotonic)
        # The ids of keys that were valid at their last lookup. These are looked up again regardless of the rate limit.
        self._valid: FIFOCache[str, None] = FIFOCache(MAX_CACHED)
        self.failures = FailureLimit(monotonic)
        """The rate limit of client addresses that name invalid keys."""

    def known(self, id: str) -> bool | None:
        """Return whether the cached lookup of the key is valid; None if none is cached. Does not count failures."""
        with self._lock:
            return self._known[id] is not None if id in self._known else None

    def find(self, id: str, peer: str) -> Holder:
        """Return the valid key from the cache or the store.

        Raises ``Refusal`` for an invalid key, and counts a failure of the client address ``peer``. Also raises
        ``TooManyRequests`` and ``Unavailable``.
        """
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


def _aad(id: str, project: str) -> bytes:
    """Return the associated data with which a secret is sealed."""
    return f"{id}\x00{project}".encode()
