# SPDX-License-Identifier: Apache-2.0
"""The bearer token that scrapers of the metrics listener must send."""

from hmac import compare_digest
from typing import Final

from zq.auth.files import read_private
from zq.errors import StartRefused

# Name of the option with the path of the file.
OPTION: Final = "[metrics] token_file"


class MetricsToken:
    """A file with the token of scrapers. The file can be reloaded."""

    def __init__(self, path: str) -> None:
        """Read the token. If ``path`` is empty, no token is required. Raises the same errors as ``read_token``."""
        self._path = path
        self._token = read_token(path)

    def reload(self) -> None:
        """Read the file again. If it is invalid, raise ``StartRefused`` and keep the previous token."""
        self._token = read_token(self._path)

    def permits(self, authorization: str) -> bool:
        """Return whether the value of an ``Authorization`` header has the token, or no token is required."""
        if self._token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and compare_digest(given.strip().encode(), self._token.encode())


def read_token(path: str) -> str | None:
    """Return the token in a file, or ``None`` if ``path`` is empty.

    Raises ``StartRefused`` if the file is unreadable, if other users can read it, or if it contains no valid token.
    """
    if not path:
        return None
    token = read_private(OPTION, path).decode("latin-1").strip()
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise StartRefused(
            f"{OPTION} must contain only a token, of visible ASCII characters without spaces; {path} does not."
        )
    return token
