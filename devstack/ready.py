# SPDX-License-Identifier: Apache-2.0
"""Wait until a process serves a URL: ``python devstack/ready.py PID URL``, called by ``ready`` of the scripts.

The process, or a child of it, must listen on the URL's port, and must still run after its response. Another program
that listens there gets no request. A URL with another scheme than HTTP is ready when its port is open.
"""

import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

PROC: Final = Path("/proc")
# Seconds that a process may take to start.
PATIENCE: Final = 60.0
# The state of a listening socket in the kernel's tables.
LISTENING: Final = "0A"


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a process that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
        return _stat(pid)[0] != "Z" if PROC.exists() else True
    except (OSError, IndexError):
        return False


def listens(pid: int, port: int) -> bool:
    """Return whether the process or a child of it listens on the port; without the kernel's tables, assume so."""
    if not (PROC / "net/tcp").exists():
        return True
    return bool(_listening_sockets(port) & {socket for member in _family(pid) for socket in _sockets(member)})


def answers(url: str) -> bool:
    """Return whether an HTTP URL returns a success; True for other URLs."""
    if urlsplit(url).scheme != "http":
        return True
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - the scripts name it
            return True
    except OSError:
        return False


def wait(pid: int, url: str) -> bool:
    """Return whether the process serves the URL within ``PATIENCE``; False as soon as it has ended."""
    port = urlsplit(url).port or 80
    until = time.monotonic() + PATIENCE
    while is_alive(pid) and time.monotonic() < until:
        if listens(pid, port) and answers(url):
            return is_alive(pid) and listens(pid, port)
        time.sleep(0.1)
    return False


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: its state, the process id of its parent, and more."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _family(pid: int) -> set[int]:
    """Return the process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
            except (OSError, IndexError):
                continue
    family, grown = {pid}, True
    while grown:
        found = {child for child, parent in parents.items() if parent in family} - family
        family, grown = family | found, bool(found)
    return family


def _sockets(pid: int) -> Iterator[str]:
    """Yield the inodes of the sockets of a process."""
    try:
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target[len("socket:[") : -1]
    except OSError:
        return


def _listening_sockets(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on the port."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                found.add(inode)
    return found


if __name__ == "__main__":
    sys.exit(not wait(int(sys.argv[1]), sys.argv[2]))
