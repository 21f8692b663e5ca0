# SPDX-License-Identifier: Apache-2.0
"""What is refused of a request's raw head, before WSGI merges its names.

WSGI gives ``X-Project-ID`` and ``X_Project_ID`` one name, and joins headers that are given twice. A proxy that sets the
one and passes the other on would let its caller choose whose queues it reads. So each engine judges the head as it came
and leaves the sentence in the environment; ``zq.http.admission`` refuses the request by it, whatever its route.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

# The key of the environment that holds the sentence; absent if the head is well.
REFUSED: Final = "zq.refused"
# The key of the environment that is set if the announced body was not read, for lack of a valid credential.
WITHHELD: Final = "zq.withheld"
# Its value if the credential is neither valid nor invalid: the store did not answer. The request is answered 503.
UNKNOWN: Final = "unknown"
# The key of the environment under which the application says that the request was refused as too much of its project.
SLOWED: Final = "zq.slowed"
# Seconds for which its caller is then kept from asking on: less than any ``Retry-After``.
PAUSE: Final = 0.25
# Callers who are kept from it at once, in a process; others may ask on.
MOST_PAUSES: Final = 1000
# Headers that say who asks, in lower case.
IDENTITY: Final = frozenset(
    {
        *("authorization", "client-id", "url-expires", "url-methods", "url-paths", "url-signature"),
        *("x-auth-token", "x-project-id", "x-roles", "x-tenant", "x-tenant-id", "x-zq-proxy-secret"),
    }
)
# What other headers that say who asks begin with.
IDENTITY_PREFIXES: Final = ("x-domain", "x-identity-", "x-project-", "x-service-", "x-tenant-", "x-user")
# Other headers by which a request means something else, in lower case.
SINGLE: Final = frozenset(
    {*("content-length", "content-type", "extra-spec", "host", "idempotency-key", "last-event-id", "transfer-encoding")}
)
# The sentence about a path that a proxy may read otherwise.
ENCODED_SLASH: Final = "The path must not hold an encoded slash or backslash."
# The sentence about a path that may be taken for a host.
LEADING_SLASHES: Final = "The path must begin with one slash."
# Sentences about the target, not the headers.
TARGETS: Final = frozenset({ENCODED_SLASH, LEADING_SLASHES})


class Judge(Protocol):
    """Tells by the head of a request, as an environment without a body, whether that body is to be read (attack A4).

    The application judges the request again. A request whose body is withheld is answered 401 or 429, and 503 if its
    credential is valid by then, or if nothing is known of it.
    """

    def known(self, env: Mapping[str, Any]) -> bool | None:
        """Whether; None if the store must be asked."""
        ...

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look the credential up in the store; return None if the store does not answer."""
        ...


class CredentialCheck(Judge, Protocol):
    """The judge of requests that authenticate by other means than the server's strategy."""

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether a request with this head is one of them."""
        ...


def refusal(headers: Iterable[tuple[str, str]], target: str) -> str | None:
    """Why a request of these raw headers, names in any case, and of this raw target is refused; None if it is not."""
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
    """Why a request of this raw target is refused; None if it is not.

    Servers decode a path before they route it, so that ``a%2Fb`` means something else to them than to a proxy; and the
    router passes over slashes that come first.
    """
    if target.startswith("//"):
        return LEADING_SLASHES
    if "%" not in target:
        return None
    path = target.partition("?")[0].lower()
    return ENCODED_SLASH if "%2f" in path or "%5c" in path else None
