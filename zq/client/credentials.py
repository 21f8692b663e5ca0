# SPDX-License-Identifier: Apache-2.0
"""Access tokens of clients: sources, request headers, and protection from disclosure."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zq.errors import Invalid

# Environment variable with the default token.
VARIABLE: Final = "ZQ_TOKEN"
# Prefix of tokens that zq issues.
PREFIX: Final = "zq_"
# Maximum size of a token file in bytes, large enough for a JSON Web Token.
MAX_FILE: Final = 65_536


class Token:
    """An access token that ``repr`` does not disclose."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Validate and store the token. Raises ``Invalid`` if it cannot be sent in a header."""
        if not all("!" <= letter <= "~" for letter in text):
            raise Invalid(
                "A token must consist of visible ASCII characters, without spaces, control characters or line breaks."
            )
        self._text = text

    def __repr__(self) -> str:
        return "Token(…)"

    def headers(self) -> Mapping[str, str]:
        """Return the ``Authorization`` header, and Keystone's ``X-Auth-Token`` for a token that zq has not issued."""
        sent = {"Authorization": f"Bearer {self._text}"}
        return sent if self._text.startswith(PREFIX) else sent | {"X-Auth-Token": self._text}


def resolve_token(token: str | None, *, otherwise: bool) -> Token | None:
    """Return the access token that the client sends, or ``None`` if the client sends no token.

    Args:
        token: The token; "" = no token, ``None`` = the token in the environment variable ``ZQ_TOKEN``.
        otherwise: Whether the client authenticates in another way. The environment variable is then ignored.
    """
    text = token if token is not None else "" if otherwise else os.environ.get(VARIABLE, "")
    return Token(text) if text else None


def read_token_file(path: Path) -> str:
    """Read a token from a private file.

    Raises ``Invalid`` if the file is unreadable, if other users can access it, or if it contains no valid token.
    """
    try:
        with path.open("rb") as file:
            check_private(path, os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise Invalid(f"The token file {path} cannot be read: {error.strerror}.") from error
    text = raw.decode("latin-1").strip()
    if not text or len(raw) > MAX_FILE or not all("!" <= letter <= "~" for letter in text):
        raise Invalid(f"The token file {path} must contain only a token.")
    return text


def check_private(path: Path, mode: int) -> None:
    """Raise ``Invalid`` if users other than the owner can read or write the file."""
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Invalid(f"Other users can read or write the token file {path}, so it is not used. Run: chmod 600 {path}")
