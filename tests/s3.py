# SPDX-License-Identifier: Apache-2.0
"""An S3 server on a free port: moto, which keeps all data in memory.

``python -m tests.s3 PORT`` serves until it is terminated, for ``devstack/up``. Requests are serialized, because moto
does not check and create an object atomically: several writers of one name could all succeed.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

from tests.servers import Startable, free_port, spawn, wait_for

READY_WITHIN: Final = 180.0
BUCKET: Final = "zq-stores"
ROOT: Final = Path(__file__).parent.parent


class S3(Startable):
    """A moto process; a context manager that stops it and discards its data."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {"AWS_ACCESS_KEY_ID": "zq", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}
        """The store driver's credentials; the endpoint is in the URI."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        """Return the id of the process."""
        return [self._process.pid] if self._process else []

    def uri(self, prefix: str) -> str:
        """Return the URI of a store."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.url}"

    def start(self) -> "S3":
        command = [sys.executable, "-m", "tests.s3", str(self.port)]
        quiet = subprocess.DEVNULL
        self._process = spawn(command, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet)
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
            with urlopen(f"{self.url}/{BUCKET}", timeout=5):
                return True
        except OSError:
            return False


def serve(port: int) -> None:
    """Create the bucket and serve until the process is terminated."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    moto = DomainDispatcherApplication(create_backend_app)
    alone = threading.Lock()

    def one_by_one(environment: dict[str, Any], begin: Callable[..., Any]) -> Iterable[bytes]:
        with alone:
            return list(moto(environment, begin))

    def make_bucket() -> None:
        request = Request(f"http://127.0.0.1:{port}/{BUCKET}", data=b"", method="PUT")

        def made() -> bool:
            try:
                return bool(urlopen(request, timeout=5))
            except OSError:
                return False

        wait_for(made, READY_WITHIN, "the bucket")

    threading.Thread(target=make_bucket, daemon=True).start()
    run_simple("127.0.0.1", port, one_by_one, threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
