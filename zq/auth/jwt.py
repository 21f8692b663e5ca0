# SPDX-License-Identifier: Apache-2.0
"""The strategy ``jwt``: JSON Web Tokens of a trusted issuer, verified according to RFC 8725."""

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
from zq.model.identity import MEMBER, Identity, JwtOptions
from zq.model.limits import PROJECT_ID
from zq.model.scopes import parse
from zq.storage.api import DocumentController

LOG = logging.getLogger(__name__)
# Maximum seconds for which a valid token is cached.
MAX_CACHE_TTL: Final = 300.0
# Seconds between two reads of the revoked tokens.
DENIED_INTERVAL: Final = 5.0
# Number of revoked tokens read at a time.
PAGE_SIZE: Final = 500
# Maximum number of keys tried for a token without a key id.
MAX_TRIED: Final = 10
# Maximum number of characters of a token id or user.
MAX_TEXT: Final = 256


class JwtVerifier:
    """A verifier of JSON Web Tokens."""

    def __init__(self, options: JwtOptions, keys: KeySet, documents: DocumentController, clock: Clock) -> None:
        self._options = options
        self._keys = keys
        self._documents = documents
        self._clock = clock
        self._denied: frozenset[str] | None = None
        """Ids of revoked tokens; ``None`` = not read yet."""
        self._listeners: list[Callable[[Collection[str]], object]] = []

    def listen(self, forget: Callable[[Collection[str]], object]) -> None:
        """Register ``forget``, a function that removes credentials from a cache.

        After each read of the revocation list, ``forget`` is called with the names of all revoked tokens.
        """
        self._listeners.append(forget)

    def start(self) -> None:
        """Start the background threads that refresh the key set and the list of revoked tokens."""
        self._keys.start()
        threading.Thread(target=self._run, name="zq-jwt", daemon=True).start()

    def matches(self, text: str) -> bool:
        return text.count(".") == 2

    def verify(self, text: str) -> tuple[Identity, float] | str:
        if self._denied is None:
            self.read_denied()
        try:
            return self._identity(self._claims(text))
        except (jwt.PyJWTError, Invalid, ValueError, TypeError, OverflowError, RecursionError) as error:
            return f"{type(error).__name__}: {str(error)[:MAX_TEXT]}"

    def read_denied(self) -> None:
        """Read the list of revoked tokens, and remove all these tokens from the registered caches.

        Raises ``Unavailable`` if the store is down.
        """
        found: set[str] = set()
        after, now = "", self._clock.now()
        while (page := self._documents.list("", DENIED, "", after, PAGE_SIZE, now)).next is not None:
            found.update(document.ref.name for document in page.items)
            after = page.next
        self._denied = frozenset(found)
        # Not only the new ones: a concurrent ``verify`` may cache a revoked token after this call, because it still
        # uses the previous list.
        if found:
            for forget in self._listeners:
                forget({credential_name(id) for id in found})

    def _claims(self, text: str) -> Mapping[str, Any]:
        """Verify the signature, issuer and audience of a token, but not its expiry. Return the claims of the token."""
        header, options = jwt.get_unverified_header(text), self._options
        algorithm, kind = header.get("alg"), str(header.get("typ", ""))
        if algorithm not in options.algorithms or "crit" in header or "cty" in header or "enc" in header:
            raise ValueError("alg is not allowed, or the header has crit, cty or enc")
        if options.type and kind.lower().removeprefix("application/") != options.type.lower():
            raise ValueError(f"typ is not {options.type}")
        for key in self._keys.find(str(header.get("kid", "")), algorithm)[:MAX_TRIED]:
            try:
                return self._decode(text, key.key, algorithm)
            except jwt.InvalidSignatureError:
                continue
        raise ValueError("the signature does not match a key of the issuer")

    def _decode(self, text: str, key: Any, algorithm: str) -> Mapping[str, Any]:
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
        options, now = self._options, self._clock.now()
        expires, begins = _parse_time(claims["exp"]), _parse_time(claims.get("nbf", 0))
        issued = _parse_time(claims.get("iat", now))
        if expires + options.leeway <= now or max(begins, issued) > now + options.leeway:
            raise ValueError("the token has expired, or is not valid yet")
        if expires - issued > options.max_age:
            raise ValueError("the lifetime of the token exceeds jwt_max_age")
        id, project = claims.get("jti"), at_path(claims, options.project_claim)
        if not isinstance(project, str) or PROJECT_ID.fullmatch(project) is None:
            raise ValueError("the token has no valid project")
        if id in (self._denied or ()):
            raise ValueError("the token was revoked")
        scopes = _parse_list(at_path(claims, options.scope_claim))
        if scopes is not None and parse(scopes) is None:
            raise ValueError("the scopes of the token are not valid")
        roles = _parse_list(at_path(claims, options.roles_claim))
        user = str(claims.get("sub", ""))[:MAX_TEXT]
        identity = Identity(
            project=project,
            user=user,
            roles=frozenset(role.lower() for role in roles or ()) or frozenset({MEMBER}),
            scopes=None if scopes is None else tuple(scopes),
            credential=credential_name(id if isinstance(id, str) else user),
            expires=expires + options.leeway,
        )
        return identity, min(MAX_CACHE_TTL, expires + options.leeway - now)

    def _run(self) -> None:
        while True:
            try:
                self.read_denied()
            except ZqError as error:
                LOG.debug("The list of revoked tokens cannot be read: %s", error)
            except Exception:  # the thread must survive, because revocations depend on it
                LOG.exception("The list of revoked tokens cannot be read.")
            time.sleep(DENIED_INTERVAL)


def credential_name(id: str) -> str:
    """Return the credential name of the token with this id."""
    return f"jwt:{id}"[:MAX_TEXT]


def at_path(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim named ``path``, or else the nested claim at this dotted path; ``None`` if both are missing."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _parse_time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ValueError("exp, nbf and iat must be numbers of seconds")
    return float(value)


def _parse_list(value: Any) -> list[str] | None:
    if value is None:
        return None
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("scopes and roles must be lists of strings, or strings with spaces between the words")
    return words
