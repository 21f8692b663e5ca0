# SPDX-License-Identifier: Apache-2.0
"""Does what a page says as its reader would: in an environment of HOME, PATH and LANG, in which nothing else is set
but by the page itself."""

import os
import subprocess
import sys
from pathlib import Path

from tests.abilities import need

SHELL = ["bash", "-euo", "pipefail", "-c"]
PYTHON = ["python", "-W", "ignore", "-c"]
INSTALLED = Path(sys.prefix, "bin")


def environment(home: Path, path: str) -> dict[str, str]:
    """As of ``env -i HOME=… PATH=… LANG=…``."""
    return {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}


def follow(
    command: list[str], folder: Path, within: float = 280, *, installed: bool = True
) -> subprocess.CompletedProcess[str]:
    """A program as the reader runs it, in a folder that is home too, whatever it comes to.

    What is ``installed`` is on PATH; if not, it is in ``.venv``, where ``devstack/run`` puts it.
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
    """What such a program has said, both ways. Fails if it has."""
    done = follow(command, folder, within)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
