# SPDX-License-Identifier: Apache-2.0
"""Execution of a page's commands in a reader's environment: only HOME, PATH, LANG and what the page itself sets."""

import os
import subprocess
import sys
from pathlib import Path

from tests.abilities import need

SHELL = ["bash", "-euo", "pipefail", "-c"]
PYTHON = ["python", "-W", "ignore", "-c"]
INSTALLED = Path(sys.prefix, "bin")


def environment(home: Path, path: str) -> dict[str, str]:
    """Return the environment of ``env -i HOME=… PATH=… LANG=…``."""
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}


def follow(
    command: list[str], folder: Path, within: float = 280, *, installed: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder that is also its home, and return the result, also of a failure.

    If ``installed``, the virtual environment's programs are on PATH; otherwise they are in ``.venv``, like after
    ``devstack/run``.
    """
    if "grep" in command[-1]:
        need("grep")
    path = [place for place in os.environ["PATH"].split(os.pathsep) if Path(place) != INSTALLED]
    if installed:
        path.insert(0, str(INSTALLED))
    else:
        (folder / ".venv").symlink_to(sys.prefix)
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder, os.pathsep.join(path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=within,
    )


def succeed(command: list[str], folder: Path, within: float = 280) -> str:
    """Run a program that must succeed; return its standard output and standard error."""
    done = follow(command, folder, within)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
