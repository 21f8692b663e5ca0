# SPDX-License-Identifier: Apache-2.0
"""The strategy ``proxy``: a proxy has authenticated the caller and says who it is, beside a secret that both know."""

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Any, Final

from zq.auth.credentials import FailureLimit
from zq.auth.files import read_private
from zq.errors import NotAuthenticated, StartRefused

HEADER: Final = "HTTP_X_ZQ_PROXY_SECRET"
CHALLENGE: Final = "ZQ-Proxy"
NEEDED: Final = "A credential is needed: X-ZQ-Proxy-Secret, which the proxy adds."
# Bytes of the shortest secret.
LEAST: Final = 32


class ProxySecrets:
    """Whether a request came through the proxy; who asks is in its headers then."""

    def __init__(self, path: Callable[[], str]) -> None:
        """``path``: the file of the secrets, as it is configured now. Raises ``StartRefused``."""
        self._path = path
        self._failures = FailureLimit()
        self._secrets = read_secrets(path())

    def reload(self) -> None:
        """Read the file again. Raises ``StartRefused``, and the former secrets stay."""
        self._secrets = read_secrets(self._path())

    def check(self, env: Mapping[str, Any], peer: str) -> None:
        """Raise ``NotAuthenticated``, ``TooManyRequests`` unless the secret is there."""
        if self.known(env):
            return
        self._failures.check(peer)
        self._failures.count(peer)
        raise NotAuthenticated(None if env.get(HEADER) else NEEDED, CHALLENGE)

    def known(self, env: Mapping[str, Any]) -> bool:
        """Whether the secret is there."""
        given = env.get(HEADER, "").encode("latin-1")
        return True in [compare_digest(given, secret) for secret in self._secrets]  # all of them, whichever fits


def read_secrets(path: str) -> tuple[bytes, ...]:
    """The lines of the file. Raises ``StartRefused``."""
    option = "[auth] proxy_secret_file"
    if not path:
        raise StartRefused(f"{option} must name a file: auth_strategy = proxy needs it.")
    lines = tuple(line.strip() for line in read_private(option, path).splitlines() if line.strip())
    if not 1 <= len(lines) <= 2 or min(map(len, lines)) < LEAST:
        raise StartRefused(f"{option} must hold one or two lines of at least {LEAST} bytes each: {path} does not.")
    return lines
