# SPDX-License-Identifier: Apache-2.0
"""An empty Falcon application behind zq's engines with zq's settings, as a baseline of the benchmarks."""

import os
import signal
import subprocess
import sys
import time
from http.client import HTTPConnection

import falcon

from tests.servers import free_port

THREADS = 16


class Nothing:
    """A resource that answers every method with an empty object."""

    def on_get(self, _req: falcon.Request, resp: falcon.Response, queue: str, kind: str) -> None:
        resp.data = b"{}"

    on_post = on_delete = on_get


app = falcon.App()
app.add_route("/v2/queues/{queue}/{kind}", Nothing())


class EmptyServer:
    """The application in its own process, as a context manager."""

    def __init__(self, engine: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._command = {
            "gunicorn": f"gunicorn -k gthread -w 1 --threads {THREADS} --no-control-socket --keep-alive 65"
            f" --log-level warning -b 127.0.0.1:{self._port} bench.empty:app",
            "granian": f"granian --interface wsgi --workers 1 --blocking-threads {THREADS}"
            f" --log-level error --port {self._port} bench.empty:app",
        }[engine].split()

    def __enter__(self) -> "EmptyServer":
        self._process = subprocess.Popen([sys.executable, "-m", *self._command], start_new_session=True)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                connection = HTTPConnection("127.0.0.1", self._port)
                connection.request("GET", "/v2/queues/q/messages")
                connection.getresponse().read()
                return self
            except OSError:
                time.sleep(0.05)
        self.__exit__()
        raise RuntimeError("The empty application did not start.")

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(20)
