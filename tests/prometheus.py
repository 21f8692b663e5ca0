# SPDX-License-Identifier: Apache-2.0
"""A Prometheus on a free port."""

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.abilities import locate
from tests.servers import Lost, ask, free_port, spawn, wait_for

# A busy machine starts Prometheus slowly.
WITHIN = 60


class Prometheus:
    """A Prometheus with its data in a folder; ``start`` starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[Any] | None = None
        self.url = f"http://127.0.0.1:{free_port()}"

    def start(self, config: Path) -> None:
        """Start the server, and return when it has read the metrics of its first target and ZqDown has ended."""
        command = [
            *(locate("prometheus") or "", f"--config.file={config}", f"--storage.tsdb.path={self._folder}"),
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        log = self._folder.with_suffix(".log")
        with log.open("w") as output:
            self._process = spawn(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        is_up = "up == 1 unless on () ALERTS{alertname='ZqDown'}"
        wait_for(lambda: self.query(is_up), WITHIN, f"Prometheus reads metrics, see {log}")

    def query(self, expression: str) -> list[Any]:
        """Return the current series of an expression, or none while Prometheus starts."""
        try:
            answer = ask(self.url, "GET", f"/api/v1/query?query={quote(expression)}")
        except Lost:
            return []
        return json.loads(answer.body)["data"]["result"] if answer.status == 200 else []

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
