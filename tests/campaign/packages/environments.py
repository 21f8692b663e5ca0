# SPDX-License-Identifier: Apache-2.0
"""Environments that pip fills, and servers that run in them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.packaging.conftest import run
from tests.servers import READY_WITHIN, free_port, wait_for


def environment(home: Path) -> Path:
    """Create an environment without pip; the pip of the tests installs its packages."""
    run(sys.executable, "-m", "venv", "--without-pip", home)
    return home


def pip(home: Path) -> list[str]:
    """Return the command that runs pip for this environment."""
    return [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--disable-pip-version-check"]


def install(home: Path, archive: Path, extras: str = "") -> None:
    run(*pip(home), "install", "-q", f"zq-queue[{extras}] @ file://{archive}" if extras else str(archive))


@contextmanager
def serving(home: Path, uri: str, asking: Path | None = None) -> Iterator[str]:
    """Run the environment's server on a store.

    ``asking`` is an environment with the command line if this one has none.
    """
    port = free_port()
    with subprocess.Popen(
        [home / "bin" / "zq-server", "--port", str(port)],
        env={"PATH": os.environ["PATH"], "OS_STORAGE__URI": uri},
        cwd="/",
    ) as server:
        try:
            health = [
                (asking or home) / "bin" / "zq",
                "--url",
                f"http://127.0.0.1:{port}",
                "--project",
                "acme",
                "health",
            ]
            wait_for(
                lambda: subprocess.run(health, capture_output=True).returncode == 0, READY_WITHIN, "the server answers"
            )
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def life_cycle(home: Path, url: str) -> None:
    """Post two messages, claim and delete one, pop the other, and find the queue empty."""
    zq = [home / "bin" / "zq", "--url", url, "--project", "acme"]
    for number in (1, 2):
        run(*zq, "post", "jobs", json.dumps({"n": number}))
    claimed = json.loads(run(*zq, "claim", "jobs", "--limit", "1").stdout)
    assert claimed["body"] == {"n": 1}
    run(*zq, "settle", "jobs", claimed["claim"], "--delete", claimed["id"])
    assert json.loads(run(*zq, "pop", "jobs").stdout)["body"] == {"n": 2}
    assert run(*zq, "list", "jobs").stdout == ""
