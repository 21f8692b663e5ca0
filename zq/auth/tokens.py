# SPDX-License-Identifier: Apache-2.0
"""The strategy ``token``: zq's own tokens, which are stored as documents. The secret of a token is not stored.

Format of a token:

    zq_<id>_<secret>_<crc>     10, 43 and 6 characters of 0-9 A-Z a-z. The CRC-32 covers zq_<id>_<secret>.

Documents, by (project, kind, name):

    ("", "token", id)          the token with the SHA-256 of its secret, in JSON
    (project, "token", id)     index entry for listings, written before the token and deleted after it
    ("", "token-admin", id)    index entry of an administrator token, which belongs to no project
    ("", "token-used", id)     hour of the last use
    ("", "token-revoked", id)  mark of a revoked or rotated administrator token; never expires
    ("", "token-denied", jti)  mark of a revoked JSON Web Token

The first four expire with the token, the last one after the maximum lifetime of a JSON Web Token.
"""

import hashlib
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from hmac import compare_digest
from typing import Final, NamedTuple

import msgspec
from cachetools import FIFOCache
from msgspec import Struct

from zq.clock import Clock
from zq.errors import NotFound, QuotaExceeded, Unavailable
from zq.model import Page, Seconds
from zq.model.documents import Document, DocumentRef
from zq.model.identity import ADMIN, MEMBER, Identity
from zq.model.quotas import PROJECT
from zq.storage.api import DocumentController

# Kind of the documents with tokens, and of the index entries of projects.
KIND: Final = "token"
ADMINS: Final = "token-admin"
REVOKED: Final = "token-revoked"
USED: Final = "token-used"
# Kind of the documents that mark revoked JSON Web Tokens.
DENIED: Final = "token-denied"
ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 10
SECRET_LENGTH: Final = 43
CRC_LENGTH: Final = 6
FORM: Final = re.compile(r"(zq_([0-9A-Za-z]{10})_([0-9A-Za-z]{43}))_([0-9A-Za-z]{6})", re.ASCII)
TOKEN_ID: Final = re.compile(r"[0-9A-Za-z]{10}", re.ASCII)
# Seconds for which a valid token is cached.
CACHE_TTL: Final = 5.0
# Seconds after which a process records the use of a token again.
USE_INTERVAL: Final = 3600.0
# Seconds after which a rotated token expires.
ROTATION_PERIOD: Final = 86400
# Seconds in a day.
DAY: Final = 86400
# Default lifetime of a token in days.
DEFAULT_DAYS: Final = 90
# Default maximum number of tokens of a project, and maximum number of administrator tokens.
MAX_TOKENS: Final = 100
# Number of administrator tokens read at a time.
PAGE_SIZE: Final = 100


class StoredToken(Struct, frozen=True):
    """A token as stored. ``hash`` is the hexadecimal SHA-256 of the secret."""

    hash: str
    project: str
    user: str
    name: str
    roles: list[str]
    scopes: list[str] | None
    created: Seconds
    expires: Seconds
    by: str


class Token(NamedTuple):
    """A token with its id. ``used`` is the hour of the last use, ``None`` if the token was never used."""

    id: str
    stored: StoredToken
    used: Seconds | None = None


class NewToken(NamedTuple):
    """A new token and its text, which contains the secret and cannot be retrieved later."""

    token: Token
    text: str


class Grant(Struct, frozen=True, kw_only=True):
    """The properties of a new token.

    Attributes:
        roles: The roles of the token. If empty, the token gets the member role.
        days: Lifetime in days, capped at the maximum that the server allows.
        expires: Latest expiry time; ``None`` = only ``days`` limits the lifetime.
    """

    project: str
    name: str = ""
    user: str = ""
    roles: Sequence[str] = ()
    scopes: Sequence[str] | None = None
    days: int = DEFAULT_DAYS
    expires: Seconds | None = None
    by: str = ""


def encode_base62(number: int, length: int) -> str:
    """Return the last ``length`` digits of a number in base 62."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def format_token(id: str, secret: str) -> str:
    text = f"zq_{id}_{secret}"
    return f"{text}_{encode_base62(zlib.crc32(text.encode()), CRC_LENGTH)}"


def parse_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token; ``None`` if its format or checksum is not valid."""
    found = FORM.fullmatch(text)
    if found is None or encode_base62(zlib.crc32(found[1].encode()), CRC_LENGTH) != found[4]:
        return None
    return found[2], found[3]


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret in hex."""
    return hashlib.sha256(secret.encode()).hexdigest()


def default_max_tokens(_project: str) -> int:
    """Return the maximum number of tokens of a project on a server without quotas."""
    return MAX_TOKENS


class Tokens:
    """The tokens of all projects.

    An administrator token belongs to no project. It is not in the listing of a project's tokens and does not count
    against a project's quota.

    Args:
        denied_for: Retention of revocation marks in seconds; at least the maximum lifetime of a JSON Web Token.
    """

    def __init__(
        self,
        documents: DocumentController,
        clock: Clock,
        max_days: int = 366,
        denied_for: int = 86460,
        max_tokens: Callable[[str], int] = default_max_tokens,
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._max_tokens = max_tokens
        self._denied_for = denied_for
        self._creating = threading.Lock()
        """Held while a token is counted and stored, so that concurrent creations do not reject each other."""
        self.max_days = max_days

    def create(self, grant: Grant, secret: str = "", id: str = "") -> NewToken:
        """Create a token. An empty ``id`` or ``secret`` is replaced by a random one. Raises ``QuotaExceeded``."""
        now = self._clock.now()
        id = id or encode_base62(int.from_bytes(os.urandom(16)), ID_LENGTH)
        secret = secret or encode_base62(int.from_bytes(os.urandom(32)), SECRET_LENGTH)
        expires = now + min(grant.days, self.max_days) * DAY
        stored = StoredToken(
            hash=hash_secret(secret),
            project=grant.project,
            user=grant.user,
            name=grant.name,
            roles=sorted(set(grant.roles)) or [MEMBER],
            scopes=None if grant.scopes is None else list(grant.scopes),
            created=now,
            expires=expires if grant.expires is None else min(expires, grant.expires),
            by=grant.by,
        )
        with self._creating:
            self._put(id, stored, now)
        return NewToken(Token(id, stored), format_token(id, secret))

    def get(self, id: str, project: str | None = None) -> Token:
        """Return a token of the project, or of any project if ``project`` is ``None``. Raises ``NotFound``."""
        now = self._clock.now()
        stored = self._read(id, now)
        if stored is None or not _belongs_to(stored, project):
            raise NotFound("There is no token with this id.")
        used = self._documents.get(DocumentRef("", USED, id), now)
        return Token(id, stored, None if used is None else msgspec.json.decode(used.value, type=float))

    def list(self, project: str, after: str, limit: int) -> Page[Token]:
        """Return a page of tokens with ids greater than ``after``. An empty ``project`` means all projects."""
        page = self._documents.list(project, KIND, "", after, limit, self._clock.now())
        tokens = []
        for entry in page.items:
            try:
                tokens.append(self.get(entry.ref.name, project or None))
            except NotFound:  # the token is being created or deleted
                continue
        return Page(tokens, page.next)

    def revoke(self, id: str, project: str | None = None) -> bool:
        """Delete the token, so that all servers reject it within seconds. Return ``False`` if it does not exist."""
        now = self._clock.now()
        stored = self._read(id, now)
        if stored is None or not _belongs_to(stored, project):
            return False
        self._mark_revoked(id, stored, now)
        for ref in (DocumentRef("", KIND, id), DocumentRef("", USED, id), _index(id, stored)):
            self._documents.delete(ref, now)
        return True

    def deny(self, jti: str) -> None:
        """Revoke a JSON Web Token by its id. All servers reject it within seconds."""
        now = self._clock.now()
        self._documents.put(DocumentRef("", DENIED, jti), b"{}", now, expires=now + self._denied_for)

    def rotate(self, id: str, project: str | None = None, by: str = "", expires: Seconds | None = None) -> NewToken:
        """Create a token with the rights and lifetime of the old one, and let the old one expire within a day.

        Raises ``NotFound`` or ``QuotaExceeded``.

        Args:
            by: Creator of the new token; "" = the creator of the old token.
            expires: Latest expiry time of the new token; ``None`` = no limit.
        """
        old = self.get(id, project).stored
        days = max(1, round((old.expires - old.created) / DAY))
        twin = self.create(
            Grant(
                project=old.project,
                name=old.name,
                user=old.user,
                roles=old.roles,
                scopes=old.scopes,
                days=days,
                expires=expires,
                by=by or old.by,
            )
        )
        self._expire_within_a_day(id)
        return twin

    def _expire_within_a_day(self, id: str) -> None:
        """Let the token expire within a day, unless it is revoked concurrently."""
        ref = DocumentRef("", KIND, id)
        now = self._clock.now()
        while (document := self._documents.get(ref, now)) is not None:
            stored = _stored(document)
            shorter = msgspec.structs.replace(stored, expires=min(stored.expires, now + ROTATION_PERIOD))
            value = msgspec.json.encode(shorter)
            if self._documents.put(ref, value, now, expected=document.version, expires=shorter.expires):
                self._mark_revoked(id, stored, now)
                return

    def _mark_revoked(self, id: str, stored: StoredToken, now: Seconds) -> None:
        if ADMIN in stored.roles:
            self._documents.put(DocumentRef("", REVOKED, id), b"{}", now)

    def was_revoked(self, text: str) -> bool:
        """Return whether ``text`` is an administrator token that was revoked or rotated."""
        parts = parse_token(text)
        return (
            parts is not None and self._documents.get(DocumentRef("", REVOKED, parts[0]), self._clock.now()) is not None
        )

    def has_admin(self) -> bool:
        """Return whether an administrator token exists."""
        after: str | None = ""
        while after is not None:
            now = self._clock.now()
            page = self._documents.list("", ADMINS, "", after, PAGE_SIZE, now)
            if any(self._read(entry.ref.name, now) is not None for entry in page.items):
                return True
            after = page.next
        return False

    def adopt(self, text: str, project: str) -> bool:
        """Store the bootstrap token ``text`` as an administrator token. Return whether it was stored.

        The token is not stored if an administrator token exists, or if this token was revoked or rotated. Raises
        ``ValueError`` if ``text`` is not a token.
        """
        parts = parse_token(text)
        if parts is None:
            raise ValueError("no token")
        if self.was_revoked(text) or self.has_admin():
            return False
        grant = Grant(project=project, name="bootstrap", roles=[ADMIN], days=self.max_days, by="bootstrap_token_file")
        self.create(grant, parts[1], parts[0])
        return True

    def _read(self, id: str, now: Seconds) -> StoredToken | None:
        if TOKEN_ID.fullmatch(id) is None:
            return None
        document = self._documents.get(DocumentRef("", KIND, id), now)
        return None if document is None else _stored(document)

    def _put(self, id: str, stored: StoredToken, now: Seconds) -> None:
        """Store the token. Raises ``QuotaExceeded`` if the token limit is reached.

        The method writes the index entry, then counts the entries, and undoes the write if there are too many.
        Concurrent creations therefore never exceed the limit, but all of them may fail.
        """
        index, max_tokens = _index(id, stored), MAX_TOKENS
        refusal = QuotaExceeded(f"There may be at most {max_tokens} administrator tokens. Revoke one first.")
        if index.project:
            max_tokens = self._max_tokens(stored.project)
            refusal = QuotaExceeded(f"The project may have at most {max_tokens} tokens. Revoke one first.", "tokens")
        if max_tokens and self._count(index, max_tokens, now) >= max_tokens:
            raise refusal
        if index.project:
            self._documents.put(DocumentRef("", PROJECT, stored.project), b"{}", now, expected="")
        self._documents.put(index, b"{}", now, expires=stored.expires)
        if max_tokens and self._count(index, max_tokens + 1, now) > max_tokens:
            self._documents.delete(index, now)
            raise refusal
        self._documents.put(DocumentRef("", KIND, id), msgspec.json.encode(stored), now, expires=stored.expires)

    def _count(self, index: DocumentRef, max_tokens: int, now: Seconds) -> int:
        return len(self._documents.list(index.project, index.kind, "", "", max_tokens, now).items)


def _belongs_to(stored: StoredToken, project: str | None) -> bool:
    return project is None or (project == stored.project and ADMIN not in stored.roles)


def _index(id: str, stored: StoredToken) -> DocumentRef:
    return DocumentRef("", ADMINS, id) if ADMIN in stored.roles else DocumentRef(stored.project, KIND, id)


def _stored(document: Document) -> StoredToken:
    return msgspec.json.decode(document.value, type=StoredToken)


class TokenVerifier:
    """A verifier of zq's own tokens."""

    def __init__(
        self, documents: DocumentController, clock: Clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Monotonic time, by token id, before which no further use is recorded.
        self._next_records: FIFOCache[str, float] = FIFOCache(10_000)

    def matches(self, text: str) -> bool:
        return text.startswith("zq_")

    def verify(self, text: str) -> tuple[Identity, float] | str:
        parts = parse_token(text)
        if parts is None:
            return "The format or checksum of the token is not valid."
        id, secret = parts
        now = self._clock.now()
        document = self._documents.get(DocumentRef("", KIND, id), now)
        if document is None:
            return f"The token {id} is unknown, revoked or expired."
        stored = _stored(document)
        if not compare_digest(hash_secret(secret), stored.hash) or stored.expires <= now:
            return f"The token {id} has another secret or has expired."
        self._record_use(id, stored, now)
        identity = Identity(
            project=stored.project,
            user=stored.user,
            roles=frozenset(stored.roles),
            scopes=None if stored.scopes is None else tuple(stored.scopes),
            credential=id,
            expires=stored.expires,
        )
        return identity, min(CACHE_TTL, stored.expires - now)

    def _record_use(self, id: str, stored: StoredToken, now: Seconds) -> None:
        """Record the use of the token, at most once per ``USE_INTERVAL`` in each process."""
        moment = self._monotonic()
        with self._lock:
            if self._next_records.get(id, 0.0) > moment:
                return
            self._next_records[id] = moment + USE_INTERVAL
        hour = b"%d" % (now // 3600 * 3600)
        try:
            self._documents.put(DocumentRef("", USED, id), hour, now, expires=stored.expires)
        except Unavailable:  # the time of use is not worth failing the request
            with self._lock:
                self._next_records.pop(id, None)
