# SPDX-License-Identifier: Apache-2.0
"""Access keys of the SQS protocol: an id that requests name, and a secret by which they are signed.

The documents, as JSON where they hold something; each expires with its key:

    ("", "sqs-key", id)        what the key is, with its secret
    (project, "sqs-key", id)   empty: the index for listings, written first and removed last

The secret must be readable, for an HMAC needs it. It is sealed with AES-256-GCM under the first key of the file
``[sqs] key_file``, and opened by whichever of them has sealed it; the tag covers id and project, so that it opens
nothing in another key's place. Only a key that was asked to be plain stands there as it is.
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
# What begins an id, and how many characters of A-Z 2-7 follow.
PREFIX: Final = "ZQ"
ID_LENGTH: Final = 18
SECRET_LENGTH: Final = 40
# What the keys that seal are derived for.
LABEL: Final = "sqs keys 1"
NONCE: Final = 12
# Keys of one project.
MOST: Final = 100
DAY: Final = 86_400
# Seconds for which a key is not looked up again, and how many are remembered.
REMEMBERED: Final = 1.0
MOST_REMEMBERED: Final = 10_000
TRIES: Final = 20


class Stored(Struct, frozen=True, omit_defaults=True):
    """A key as its document has it. ``secret``: as it is, or ``sealed`` under the key ``master`` of the file;
    ``actions``: the operations that it allows, None = all; ``expires``: None = never."""

    project: str
    created: Seconds
    secret: str = ""
    sealed: bytes = b""
    master: str = ""
    actions: list[str] | None = None
    disabled: bool = False
    expires: Seconds | None = None


class SqsKey(NamedTuple):
    """A key as it is shown, without its secret."""

    id: str
    stored: Stored


class Made(NamedTuple):
    """A new key, and the secret, which is shown this once."""

    key: SqsKey
    secret: str


class Holder(Struct, frozen=True):
    """Whom a key is of, what it allows (None = everything), by what its requests are signed, and until when."""

    project: str
    actions: frozenset[str] | None
    secret: str
    expires: Seconds

    def lives(self, now: Seconds) -> bool:
        """Whether the key has not expired."""
        return now < self.expires


class SqsKeys:
    """The keys of all projects. ``masters``: of 32 bytes by their ids; the first one seals, all open."""

    def __init__(self, documents: DocumentController, clock: Clock, masters: Mapping[str, bytes]) -> None:
        self._documents = documents
        self._clock = clock
        self._masters = dict(masters)

    def replace(self, masters: Mapping[str, bytes]) -> None:
        """Seal and open by these from now on."""
        self._masters = dict(masters)

    def create(
        self, project: str, actions: Sequence[str] | None = None, days: int | None = None, plain: bool = False
    ) -> Made:
        """Make a key, which lives for so many ``days``; None = until it is deleted.

        Raises ``QuotaExceeded``, and ``Invalid`` where nothing seals it and it is not to be ``plain``.
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
        """The key. Raises ``NotFound``."""
        document = self._documents.get(DocumentRef("", KEY, id), self._clock.now())
        if document is None:
            raise NotFound("There is no key of SQS of this id.")
        return SqsKey(id, _decode(document.value))

    def list(self, project: str, after: str, limit: int) -> Page[SqsKey]:
        """Keys of the project, or with "" of all, by their ids, behind ``after``."""
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
        """Have every server refuse the key within a second, or take it again. Raises ``NotFound``."""
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
        """End the key, on every server within a second. Raises ``NotFound``."""
        project, now = self.get(id).stored.project, self._clock.now()
        for owner in ("", project):
            self._documents.delete(DocumentRef(owner, KEY, id), now)

    def holder(self, id: str) -> Holder | None:
        """Whom the key is of; None if it is unknown, disabled, expired, or cannot be opened here."""
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
        """The sealed secret, and the id of the key of the file."""
        if not self._masters:
            raise Invalid(f"{OPTION} is not set: nothing seals the secret of this key. It can be made plain only.")
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        master, key = next(iter(self._masters.items()))
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(derived(key, LABEL)).encrypt(nonce, secret.encode(), _bound_to(id, project)), master

    def _opened(self, id: str, stored: Stored) -> str:
        """The secret; "" if no key of the file opens it, which the log tells."""
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
    """Finds keys for requests, remembers each for a second, and looks nothing up for an address that guesses."""

    def __init__(self, keys: SqsKeys, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._clock = clock
        self._lock = threading.Lock()
        self._known: TTLCache[str, Holder | None] = TTLCache(MOST_REMEMBERED, REMEMBERED, monotonic)
        # Ids of keys that were valid when they were looked up last.
        self._valid: FIFOCache[str, None] = FIFOCache(MOST_REMEMBERED)
        self.failures = FailureLimit(monotonic)
        """Of addresses: they have named keys that are not valid."""

    def known(self, id: str) -> bool | None:
        """Whether there is such a key, counting nothing; None if the store must be asked."""
        with self._lock:
            return self._known[id] is not None if id in self._known else None

    def find(self, id: str, peer: str) -> Holder:
        """Whom the key is of. Raises ``Refusal``, ``TooManyRequests``, ``Unavailable``."""
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
    """What the tag of a sealed secret covers besides."""
    return f"{id}\x00{project}".encode()
