# SPDX-License-Identifier: Apache-2.0
"""Zaqar from the package index, in its own virtual environment, on a given store.

``python -m bench.zaqar`` creates the environment, and fails if that is impossible.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers import Lost, ask, free_port, wait_for

FOLDER = Path.home() / ".cache" / "zq-peer"
PACKAGES = ("zaqar==23.0.1", "gunicorn", "pymongo", "redis")
WORKERS = 2
THREADS = 8

APP = """
from oslo_config import cfg
from oslo_log import log
from zaqar.bootstrap import Bootstrap

log.register_options(cfg.CONF)
cfg.CONF(project="zaqar", prog="zaqar-queues", args=[], default_config_files=["zaqar.conf"])
app = Bootstrap(cfg.CONF).transport.app
"""
CONFIG = """
[DEFAULT]
auth_strategy =
unreliable = true
admin_mode = true
pooling = false
[drivers]
transport = wsgi
message_store = {kind}
management_store = {kind}
[drivers:message_store:{kind}]
{where}
[drivers:management_store:{kind}]
{where}
[profiler]
enabled = false
"""


def environment(folder: Path = FOLDER, packages: Sequence[str] = PACKAGES, program: str = "gunicorn") -> Path:
    """Return the folder of a virtual environment with packages and their program; create it if it does not exist."""
    if not (folder / "bin" / program).exists():
        print(f"Installing {packages[0]} into {folder} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run(
            [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True
        )
    return folder


class ZaqarServer:
    """Zaqar under gunicorn, as a context manager; ``store`` is a plain mongodb:// or redis:// URI."""

    def __init__(self, venv: Path, store: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._venv = venv
        self._folder = tempfile.TemporaryDirectory(prefix="zaqar-")
        kind = urlsplit(store).scheme
        address = urlsplit(store).netloc
        where = {
            # Zaqar crashes on replicaSet= with a current PyMongo; the set's default write concern holds all the same.
            "mongodb": f"uri = mongodb://{address}/?directConnection=true\ndatabase = zaqar",
            "redis": f"uri = redis://{address}?db=1",
        }[kind]
        Path(self._folder.name, "zaqar.conf").write_text(CONFIG.format(kind=kind, where=where))
        Path(self._folder.name, "zaqar_app.py").write_text(APP)

    def __enter__(self) -> "ZaqarServer":
        command = [self._venv / "bin" / "gunicorn", "-k", "gthread", "-w", str(WORKERS), "--threads", str(THREADS)]
        command += ["-b", f"127.0.0.1:{self._port}", "--log-level", "warning", "zaqar_app:app"]
        with Path(self._folder.name, "output").open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=self._folder.name, stdout=output, stderr=output, start_new_session=True
            )
        try:
            wait_for(self._answers, 60, "Zaqar answers")
        except BaseException:
            print(Path(self._folder.name, "output").read_text()[-3000:], file=sys.stderr)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        self._folder.cleanup()

    def _answers(self) -> bool:
        try:
            return ask(self.url, "GET", "/v2/queues").status == 200
        except Lost:
            return False


if __name__ == "__main__":
    try:
        environment()
    except subprocess.CalledProcessError:
        sys.exit(f"Zaqar is left out: pip could not install {PACKAGES[0]} from the package index.")
