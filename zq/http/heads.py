# SPDX-License-Identifier: Apache-2.0
"""Checks of the raw request line and headers, before WSGI merges header names.

WSGI uses one key for ``X-Project-ID`` and ``X_Project_ID``, and joins repeated headers. A client could thus choose its
project with ``X_Project_ID`` although a proxy sets ``X-Project-ID``. To prevent this, the HTTP server checks the raw
headers and stores an error in the environment. ``zq.http.admission`` then rejects the request.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

# Environment key of the error sentence. It is absent if the head is valid.
ERROR_KEY: Final = "zq.refused"
# Environment key that is set if the edge did not read the body, because the credential was not valid.
WITHHELD_KEY: Final = "zq.withheld"
# Value of ``WITHHELD_KEY`` if the credential could not be checked, because the store was unavailable. The status is
# 503.
UNKNOWN_CREDENTIAL: Final = "unknown"
# Environment key that the application sets if the project exceeded a rate limit.
RATE_LIMITED_KEY: Final = "zq.slowed"
# Seconds by which the edge delays the response to such a request; less than any ``Retry-After``.
DELAY: Final = 0.25
# Maximum number of delayed responses in a process.
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
# Error for a path that a proxy may interpret as a host name.
LEADING_SLASHES: Final = "The path must begin with one slash."
# Errors that concern the target, not the headers.
TARGETS: Final = frozenset({ENCODED_SLASH, LEADING_SLASHES})


class HeadAuthenticator(Protocol):
    """Interface of an authenticator that checks the credential in the headers before the body is read."""

    def cached_validity(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the credential in the cache. Return whether it is valid, or ``None`` if the store must be queried."""
        ...

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the credential in the store. Return whether it is valid, or ``None`` if the store is unavailable."""
        ...


class CredentialCheck(HeadAuthenticator, Protocol):
    """A feature's credential check, which replaces the server's authentication strategy for some requests."""

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether the feature authenticates this request."""
        ...


def find_head_error(headers: Iterable[tuple[str, str]], target: str) -> str | None:
    """Check the raw headers and the request target. Return an error sentence, or ``None`` if both are valid."""
    seen = set()
    for name, _ in headers:
        plain = name.lower().replace("_", "-")
        if plain in IDENTITY or plain in SINGLE or plain.startswith(IDENTITY_PREFIXES):
            if "_" in name:
                return f"The header {plain} must be spelled with hyphens."
            if plain in seen:
                return f"The header {plain} must be given once."
            seen.add(plain)
    return check_target(target)


def check_target(target: str) -> str | None:
    """Return an error sentence if a proxy may interpret the request target differently, otherwise ``None``."""
    if target.startswith("//"):
        return LEADING_SLASHES
    if "%" not in target:
        return None
    path = target.partition("?")[0].lower()
    return ENCODED_SLASH if "%2f" in path or "%5c" in path else None
