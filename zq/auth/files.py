# SPDX-License-Identifier: Apache-2.0
"""Files of secrets that the operator keeps: others must not be able to read them."""

import os
import stat
from typing import Final

from zq.errors import StartRefused

# What such a file may be allowed to: its owner, and its group to read.
MODES: Final = (0o600, 0o640, 0o400, 0o440)
# Bytes that are read of one.
MOST: Final = 65536


def read_private(option: str, path: str) -> bytes:
    """What the file holds that this option names. Raises ``StartRefused``."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(MOST)
    except OSError as error:
        raise StartRefused(f"{option} cannot be read: {path}: {error.strerror}.") from error
    if mode not in MODES:
        raise StartRefused(f"{option} must be readable by its owner alone, mode 0600 or 0640: {path} is {mode:04o}.")
    return content
