# SPDX-License-Identifier: Apache-2.0
"""``devstack`` scripts that start a server: they use that server, and no other program on its port."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers import spawn

ROOT = Path(__file__).parent.parent
DEVSTACK = ROOT / "devstack"
READY = [sys.executable, str(DEVSTACK / "ready.py")]


class Stub:
    """A program that answers each request with 200 and records it in ``requests``."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[str] = []


@contextmanager
def stub() -> Iterator[Stub]:
    """Serve on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            found.requests.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Stub(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a script for which this virtual environment is already prepared."""
    venv = tmp_path / "venv"
    venv.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if not entry.name.startswith(".zq-"):
            (venv / entry.name).symlink_to(entry)
    own = {**os.environ, "ZQ_VENV": str(venv), "TMPDIR": str(tmp_path)}
    source = ["bash", "-c", f"source {DEVSTACK}/environment.sh; fingerprint"]
    stamp = subprocess.run(source, env=own, check=True, capture_output=True, text=True).stdout
    (venv / ".zq-cli,rocksdb,server,spark").write_text(stamp)
    return own


def test_the_spark_example_leaves_a_server_alone_that_it_did_not_start(environment: dict[str, str]) -> None:
    """Another program has the port: the script exits with an error and sends no request."""
    with stub() as found:
        command = [str(DEVSTACK / "spark-example")]
        own = {**environment, "ZQ_PORT": str(found.port)}
        ended = subprocess.run(command, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "The server has not started; its message is above." in ended.stderr
    assert found.requests == []


def test_a_process_is_ready_when_it_serves_the_url_itself() -> None:
    """A child process may listen, as in servers with worker processes."""
    serve = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=0, bind='127.0.0.1')"
    child = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-u', '-c', {serve!r}]))"
    with spawn([sys.executable, "-c", child], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().partition(" port ")[2].split()[0]
        assert subprocess.run([*READY, str(process.pid), f"http://127.0.0.1:{port}/"], check=False).returncode == 0
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("scheme", ["http", "tcp"])
def test_a_process_that_ends_while_another_program_serves_the_url_is_not_ready(scheme: str) -> None:
    """The other program gets no request."""
    with stub() as found, subprocess.Popen(["sleep", "1"]) as process:
        url = f"{scheme}://127.0.0.1:{found.port}/readyz"
        assert subprocess.run([*READY, str(process.pid), url], check=False, timeout=60).returncode == 1
        assert process.wait() == 0
    assert found.requests == []


def test_no_script_waits_for_a_url_by_itself() -> None:
    """The scripts call ``ready``, which knows the process."""
    scripts = [path for path in DEVSTACK.iterdir() if path.is_file() and path.suffix != ".py"]
    assert {"up", "spark-example"} <= {path.name for path in scripts}
    waits = ("curl", "wget", "urlopen", "zq health", "healthz", "nc -z")
    found = {path.name: word for path in scripts for word in waits if word in path.read_text()}
    assert found == {}
