# SPDX-License-Identifier: Apache-2.0
"""An S3 on a free port: moto, which holds everything in memory.

``python -m tests.s3 PORT`` serves until it is ended, for ``devstack/up``.
"""

import signal
import subprocess
import sys
from typing import Final
from urllib.request import Request, urlopen

from tests.servers import Startable, free_port, spawn, wait_for

READY_WITHIN: Final = 60.0
BUCKET: Final = "zq-stores"


class S3(Startable):
    """One process; as a context manager nothing of it is left."""

    def __init__(self, port: int = 0) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {"AWS_ACCESS_KEY_ID": "zq", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
        """What the store's driver signs in with, beside the endpoint in its URI."""
        self._process: subprocess.Popen[bytes] | None = None

    def uri(self, prefix: str) -> str:
        """A store's."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.url}"

    def start(self) -> "S3":
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = spawn(command, stdin=quiet, stdout=quiet, stderr=quiet)
        wait_for(self._answers, READY_WITHIN, "moto answers")
        return self

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "moto ended by itself"
        try:
            with urlopen(Request(f"{self.url}/{BUCKET}", data=b"", method="PUT"), timeout=5):
                return True
        except OSError:
            return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with S3(int(sys.argv[1])):
        signal.pause()
