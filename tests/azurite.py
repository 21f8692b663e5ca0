# SPDX-License-Identifier: Apache-2.0
"""An Azure blob storage on a free port: Azurite, which keeps all data in memory.

Install it with ``npm install --global azurite`` or ``npm install --prefix var/npm azurite``.
"""

import base64
import hashlib
import hmac
import subprocess
from email.utils import formatdate
from typing import Final
from urllib.request import Request, urlopen

from tests.abilities import locate
from tests.servers import Startable, free_port, spawn, wait_for

READY_WITHIN: Final = 180.0
CONTAINER: Final = "zq-stores"
# Azurite has one account, with a publicly known key.
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
MEMORY: Final = ("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry")


class Azurite(Startable):
    """An Azurite process; a context manager that stops it and discards its data."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        self.environment = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
        """The store driver's credentials; the endpoint is in the URI."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        """Return the id of the process."""
        return [self._process.pid] if self._process else []

    def uri(self, prefix: str, container: str = CONTAINER) -> str:
        """Return the URI of a store."""
        return f"az://{container}/{prefix}?endpoint={self.url}"

    def start(self) -> "Azurite":
        """Start Azurite and create a container."""
        program = locate("azurite-blob")
        assert program is not None, "Azurite is not installed."
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *MEMORY]
        quiet = subprocess.DEVNULL
        self._process = spawn(command, stdin=quiet, stdout=quiet, stderr=quiet)
        wait_for(self._made, READY_WITHIN, "Azurite makes a container")
        return self

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)

    def _made(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "Azurite ended by itself"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        said = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = "PUT" + "\n" * 12 + f"{said}/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        request = Request(f"{self.url}/{CONTAINER}?restype=container", headers=headers, method="PUT")
        try:
            with urlopen(request, timeout=5) as answer:
                return bool(answer.status == 201)
        except OSError:
            return False
