# SPDX-License-Identifier: Apache-2.0
"""Key files: master keys, which encrypt the data keys of bodies (contract 7.9) and secrets that the store keeps."""

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Final

from zq.auth.files import read_private
from zq.errors import StartRefused

# The option that names the file.
OPTION: Final = "[transport] message_encryption_key_file"
# Bytes of a key.
SIZE: Final = 32
# A key's id.
ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}", re.ASCII)


class MasterKeys:
    """A key file; ``use`` is called with its keys whenever it is read."""

    def __init__(self, path: str, use: Callable[[Mapping[str, bytes]], object], option: str = OPTION) -> None:
        self._path = path
        self._use = use
        self._option = option

    def reload(self) -> None:
        """Read the file again. Raises ``StartRefused``; then the former keys stay in use."""
        self._use(read_keys(self._path, self._option))


def read_keys(path: str, option: str = OPTION) -> dict[str, bytes]:
    """Return the keys of the file by id, in the file's order; none if ``path`` is "". Raises ``StartRefused``.

    Each line has an id, a space and 32 bytes in base64. Blank lines and lines that begin with # are ignored.
    """
    keys: dict[str, bytes] = {}
    if not path:
        return keys
    for number, line in enumerate(read_private(option, path).decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        id, key = _read(line)
        if key is None or id in keys:
            fault = "names an id again" if key else "must be an id and 32 bytes in base64"
            raise StartRefused(f"{option} cannot be used: line {number} of {path} {fault}.")
        keys[id] = key
    if find_spec("cryptography") is None:
        raise StartRefused(f"{option} needs an extra: pip install 'zq-queue[encryption]'.")
    if not keys:
        raise StartRefused(f"{option} cannot be used: {path} holds no key.")
    return keys


def _read(line: str) -> tuple[str, bytes | None]:
    parts = line.split()
    if len(parts) != 2 or ID.fullmatch(parts[0]) is None:
        return "", None
    try:
        key = b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        return "", None
    return parts[0], key if len(key) == SIZE else None
