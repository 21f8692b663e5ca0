# SPDX-License-Identifier: Apache-2.0
"""An end for connections whose readers take nothing, where the engine does not show them to the application."""

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

DESCRIPTORS: Final = Path("/proc/self/fd")


@cache
def bound(port: int, seconds: float) -> None:
    """The kernel ends any connection to ``port`` of this process, now or later, when what was sent on it has not been
    taken for so long. Done once: connections to come have it from the socket that listens."""
    names: list[str] = []
    with suppress(OSError):  # where the system does not show them, readers keep their places
        names = os.listdir(DESCRIPTORS)
    for name in names:
        with suppress(OSError):  # no socket, or closed meanwhile
            if os.readlink(DESCRIPTORS / name).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as opened:
                    if opened.family != socket.AF_UNIX and opened.getsockname()[1] == port:
                        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1e3))
