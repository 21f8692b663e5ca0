# SPDX-License-Identifier: Apache-2.0
"""Files with master keys. A master key encrypts data keys (contract section 7.9) and other stored secrets."""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Final

from zq.auth.files import read_private
from zq.errors import StartRefused

# Name of the option with the path of the file.
OPTION: Final = "[transport] message_encryption_key_file"
# Key length in bytes.
KEY_SIZE: Final = 32
# The id of a key.
ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)


class MasterKeys:
    """A file of master keys that can be reloaded.

    Args:
        use: Called with the keys by id at each reload.
        option: The name of the option with the path, for error messages.
    """

    def __init__(self, path: str, use: Callable[[Mapping[str, bytes]], object], option: str = OPTION) -> None:
        self._path = path
        self._use = use
        self._option = option

    def reload(self) -> None:
        """Read the key file again. If it is invalid, raise ``StartRefused`` and keep the previous keys."""
        self._use(read_keys(self._path, self._option))


def read_keys(path: str, option: str = OPTION) -> dict[str, bytes]:
    """Read a key file. Return the keys by id, in file order, or no keys if ``path`` is empty.

    Each line has an id, a space and 32 bytes in base64. Blank lines and lines that begin with # are ignored.

    Raises ``StartRefused`` if the file is unreadable or not valid, or if the package ``cryptography`` is not installed.
    ``option`` is the option that the error names.
    """
    keys: dict[str, bytes] = {}
    if not path:
        return keys
    for number, line in enumerate(read_private(option, path).decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        id, key = _read(line)
        if key is None or id in keys:
            fault = "repeats an id" if key else "must be an id and 32 bytes in base64"
            raise StartRefused(f"{option} cannot be used: line {number} of {path} {fault}.")
        keys[id] = key
    if find_spec("cryptography") is None:
        raise StartRefused(f"{option} requires an extra: pip install 'zq-queue[encryption]'.")
    if not keys:
        raise StartRefused(f"{option} cannot be used: {path} contains no key.")
    return keys


def _read(line: str) -> tuple[str, bytes | None]:
    parts = line.split()
    if len(parts) != 2 or ID.fullmatch(parts[0]) is None:
        return "", None
    try:
        key = b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        return "", None
    return parts[0], key if len(key) == KEY_SIZE else None
