# SPDX-License-Identifier: Apache-2.0
"""Bearer credentials: extraction from a request, a cache of lookups, and a limit on failed attempts per address."""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Any, Final, Protocol

from cachetools import FIFOCache
from msgspec import Struct, structs

from zq.auth.certificates import Certificates
from zq.errors import NotAuthenticated, TooManyRequests, Unavailable
from zq.model.identity import Identity

# Maximum number of entries in a cache.
CACHE_SIZE: Final = 10_000
# Seconds for which an invalid credential is cached.
NEGATIVE_CACHE_TTL: Final = 1.0
# Allowed rate of failures of one address, per second.
FAILURES: Final = 10.0
# Allowed burst of failures.
BURST: Final = 50
BEARER: Final = "bearer "
CHALLENGE: Final = 'Bearer realm="zq"'
NOT_VALID: Final = 'Bearer realm="zq", error="invalid_token"'
CREDENTIAL_REQUIRED: Final = "A credential is required: Authorization: Bearer <token>."


class CachedLookup(Struct, frozen=True):
    """The cached result of a credential lookup.

    Attributes:
        identity: The identity, or ``None`` if the credential is not valid.
        until: Monotonic time at which the entry expires.
    """

    identity: Identity | None
    until: float
    why: str = ""


class Verifier(Protocol):
    """A verifier of credentials in one format."""

    def matches(self, text: str) -> bool:
        """Return whether the text has the verifier's format."""
        ...

    def verify(self, text: str) -> tuple[Identity, float] | str:
        """Verify a credential. Raises ``Unavailable`` if the verifier cannot access its store or keys.

        Returns:
            The identity and the seconds for which it may be cached, or, if the credential is not valid, the reason as
            text for the audit log.
        """
        ...


class FailureLimit:
    """A limit on requests without a valid credential: ``FAILURES`` per second and address, with bursts of ``BURST``."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Theoretical arrival time (GCRA) by address, in monotonic time.
        self._debts: FIFOCache[str, float] = FIFOCache(CACHE_SIZE)

    def exceeded(self, peer: str) -> bool:
        return self._debts.get(peer, 0.0) - self._monotonic() > (BURST - 0.5) / FAILURES

    def check(self, peer: str) -> None:
        """Raise ``TooManyRequests`` if the address exceeds the limit."""
        if self.exceeded(peer):
            raise TooManyRequests("This address has sent too many requests without a valid credential.")

    def count(self, peer: str) -> None:
        """Count a failed attempt of the address."""
        with self._lock:
            now = self._monotonic()
            self._debts[peer] = max(self._debts.get(peer, 0.0), now) + 1 / FAILURES


class BearerStrategy:
    """Authentication by bearer credentials: the strategies ``token``, ``jwt`` and ``token,jwt``.

    If several verifiers match a credential's format, the first one verifies the credential.

    Args:
        bare: Whether the credential may also be in the header ``X-Auth-Token``, which OpenStack clients send.
    """

    def __init__(
        self,
        *verifiers: Verifier,
        bare: bool,
        monotonic: Callable[[], float] = time.monotonic,
        certificates: Certificates | None = None,
    ) -> None:
        self.certificates = certificates
        self._verifiers = verifiers
        self._bare = bare
        self._monotonic = monotonic
        self._failures = FailureLimit(monotonic)
        self._lock = threading.Lock()
        # Keys are digests, so that no secret stays in memory. Every request reads this cache, so it is a plain
        # dictionary. Expired entries are kept, because a credential that was valid is exempt from the failure limit.
        self._valid: dict[bytes, CachedLookup] = {}
        self._invalid: FIFOCache[bytes, CachedLookup] = FIFOCache(CACHE_SIZE)

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        """Return the identity of the request's bearer credential or client certificate.

        Raises ``NotAuthenticated`` if the request has no valid credential, ``TooManyRequests`` if the address exceeds
        the failure limit, or ``Unavailable``.
        """
        value: str | None = env.get("HTTP_AUTHORIZATION") or (env.get("HTTP_X_AUTH_TOKEN") if self._bare else None)
        if not value:
            if self.certificates is not None and (holder := self.certificates.identity(env)) is not None:
                return holder
            self._failures.check(peer)
            self._failures.count(peer)
            raise NotAuthenticated(CREDENTIAL_REQUIRED, CHALLENGE)
        key = blake2b(value.encode()).digest()
        known = self._valid.get(key)
        if known is None or known.until <= self._monotonic():
            known = self._look_up(key, self._text(env, value), peer)
        if (identity := known.identity) is None:
            self._failures.count(peer)
            raise NotAuthenticated(None, NOT_VALID, known.why)
        return identity

    def cached_validity(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Return whether the credential is valid, without a lookup in the store.

        Return ``None`` if a lookup is necessary. This method does not count missing or invalid
        credentials against the failure limit.
        """
        value: str | None = env.get("HTTP_AUTHORIZATION") or (env.get("HTTP_X_AUTH_TOKEN") if self._bare else None)
        if not value:
            return self.certificates is not None and self.certificates.identity(env) is not None
        key = blake2b(value.encode()).digest()
        known, now = self._valid.get(key), self._monotonic()
        if known is not None and now < known.until:
            return True
        text, known = self._text(env, value), self._invalid.get(key)
        if known is not None and now < known.until:
            return False
        if key not in self._valid and self._failures.exceeded(peer):
            return False
        return None if any(each.matches(text) for each in self._verifiers) else False

    def look_up(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Look up the credential in the store and return whether the credential is valid.

        Return ``None`` if the store is unavailable, and ``False`` if the client exceeds the failure limit.
        """
        value: str = env.get("HTTP_AUTHORIZATION") or env.get("HTTP_X_AUTH_TOKEN", "")
        try:
            found = self._look_up(blake2b(value.encode()).digest(), self._text(env, value), peer)
        except TooManyRequests:
            return False
        except Unavailable:
            return None
        return found.identity is not None

    def forget(self, credentials: Collection[str]) -> None:
        """Expire the cached lookups of these credentials, so that the credentials are verified again.

        ``credentials`` contains names in the form of ``Identity.credential``.
        """
        with self._lock:
            for key, known in list(self._valid.items()):
                if known.identity is not None and known.identity.credential in credentials:
                    self._valid[key] = structs.replace(known, until=-math.inf)

    def _text(self, env: Mapping[str, Any], value: str) -> str:
        if "HTTP_AUTHORIZATION" not in env or not env["HTTP_AUTHORIZATION"]:
            return value
        return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else ""

    def _look_up(self, key: bytes, text: str, peer: str) -> CachedLookup:
        """Verify the credential and cache the result.

        The limit on failed attempts does not apply to a credential that was valid before.
        """
        if key not in self._valid:
            self._failures.check(peer)
        now = self._monotonic()
        known: CachedLookup | None = self._invalid.get(key)
        if known is not None and now < known.until:
            return known
        found = next(
            (each.verify(text) for each in self._verifiers if each.matches(text)),
            "The format of the credential is unknown.",
        )
        with self._lock:
            if isinstance(found, str):
                self._valid.pop(key, None)
                known = self._invalid[key] = CachedLookup(None, now + NEGATIVE_CACHE_TTL, found)
            else:
                self._valid.pop(key, None)
                if len(self._valid) >= CACHE_SIZE:
                    del self._valid[next(iter(self._valid))]  # the oldest
                known = self._valid[key] = CachedLookup(found[0], now + found[1])
        return known
