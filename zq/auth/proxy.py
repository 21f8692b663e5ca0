# SPDX-License-Identifier: Apache-2.0
"""The strategy ``proxy``: an authenticating proxy sends the caller's identity and a shared secret in headers."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, Final

from zq.auth.credentials import FailureLimit
from zq.auth.files import read_private
from zq.errors import NotAuthenticated, StartRefused

HEADER: Final = "HTTP_X_ZQ_PROXY_SECRET"
CHALLENGE: Final = "ZQ-Proxy"
CREDENTIAL_REQUIRED: Final = "A credential is required: X-ZQ-Proxy-Secret, which the proxy adds."
# Minimum length of a secret in bytes.
MIN_LENGTH: Final = 32


class ProxySecrets:
    """The secrets that identify requests from the proxy."""

    def __init__(self, path: Callable[[], str]) -> None:
        """Read the secret file. ``path`` returns its path. Raises ``StartRefused`` if the file is not valid."""
        self._path = path
        self._failures = FailureLimit()
        self._secrets = read_secrets(path())

    def reload(self) -> None:
        """Read the secret file again. If it is invalid, raise ``StartRefused`` and keep the previous secrets."""
        self._secrets = read_secrets(self._path())

    def check(self, env: Mapping[str, Any], peer: str) -> None:
        """Verify the secret in a request.

        Raises ``NotAuthenticated`` if the secret is missing or wrong, or ``TooManyRequests`` after too many failures.
        """
        if self.has_valid_secret(env):
            return
        self._failures.check(peer)
        self._failures.count(peer)
        raise NotAuthenticated(None if env.get(HEADER) else CREDENTIAL_REQUIRED, CHALLENGE)

    def has_valid_secret(self, env: Mapping[str, Any]) -> bool:
        """Return whether the request contains a valid secret."""
        given = env.get(HEADER, "").encode("latin-1")
        # The list compares with all secrets, so that the duration reveals nothing.
        return True in [compare_digest(given, secret) for secret in self._secrets]


def read_secrets(path: str) -> tuple[bytes, ...]:
    """Read the secrets, one per line. Raises ``StartRefused`` if the file is unreadable or not valid."""
    option = "[auth] proxy_secret_file"
    if not path:
        raise StartRefused(f"{option} must name a file for auth_strategy = proxy.")
    lines = tuple(line.strip() for line in read_private(option, path).splitlines() if line.strip())
    if not 1 <= len(lines) <= 2 or min(map(len, lines)) < MIN_LENGTH:
        raise StartRefused(
            f"{option} must contain one or two lines of at least {MIN_LENGTH} bytes each; {path} does not."
        )
    return lines
