# SPDX-License-Identifier: Apache-2.0
"""The strategy ``jwt``: JSON Web Tokens of an issuer that the operator trusts, checked as RFC 8725 says."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import jwt

from zq.auth.jwks import KeySet
from zq.auth.tokens import DENIED
from zq.clock import Clock
from zq.errors import Invalid, ZqError
from zq.limits import PROJECT_ID
from zq.model.identity import MEMBER, Identity, JwtOptions
from zq.model.scopes import parse
from zq.storage.api import DocumentController

LOG = logging.getLogger(__name__)
# Seconds for which a token that was valid is not verified again.
POSITIVE: Final = 300.0
# Seconds between two looks at the list of those that were revoked.
DENIED_EVERY: Final = 5.0
# Denied tokens in one step of a look.
STEP: Final = 500
# Keys without an id that are tried.
MAX_TRIED: Final = 10
# Characters of an id, or of a user, that are kept.
MAX_TEXT: Final = 256


class JwtVerifier:
    """Verifies JSON Web Tokens."""

    def __init__(self, options: JwtOptions, keys: KeySet, documents: DocumentController, clock: Clock) -> None:
        self._options = options
        self._keys = keys
        self._documents = documents
        self._clock = clock
        self._denied: frozenset[str] | None = None
        """None = not read yet."""
        self._forget: list[Callable[[Collection[str]], object]] = []

    def listen(self, forget: Callable[[Collection[str]], object]) -> None:
        """Call ``forget`` with the names of the revoked credentials whenever these are read."""
        self._forget.append(forget)

    def start(self) -> None:
        """Heed revocations from now on."""
        self._keys.start()
        threading.Thread(target=self._run, name="zq-jwt", daemon=True).start()

    def takes(self, text: str) -> bool:
        """Whether it has the form of a signed token: what is encrypted has more parts."""
        return text.count(".") == 2

    def verify(self, text: str) -> tuple[Identity, float] | str:
        """Who it is, and for how long that may be remembered; or why not.

        Raises ``Unavailable`` without keys, or if nobody knows what was revoked.
        """
        if self._denied is None:
            self.read_denied()
        try:
            return self._identity(self._claims(text))
        except (jwt.PyJWTError, Invalid, ValueError, TypeError, OverflowError, RecursionError) as error:
            return f"{type(error).__name__}: {str(error)[:MAX_TEXT]}"

    def read_denied(self) -> None:
        """Read which tokens were revoked; those that are remembered are forgotten. Raises ``Unavailable``.

        Each time, for one may have been verified by what was read before, and remembered after.
        """
        found: set[str] = set()
        after, now = "", self._clock.now()
        while (page := self._documents.list("", DENIED, "", after, STEP, now)).next is not None:
            found.update(document.ref.name for document in page.items)
            after = page.next
        self._denied = frozenset(found)
        if found:
            for forget in self._forget:
                forget({named(id) for id in found})

    def _claims(self, text: str) -> Mapping[str, Any]:
        """What a token says that is signed, and is for us. Raises ``ValueError``, ``PyJWTError``."""
        header, options = jwt.get_unverified_header(text), self._options
        algorithm, kind = header.get("alg"), str(header.get("typ", ""))
        if algorithm not in options.algorithms or "crit" in header or "cty" in header or "enc" in header:
            raise ValueError("alg is not allowed, or the header has crit, cty or enc")
        if options.type and kind.lower().removeprefix("application/") != options.type.lower():
            raise ValueError("typ is another one")
        for key in self._keys.find(str(header.get("kid", "")), algorithm)[:MAX_TRIED]:
            try:
                return self._decoded(text, key.key, algorithm)
            except jwt.InvalidSignatureError:
                continue
        raise ValueError("no key of the issuer has signed it")

    def _decoded(self, text: str, key: Any, algorithm: str) -> Mapping[str, Any]:
        options = self._options
        claims: dict[str, Any] = jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            audience=options.audience,
            issuer=options.issuer,
            options={"require": ["exp", "iss", "aud"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> tuple[Identity, float]:
        """Who it is. Raises ``ValueError``, ``Invalid``."""
        options, now = self._options, self._clock.now()
        expires, begins = _moment(claims["exp"]), _moment(claims.get("nbf", 0))
        issued = _moment(claims.get("iat", now))
        if expires + options.leeway <= now or max(begins, issued) > now + options.leeway:
            raise ValueError("it has expired, or is not valid yet")
        if expires - issued > options.max_age:
            raise ValueError("it lives too long")
        id, project = claims.get("jti"), at_path(claims, options.project_claim)
        if not isinstance(project, str) or PROJECT_ID.fullmatch(project) is None:
            raise ValueError("it names no project")
        if id in (self._denied or ()):
            raise ValueError("it was revoked")
        scopes = _words(at_path(claims, options.scope_claim))
        if scopes is not None and parse(scopes) is None:
            raise ValueError("its scopes are none")
        roles = _words(at_path(claims, options.roles_claim))
        user = str(claims.get("sub", ""))[:MAX_TEXT]
        identity = Identity(
            project=project,
            user=user,
            roles=frozenset(role.lower() for role in roles or ()) or frozenset({MEMBER}),
            scopes=None if scopes is None else tuple(scopes),
            credential=named(id if isinstance(id, str) else user),
            expires=expires + options.leeway,
        )
        return identity, min(POSITIVE, expires + options.leeway - now)

    def _run(self) -> None:
        while True:
            try:
                self.read_denied()
            except ZqError as error:
                LOG.debug("Which tokens were revoked cannot be read now: %s", error)
            except Exception:  # the edge of this thread: if it ended, no revocation would be heeded any more
                LOG.exception("Which tokens were revoked cannot be read now.")
            time.sleep(DENIED_EVERY)


def named(id: str) -> str:
    """What names the credential of this id."""
    return f"jwt:{id}"[:MAX_TEXT]


def at_path(claims: Mapping[str, Any], path: str) -> Any:
    """The claim of this name, or the one to which the names between the dots lead; None if there is none."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _moment(value: Any) -> float:
    """A moment of a claim. Raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ValueError("no moment")
    return float(value)


def _words(value: Any) -> list[str] | None:
    """Words of a claim: a list, or a text with blanks between; None if there is none. Raises ``ValueError``."""
    if value is None:
        return None
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("no words")
    return words
