# SPDX-License-Identifier: Apache-2.0
"""Client tokens: their sources, the headers that carry them, and their protection from disclosure."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zq.errors import Invalid

# Environment variable with the default token of clients.
VARIABLE: Final = "ZQ_TOKEN"
# Prefix of zq tokens. A server that accepts them reads only the ``Authorization`` header.
PREFIX: Final = "zq_"
# Maximum size in bytes of a token file. A JSON Web Token may be long.
MAX_FILE: Final = 65_536


class Token:
    """A token that never appears in a ``repr``, an error or a log."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Raise ``Invalid`` if the text cannot be sent in a header."""
        if not all("!" <= letter <= "~" for letter in text):
            raise Invalid(
                "A token must consist of visible ASCII characters, without blanks, control characters or line ends."
            )
        self._text = text

    def __repr__(self) -> str:
        return "Token(…)"

    def headers(self) -> Mapping[str, str]:
        """Return the request headers: ``Authorization``, and for tokens other than zq's also Keystone's header."""
        sent = {"Authorization": f"Bearer {self._text}"}
        return sent if self._text.startswith(PREFIX) else sent | {"X-Auth-Token": self._text}


def chosen_token(given: str | None, *, otherwise: bool) -> Token | None:
    """Return the token of a client, or ``None``.

    Args:
        given: Token; ``None`` = the environment variable, "" = no token.
        otherwise: Whether the client authenticates in another way. If so, the environment variable is ignored.
    """
    text = given if given is not None else "" if otherwise else os.environ.get(VARIABLE, "")
    return Token(text) if text else None


def read_token_file(path: Path) -> str:
    """Return the token in a file. Raises ``Invalid`` if other users can access the file or it has no valid token."""
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
    """Raise ``Invalid`` if other users may read or write a file with a token."""
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Invalid(f"Other users can read or write the token file {path}, so it is not used. Run: chmod 600 {path}")
