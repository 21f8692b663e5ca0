# SPDX-License-Identifier: Apache-2.0
"""The strategy ``proxy``: an authenticating proxy passes the caller's identity in headers, with a shared secret."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, Final

from zq.auth.credentials import FailureLimit
from zq.auth.files import read_private
from zq.errors import NotAuthenticated, StartRefused

HEADER: Final = "HTTP_X_ZQ_PROXY_SECRET"
CHALLENGE: Final = "ZQ-Proxy"
NEEDED: Final = "A credential is required: X-ZQ-Proxy-Secret, which the proxy adds."
# Minimum length of a secret in bytes.
MIN_LENGTH: Final = 32


class ProxySecrets:
    """The check that a request passed the proxy, whose identity headers are trusted."""

    def __init__(self, path: Callable[[], str]) -> None:
        """Read the secrets. ``path`` returns the currently configured path. Raises ``StartRefused``."""
        self._path = path
        self._failures = FailureLimit()
        self._secrets = read_secrets(path())

    def reload(self) -> None:
        """Read the file again. Raises ``StartRefused``, and keeps the former secrets in that case."""
        self._secrets = read_secrets(self._path())

    def check(self, env: Mapping[str, Any], peer: str) -> None:
        """Raise ``NotAuthenticated`` or ``TooManyRequests`` unless the request has a valid secret."""
        if self.known(env):
            return
        self._failures.check(peer)
        self._failures.count(peer)
        raise NotAuthenticated(None if env.get(HEADER) else NEEDED, CHALLENGE)

    def known(self, env: Mapping[str, Any]) -> bool:
        """Return whether the request has a valid secret."""
        given = env.get(HEADER, "").encode("latin-1")
        return True in [
            compare_digest(given, secret) for secret in self._secrets
        ]  # compares with all secrets in constant time


def read_secrets(path: str) -> tuple[bytes, ...]:
    """Return the lines of the file. Raises ``StartRefused``."""
    option = "[auth] proxy_secret_file"
    if not path:
        raise StartRefused(f"{option} must name a file for auth_strategy = proxy.")
    lines = tuple(line.strip() for line in read_private(option, path).splitlines() if line.strip())
    if not 1 <= len(lines) <= 2 or min(map(len, lines)) < MIN_LENGTH:
        raise StartRefused(
            f"{option} must contain one or two lines of at least {MIN_LENGTH} bytes each; {path} does not."
        )
    return lines
