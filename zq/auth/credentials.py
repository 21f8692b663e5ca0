# SPDX-License-Identifier: Apache-2.0
"""Bearer credentials: found in a request, remembered for seconds, and refused before any look-up to who guesses."""

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

# Credentials, and addresses of callers, that one process remembers; of more the oldest are forgotten.
MOST: Final = 10_000
# Seconds for which a credential that is not valid is remembered.
NEGATIVE: Final = 1.0
# Failures a second of one address beyond which nothing is looked up for it any more.
FAILURES: Final = 10.0
# Failures that may come at once.
BURST: Final = 50
BEARER: Final = "bearer "
CHALLENGE: Final = 'Bearer realm="zq"'
NOT_VALID: Final = 'Bearer realm="zq", error="invalid_token"'
NEEDED: Final = "A credential is needed: Authorization: Bearer <token>."


class Known(Struct, frozen=True):
    """What a credential was found to be; None = not valid. ``until``: of the monotonic clock; ``why``: not valid."""

    identity: Identity | None
    until: float
    why: str = ""


class Verifier(Protocol):
    """Looks credentials of one form up."""

    def takes(self, text: str) -> bool:
        """Whether a credential may be one of these, by its form."""
        ...

    def verify(self, text: str) -> tuple[Identity, float] | str:
        """Who it is, and for how many seconds that may be remembered; or why it is not valid, for the audit log.

        Raises ``Unavailable`` if that cannot be found out.
        """
        ...


class FailureLimit:
    """Counts failures by address: ``FAILURES`` a second, ``BURST`` at once."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # By address: the moment at which its failures are paid off.
        self._debts: FIFOCache[str, float] = FIFOCache(MOST)

    def exceeded(self, peer: str) -> bool:
        """Whether the address has failed too often."""
        return self._debts.get(peer, 0.0) - self._monotonic() > (BURST - 0.5) / FAILURES

    def check(self, peer: str) -> None:
        """Raise ``TooManyRequests`` if the address has failed too often."""
        if self.exceeded(peer):
            raise TooManyRequests("Too many requests without a valid credential came from this address.")

    def count(self, peer: str) -> None:
        """It has failed once more."""
        with self._lock:
            now = self._monotonic()
            self._debts[peer] = max(self._debts.get(peer, 0.0), now) + 1 / FAILURES


class Bearers:
    """The strategies ``token``, ``jwt`` and both: the first verifier that takes a credential decides.

    ``bare``: a credential may stand in ``X-Auth-Token`` too, as OpenStack's clients send it. Without one a client's
    certificate counts, where ``certificates`` say whom it is.
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
        # By the digest of a header's value: no secret is kept. A plain dictionary, for every request looks into it.
        # An entry whose time is over stays: a credential that was valid is looked up again whatever its address did.
        self._valid: dict[bytes, Known] = {}
        self._invalid: FIFOCache[bytes, Known] = FIFOCache(MOST)

    def authenticate(self, env: Mapping[str, Any], peer: str) -> Identity:
        """Who asks. Raises ``NotAuthenticated``, ``TooManyRequests``, ``Unavailable``."""
        value: str | None = env.get("HTTP_AUTHORIZATION") or (env.get("HTTP_X_AUTH_TOKEN") if self._bare else None)
        if not value:
            if self.certificates is not None and (holder := self.certificates.identity(env)) is not None:
                return holder
            self._failures.check(peer)
            self._failures.count(peer)
            raise NotAuthenticated(NEEDED, CHALLENGE)
        key = blake2b(value.encode()).digest()
        known = self._valid.get(key)
        if known is None or known.until <= self._monotonic():
            known = self._look_up(key, self._text(env, value), peer)
        if (identity := known.identity) is None:
            self._failures.count(peer)
            raise NotAuthenticated(None, NOT_VALID, known.why)
        return identity

    def known(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Whether ``authenticate`` would return, counting nothing; None if the store must be asked."""
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
        return None if any(each.takes(text) for each in self._verifiers) else False

    def look_up(self, env: Mapping[str, Any], peer: str) -> bool | None:
        """Look the credential up in the store; return None if the store does not answer."""
        value: str = env.get("HTTP_AUTHORIZATION") or env.get("HTTP_X_AUTH_TOKEN", "")
        try:
            found = self._look_up(blake2b(value.encode()).digest(), self._text(env, value), peer)
        except TooManyRequests:
            return False
        except Unavailable:
            return None
        return found.identity is not None

    def forget(self, credentials: Collection[str]) -> None:
        """Look the credentials of these names up anew when they come again."""
        with self._lock:
            for key, known in list(self._valid.items()):
                if known.identity is not None and known.identity.credential in credentials:
                    self._valid[key] = structs.replace(known, until=-math.inf)

    def _text(self, env: Mapping[str, Any], value: str) -> str:
        """The credential itself; "" if the header has none of ours."""
        if "HTTP_AUTHORIZATION" not in env or not env["HTTP_AUTHORIZATION"]:
            return value
        return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else ""

    def _look_up(self, key: bytes, text: str, peer: str) -> Known:
        """Raises ``TooManyRequests`` for a credential that was never valid here, ``Unavailable``."""
        if key not in self._valid:
            self._failures.check(peer)
        now = self._monotonic()
        known: Known | None = self._invalid.get(key)
        if known is not None and now < known.until:
            return known
        found = next((each.verify(text) for each in self._verifiers if each.takes(text)), "It is of no known form.")
        with self._lock:
            if isinstance(found, str):
                self._valid.pop(key, None)
                known = self._invalid[key] = Known(None, now + NEGATIVE, found)
            else:
                self._valid.pop(key, None)
                if len(self._valid) >= MOST:
                    del self._valid[next(iter(self._valid))]  # the oldest
                known = self._valid[key] = Known(found[0], now + found[1])
        return known
