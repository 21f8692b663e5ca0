# SPDX-License-Identifier: Apache-2.0
"""Access to secret files, which other users must not be able to read."""

import os
import stat
from typing import Final

from zq.errors import StartRefused

# Allowed modes: the owner may read and write, the group may read.
MODES: Final = (0o600, 0o640, 0o400, 0o440)
# Maximum bytes read from a file.
MAX_SIZE: Final = 65536


def read_private(option: str, path: str) -> bytes:
    """Read the secret file of ``option``. Raises ``StartRefused`` if it is unreadable or its mode is too open."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(MAX_SIZE)
    except OSError as error:
        raise StartRefused(f"{option} cannot be read: {path}: {error.strerror}.") from error
    if mode not in MODES:
        raise StartRefused(
            f"{option} must be readable only by its owner, with mode 0600 or 0640; {path} has {mode:04o}."
        )
    return content
