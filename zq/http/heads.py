# SPDX-License-Identifier: Apache-2.0
"""Checks of a request's raw head, before WSGI merges header names.

WSGI gives ``X-Project-ID`` and ``X_Project_ID`` the same key, and joins repeated headers. If a proxy sets one of them
and forwards the other, a client could choose whose queues it reads. The edge therefore checks the raw head and puts the
error into the environment. ``zq.http.admission`` then refuses the request.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

# Environment key of the error sentence. It is absent if the head is valid.
REFUSED: Final = "zq.refused"
# Environment key that is set if the body was not read because the credential was not valid.
WITHHELD: Final = "zq.withheld"
# Value of ``WITHHELD`` if the store was unavailable and the credential could not be checked. The answer is 503.
UNKNOWN: Final = "unknown"
# Environment key that the application sets if the project exceeded a rate limit.
SLOWED: Final = "zq.slowed"
# Seconds for which the edge then delays the connection. It is less than any ``Retry-After``.
DELAY: Final = 0.25
# Maximum number of delayed connections in a process.
MAX_PAUSED: Final = 1000
# Identity headers in lower case.
IDENTITY: Final = frozenset(
    {
        *("authorization", "client-id", "url-expires", "url-methods", "url-paths", "url-signature"),
        *("x-auth-token", "x-project-id", "x-roles", "x-tenant", "x-tenant-id", "x-zq-proxy-secret"),
    }
)
# Prefixes of other identity headers.
IDENTITY_PREFIXES: Final = ("x-domain", "x-identity-", "x-project-", "x-service-", "x-tenant-", "x-user")
# Other headers that must not be repeated, in lower case.
SINGLE: Final = frozenset(
    {*("content-length", "content-type", "extra-spec", "host", "idempotency-key", "last-event-id", "transfer-encoding")}
)
# Error for a path that a proxy may interpret differently.
ENCODED_SLASH: Final = "The path must not contain an encoded slash or backslash."
# Error for a path that may be mistaken for a host name.
LEADING_SLASHES: Final = "The path must begin with one slash."
# Errors about the target instead of the headers.
TARGETS: Final = frozenset({ENCODED_SLASH, LEADING_SLASHES})


class Judge(Protocol):
    """The decision, from a request's head, whether the edge reads the body (attack A4).

    The head is passed as an environment without a body. The application authenticates the request again. If the body
    was withheld, the application answers 401 or 429, or 503 if the credential is valid by then or still unknown.
    """

    def known(self, env: Mapping[str, Any]) -> bool | None:
        """Return whether to read the body; ``None`` if the store must be queried first."""
        ...

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the credential in the store. Return ``None`` if the store is unavailable."""
        ...


class CredentialCheck(Judge, Protocol):
    """The judge of requests that do not use the server's authentication strategy."""

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether this check applies to a request with this head."""
        ...


def refusal(headers: Iterable[tuple[str, str]], target: str) -> str | None:
    """Return the error sentence of an invalid raw head, or ``None`` if it is valid."""
    seen = set()
    for name, _ in headers:
        plain = name.lower().replace("_", "-")
        if plain in IDENTITY or plain in SINGLE or plain.startswith(IDENTITY_PREFIXES):
            if "_" in name:
                return f"The header {plain} must be spelled with hyphens."
            if plain in seen:
                return f"The header {plain} must be given once."
            seen.add(plain)
    return target_refusal(target)


def target_refusal(target: str) -> str | None:
    """Return the error sentence of an invalid raw target, or ``None`` if it is valid.

    Servers decode a path before routing, so a proxy and a server may interpret ``a%2Fb`` differently. The router
    ignores leading slashes.
    """
    if target.startswith("//"):
        return LEADING_SLASHES
    if "%" not in target:
        return None
    path = target.partition("?")[0].lower()
    return ENCODED_SLASH if "%2f" in path or "%5c" in path else None
