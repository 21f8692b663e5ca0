# SPDX-License-Identifier: Apache-2.0
"""The strategy ``token``: tokens of our own, which the store holds without their secrets.

    zq_<id>_<secret>_<crc>     10, 43 and 6 characters of 0-9 A-Z a-z; crc: CRC-32 of all before its underscore

The documents, as JSON where they hold something; each expires with its token:

    ("", "token", id)          what the token is, with the SHA-256 of its secret
    (project, "token", id)     empty: the index for listings, written first and removed last
    ("", "token-admin", id)    the same of administrators' tokens, which are the deployment's and no project's
    ("", "token-used", id)     when it was used, to the hour
    ("", "token-revoked", id)  empty, and stays: an administrator's token of this id was revoked, or rotated
    ("", "token-denied", jti)  empty: a JSON Web Token of this id was revoked
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

KIND: Final = "token"
ADMINS: Final = "token-admin"
REVOKED: Final = "token-revoked"
USED: Final = "token-used"
# Of documents whose names are ids of JSON Web Tokens that were revoked.
DENIED: Final = "token-denied"
ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH: Final = 10
SECRET_LENGTH: Final = 43
CRC_LENGTH: Final = 6
FORM: Final = re.compile(r"(zq_([0-9A-Za-z]{10})_([0-9A-Za-z]{43}))_([0-9A-Za-z]{6})", re.ASCII)
TOKEN_ID: Final = re.compile(r"[0-9A-Za-z]{10}", re.ASCII)
# Seconds for which a token that was valid is not looked up again.
POSITIVE: Final = 5.0
# Seconds between two notes of one process that a token was used.
NOTED: Final = 3600.0
# Seconds that a token lives on when it was rotated.
ROTATED: Final = 86400
DAY: Final = 86400
# Days that a token lives, unless it says otherwise.
DEFAULT_DAYS: Final = 90
# Live tokens of one project, by default, and of administrators.
MOST_TOKENS: Final = 100
# Tokens looked at in one step of a walk through those of administrators.
STEP: Final = 100


class Stored(Struct, frozen=True):
    """A token as its document has it. ``hash``: SHA-256 of the secret, in hex; ``by``: which credential made it."""

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
    """A token as it is shown. ``used``: to the hour; None = never."""

    id: str
    stored: Stored
    used: Seconds | None = None


class Made(NamedTuple):
    """A new token, and the text that is shown this once."""

    token: Token
    text: str


class Grant(Struct, frozen=True, kw_only=True):
    """What a new token is to give. ``roles`` empty: that of a member; ``expires``: it ends then at the latest."""

    project: str
    name: str = ""
    user: str = ""
    roles: Sequence[str] = ()
    scopes: Sequence[str] | None = None
    days: int = DEFAULT_DAYS
    expires: Seconds | None = None
    by: str = ""


def encode(number: int, length: int) -> str:
    """A number in base 62, so many characters."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def write(id: str, secret: str) -> str:
    """The text of a token."""
    text = f"zq_{id}_{secret}"
    return f"{text}_{encode(zlib.crc32(text.encode()), CRC_LENGTH)}"


def parse(text: str) -> tuple[str, str] | None:
    """Id and secret, if form and checksum fit."""
    found = FORM.fullmatch(text)
    if found is None or encode(zlib.crc32(found[1].encode()), CRC_LENGTH) != found[4]:
        return None
    return found[2], found[3]


def digest(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def default_bound(_project: str) -> int:
    """Return the bound of live tokens of a project without quotas."""
    return MOST_TOKENS


class Tokens:
    """The tokens of all projects. ``denied_for``: seconds that a JSON Web Token lives at most.

    A token with the role that administers the deployment is no project's own, whichever it gives access to: nobody
    finds it by a project, and it takes no project's room.
    ``most``: live ones of this project, asked at each creation; 0 = any number.
    """

    def __init__(
        self,
        documents: DocumentController,
        clock: Clock,
        max_days: int = 366,
        denied_for: int = 86460,
        most: Callable[[str], int] = default_bound,
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._max_live = most
        self._denied_for = denied_for
        self._creating = threading.Lock()
        """Held while a token is counted and stored: of one process none is refused for another that is refused."""
        self.max_days = max_days

    def create(self, grant: Grant, secret: str = "", id: str = "") -> Made:
        """Make a token. Raises ``QuotaExceeded``. ``id`` and ``secret``: of one that was made elsewhere."""
        now = self._clock.now()
        id = id or encode(int.from_bytes(os.urandom(16)), ID_LENGTH)
        secret = secret or encode(int.from_bytes(os.urandom(32)), SECRET_LENGTH)
        expires = now + min(grant.days, self.max_days) * DAY
        stored = Stored(
            hash=digest(secret),
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
        return Made(Token(id, stored), write(id, secret))

    def get(self, id: str, project: str | None = None) -> Token:
        """The token, if it is the project's (None: any). Raises ``NotFound``."""
        now = self._clock.now()
        stored = self._read(id, now)
        if stored is None or not _is_of(stored, project):
            raise NotFound("There is no token of this id in the project.")
        used = self._documents.get(DocumentRef("", USED, id), now)
        return Token(id, stored, None if used is None else msgspec.json.decode(used.value, type=float))

    def list(self, project: str, after: str, limit: int) -> Page[Token]:
        """Tokens of the project, or with "" of all, by their ids, behind ``after``."""
        page = self._documents.list(project, KIND, "", after, limit, self._clock.now())
        tokens = []
        for entry in page.items:
            try:
                tokens.append(self.get(entry.ref.name, project or None))
            except NotFound:  # an index entry whose token was not written, or is gone
                continue
        return Page(tokens, page.next)

    def revoke(self, id: str, project: str | None = None) -> bool:
        """End the token, on every server within seconds; False if there is none."""
        now = self._clock.now()
        stored = self._read(id, now)
        if stored is None or not _is_of(stored, project):
            return False
        self._remember_end(id, stored, now)
        for ref in (DocumentRef("", KIND, id), DocumentRef("", USED, id), _index(id, stored)):
            self._documents.delete(ref, now)
        return True

    def deny(self, jti: str) -> None:
        """Refuse a JSON Web Token by its id, on every server within seconds, for as long as one may live."""
        now = self._clock.now()
        self._documents.put(DocumentRef("", DENIED, jti), b"{}", now, expires=now + self._denied_for)

    def rotate(self, id: str, project: str | None = None, by: str = "", expires: Seconds | None = None) -> Made:
        """Make a twin, which lives as long as this one was to, but no longer than ``expires``; this one ends within a
        day.

        Raises ``NotFound``, ``QuotaExceeded``.
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
        self._shorten(id)
        return twin

    def _shorten(self, id: str) -> None:
        """Let the token end within a day, unless it is revoked meanwhile."""
        ref = DocumentRef("", KIND, id)
        now = self._clock.now()
        while (document := self._documents.get(ref, now)) is not None:
            stored = _stored(document)
            shorter = msgspec.structs.replace(stored, expires=min(stored.expires, now + ROTATED))
            value = msgspec.json.encode(shorter)
            if self._documents.put(ref, value, now, expected=document.version, expires=shorter.expires):
                self._remember_end(id, stored, now)
                return

    def _remember_end(self, id: str, stored: Stored, now: Seconds) -> None:
        """Let no later start adopt an administrator's token again."""
        if ADMIN in stored.roles:
            self._documents.put(DocumentRef("", REVOKED, id), b"{}", now)

    def was_revoked(self, text: str) -> bool:
        """Whether this was an administrator's token, which was revoked or rotated."""
        parts = parse(text)
        return (
            parts is not None and self._documents.get(DocumentRef("", REVOKED, parts[0]), self._clock.now()) is not None
        )

    def has_admin(self) -> bool:
        """Whether any token administers the deployment."""
        after: str | None = ""
        while after is not None:
            now = self._clock.now()
            page = self._documents.list("", ADMINS, "", after, STEP, now)
            if any(self._read(entry.ref.name, now) is not None for entry in page.items):
                return True
            after = page.next
        return False

    def adopt(self, text: str, project: str) -> bool:
        """Store a token that was made elsewhere as an administrator's, unless there is one or this was revoked; whether
        it was.

        Raises ``ValueError`` if it is no token.
        """
        parts = parse(text)
        if parts is None:
            raise ValueError("no token")
        if self.was_revoked(text) or self.has_admin():
            return False
        grant = Grant(project=project, name="bootstrap", roles=[ADMIN], days=self.max_days, by="bootstrap_token_file")
        self.create(grant, parts[1], parts[0])
        return True

    def _read(self, id: str, now: Seconds) -> Stored | None:
        if TOKEN_ID.fullmatch(id) is None:
            return None
        document = self._documents.get(DocumentRef("", KIND, id), now)
        return None if document is None else _stored(document)

    def _put(self, id: str, stored: Stored, now: Seconds) -> None:
        """Store the token, if there is room for it. Raises ``QuotaExceeded``.

        Its entry in the index is counted after it is written, and taken back if it is one too many: so two servers that
        make a token at once cannot both find room for the last one. Both may be refused then.
        """
        index, most = _index(id, stored), MOST_TOKENS
        refusal = QuotaExceeded(f"There may be {most} tokens of administrators; revoke one first.")
        if index.project:
            most = self._max_live(stored.project)
            refusal = QuotaExceeded(f"The project may have {most} tokens; revoke one first.")
        if most and self._count(index, most, now) >= most:
            raise refusal
        if index.project:
            self._documents.put(DocumentRef("", PROJECT, stored.project), b"{}", now, expected="")
        self._documents.put(index, b"{}", now, expires=stored.expires)
        if most and self._count(index, most + 1, now) > most:
            self._documents.delete(index, now)
            raise refusal
        self._documents.put(DocumentRef("", KIND, id), msgspec.json.encode(stored), now, expires=stored.expires)

    def _count(self, index: DocumentRef, most: int, now: Seconds) -> int:
        """Live tokens in the index that has this entry, counted up to ``most``."""
        return len(self._documents.list(index.project, index.kind, "", "", most, now).items)


def _is_of(stored: Stored, project: str | None) -> bool:
    """Whether it is one of the project's own; None: of anybody's."""
    return project is None or (project == stored.project and ADMIN not in stored.roles)


def _index(id: str, stored: Stored) -> DocumentRef:
    """The token's entry in the index that listings go by."""
    return DocumentRef("", ADMINS, id) if ADMIN in stored.roles else DocumentRef(stored.project, KIND, id)


def _stored(document: Document) -> Stored:
    return msgspec.json.decode(document.value, type=Stored)


class TokenVerifier:
    """Looks tokens up."""

    def __init__(
        self, documents: DocumentController, clock: Clock, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._documents = documents
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # By id: the moment of the monotonic clock from which its use is to be noted again.
        self._noted: FIFOCache[str, float] = FIFOCache(10_000)

    def takes(self, text: str) -> bool:
        """Whether it looks like a token of ours."""
        return text.startswith("zq_")

    def verify(self, text: str) -> tuple[Identity, float] | str:
        """Who it is, and for how long that may be remembered; or why not. Raises ``Unavailable``."""
        parts = parse(text)
        if parts is None:
            return "Its form or its checksum does not fit."
        id, secret = parts
        now = self._clock.now()
        document = self._documents.get(DocumentRef("", KIND, id), now)
        if document is None:
            return f"The token {id} is unknown, revoked or expired."
        stored = _stored(document)
        if not compare_digest(digest(secret), stored.hash) or stored.expires <= now:
            return f"The token {id} has another secret, or is expired."
        self._note(id, stored, now)
        identity = Identity(
            project=stored.project,
            user=stored.user,
            roles=frozenset(stored.roles),
            scopes=None if stored.scopes is None else tuple(stored.scopes),
            credential=id,
            expires=stored.expires,
        )
        return identity, min(POSITIVE, stored.expires - now)

    def _note(self, id: str, stored: Stored, now: Seconds) -> None:
        """Remember, now and then, that the token was used."""
        moment = self._monotonic()
        with self._lock:
            if self._noted.get(id, 0.0) > moment:
                return
            self._noted[id] = moment + NOTED
        hour = b"%d" % (now // 3600 * 3600)
        try:
            self._documents.put(DocumentRef("", USED, id), hour, now, expires=stored.expires)
        except Unavailable:  # whoever asks need not suffer for it
            with self._lock:
                self._noted.pop(id, None)
