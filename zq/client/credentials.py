# SPDX-License-Identifier: Apache-2.0
"""Tokens on the caller's side: where a token comes from, in which headers it goes, and that nothing shows it."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zq.errors import Invalid

# The variable with the token of clients that are given none.
VARIABLE: Final = "ZQ_TOKEN"
# How tokens of zq begin; a server that takes them needs no other header than ``Authorization``.
PREFIX: Final = "zq_"
# Bytes of a file with one token; a JSON Web Token may be long.
MAX_FILE: Final = 65_536


class Token:
    """A token whose text is in no ``repr``, no error and no log."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Raises ``Invalid`` for what cannot stand in a header."""
        if not all("!" <= letter <= "~" for letter in text):
            raise Invalid("A token must be of visible ASCII characters: no blank, no control character, no line's end.")
        self._text = text

    def __repr__(self) -> str:
        return "Token(…)"

    def headers(self) -> Mapping[str, str]:
        """The headers of a request: ``Authorization``, and for others than zq's own the one that Keystone reads."""
        sent = {"Authorization": f"Bearer {self._text}"}
        return sent if self._text.startswith(PREFIX) else sent | {"X-Auth-Token": self._text}


def chosen_token(given: str | None, *, otherwise: bool) -> Token | None:
    """The token of a client; None without one. ``given`` None = that of the environment, "" = none.

    ``otherwise``: the caller proves in another way who he is, so that the environment does not count.
    """
    text = given if given is not None else "" if otherwise else os.environ.get(VARIABLE, "")
    return Token(text) if text else None


def read_token_file(path: Path) -> str:
    """The token that a file holds. Raises ``Invalid`` for a file that others may read, or that holds none."""
    try:
        with path.open("rb") as file:
            check_private(path, os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise Invalid(f"The token file {path} cannot be read: {error.strerror}.") from error
    text = raw.decode("latin-1").strip()
    if not text or len(raw) > MAX_FILE or not all("!" <= letter <= "~" for letter in text):
        raise Invalid(f"The token file {path} must hold one token and nothing else.")
    return text


def check_private(path: Path, mode: int) -> None:
    """Raise ``Invalid`` if others than its owner may read or write a file with a token."""
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Invalid(f"Others may read or write the token file {path}, so it is not used: chmod 600 {path}")
