# SPDX-License-Identifier: Apache-2.0
"""The control socket accepts only its own user and root, identified by the kernel's peer credentials (tenancy 5)."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zq.errors import Unavailable
from zq.serving import control

NOBODY = 65534
ASK = """
import os, sys
from zq.serving import control
from zq.errors import Unavailable
os.setuid(int(sys.argv[2]))
try:
    print(control.send(sys.argv[1], "GET", "/v2/admin/tokens"))
except Unavailable:
    print("not heard")
"""


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "application/json")])
    return [b"true" if environ[control.KEY] else b"false"]


@pytest.fixture
def path() -> Iterator[str]:
    """Return the path of a control socket whose file permissions admit every user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        path = str(Path(folder, "control.sock"))
        control.serve(path, app)
        assert os.stat(path).st_mode & 0o777 == 0o600
        os.chmod(path, 0o666)
        yield path


def asked_by(user: int, path: str) -> str:
    done = subprocess.run([sys.executable, "-c", ASK, path, str(user)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_own_user_is_accepted(path: str) -> None:
    assert asked_by(os.geteuid(), path) == "(200, True)"


@pytest.mark.ability("root")
def test_another_user_is_refused_despite_file_permissions(path: str) -> None:
    assert asked_by(NOBODY, path) == "not heard"


@pytest.mark.parametrize(
    ("answers", "sentence"), [(True, "ended the connection without an answer"), (False, "did not answer in time")]
)
def test_a_server_that_does_not_answer_is_not_reported_as_missing(
    answers: bool, sentence: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("s") / "sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        if answers:
            threading.Thread(target=lambda: listener.accept()[0].close()).start()
        with pytest.raises(Unavailable, match=sentence) as failure:
            control.send(path, "GET", "/healthz", within=5.0 if answers else 0.1)
        assert not isinstance(failure.value, control.NoServer)
    with pytest.raises(control.NoServer):
        control.send(path, "GET", "/healthz")
