# SPDX-License-Identifier: Apache-2.0
"""The notifications of a real server to systemd's socket, and the unit in systemd's own tool."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.abilities import locate, need
from tests.blocks import ROOT
from tests.servers import ZqServer

# Seconds within which a server starts, reloads and stops.
WITHIN = 60


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Receive notifications like systemd; ``@`` begins an abstract address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address.replace("@", "\0"))
        receiver.settimeout(WITHIN)
        yield receiver


@pytest.mark.parametrize(("engine", "address"), [("granian", "{}/notify"), ("gunicorn", "@zq-{}")])
def test_systemd_is_notified_of_the_start_of_reloads_and_of_the_end(engine: str, address: str, tmp_path: Path) -> None:
    """The first notification comes when the server accepts requests."""
    where, config = address.format(tmp_path), tmp_path / "zq.conf"
    config.write_text("")
    with listening(where) as manager:
        options = ["--config", str(config)]
        server = ZqServer(f"rocksdb://{tmp_path}/store", *options, engine=engine, env={"NOTIFY_SOCKET": where})
        with closing(server):
            server.launch()
            assert manager.recv(100) == b"READY=1"
            assert server.ready()
            os.kill(server.pid, signal.SIGHUP)
            assert [manager.recv(100) for _ in range(2)] == [b"RELOADING=1", b"READY=1"]
            config.write_text("[log]\nlevel = LOUD\n")
            os.kill(server.pid, signal.SIGHUP)
            assert [manager.recv(100) for _ in range(2)] == [b"RELOADING=1", b"READY=1"]
            os.kill(server.pid, signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert server.wait(WITHIN) == 0
            assert "Options not reloaded" in server.output


def test_a_server_serves_although_systemd_does_not_receive(tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "missing")}
    with ZqServer("memory:", engine="granian", env=env) as server:
        assert server.terminate() == 0
    assert f"Cannot notify systemd at {tmp_path}/missing: No such file or directory." in server.output


def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    """The unit's program is replaced by one that exists on this machine."""
    need("systemd-analyze")
    unit = tmp_path / "zq.service"
    unit.write_text((ROOT / "etc" / "zq.service").read_text().replace("/opt/zq/bin/zq-server", "/bin/true"))
    done = subprocess.run(
        [str(locate("systemd-analyze")), "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
