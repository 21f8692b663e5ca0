# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack Swift on free ports: one process of each of its four servers, from wheels, without root.

One device means one replica; with three devices, each device has a replica of everything. tempauth authenticates the
users, with tokens sealed by a key instead of stored in memcached. ``python -m tests.swift FOLDER PORT`` serves until it
is terminated, for ``devstack/up``.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.binaries import Missing
from tests.servers import Startable, free_port, spawn, stopped, wait_for

READY_WITHIN: Final = 180.0
ACCOUNT: Final = "AUTH_zq"
ROOT: Final = str(Path(__file__).parent.parent)
USER: Final = "zq:tester"
KEY: Final = "testing"
ROLES: Final = ("account", "container", "object")

HASH: Final = """\
[swift-hash]
swift_hash_path_prefix = zq
swift_hash_path_suffix = zq
[storage-policy:0]
name = gold
default = yes
"""
BACKEND: Final = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
workers = 0
log_address = /dev/null
user =
fallocate_reserve = 0
disable_fallocate = true
[pipeline:main]
pipeline = {role}-server
[app:{role}-server]
use = egg:swift#{role}
"""
PROXY: Final = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {folder}
workers = 0
log_address = /dev/null
user =
[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache tempauth copy dlo versioned_writes proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
conn_timeout = 2
node_timeout = {timeout}
error_suppression_interval = 0.001
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:cache]
paste.filter_factory = tests.swift_cache:filter_factory
[filter:tempauth]
use = egg:swift#tempauth
user_zq_tester = testing .admin
token_life = {token_life}
fernet_key_test = MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=
active_fernet_key_id = test
[filter:copy]
use = egg:swift#copy
[filter:dlo]
use = egg:swift#dlo
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
"""
RINGS: Final = """\
import sys
from swift.common.ring import RingBuilder
folder, devices, *ports = sys.argv[1:]
for role, port in zip(("account", "container", "object"), map(int, ports)):
    ring = RingBuilder(4, int(devices), 0)
    for number in range(int(devices)):
        ring.add_dev({"region": 1, "zone": number, "ip": "127.0.0.1", "port": port, "device": f"d{number}",
                      "weight": 1, "replication_ip": "127.0.0.1", "replication_port": port})
    ring.rebalance(seed=1)
    ring.get_ring().save(f"{folder}/{role}.ring.gz")
"""


class Swift(Startable):
    """The four processes of a Swift; a context manager that finally removes everything. ``devices`` is 1 or 3."""

    def __init__(
        self, devices: int = 1, token_life: int = 86400, timeout: int = 10, folder: str = "", port: int = 0
    ) -> None:
        """Create the Swift in ``folder``, which is kept, or in a temporary one; ``port`` is the proxy's."""
        self._folder = None if folder else tempfile.TemporaryDirectory(prefix="zq-swift-")
        self.folder = Path(self._folder.name if self._folder else folder)
        self.devices = devices
        self._ports = {role: free_port() for role in ROLES} | {"proxy": port or free_port()}
        self._values = {"folder": self.folder, "token_life": token_life, "timeout": timeout}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.auth_url = f"http://127.0.0.1:{self._ports['proxy']}/auth/v1.0"
        self.environment = {"ST_AUTH": self.auth_url, "ST_USER": USER, "ST_KEY": KEY}
        """The store driver's credentials, for ``?auth=v1``."""

    @property
    def pids(self) -> list[int]:
        """Return the ids of the processes."""
        return [process.pid for process in self._processes.values()]

    def uri(self, prefix: str) -> str:
        """Return the URI of a store."""
        return f"swift://zq/{prefix}?auth=v1"

    @property
    def output(self) -> str:
        """Return the output of all processes."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def start(self) -> "Swift":
        for number in range(self.devices):
            (self.folder / "devices" / f"d{number}").mkdir(parents=True, exist_ok=True)
        (self.folder / "swift.conf").write_text(HASH)
        ports = [str(self._ports[role]) for role in ROLES]
        rings = [sys.executable, "-c", RINGS, str(self.folder), str(self.devices), *ports]
        subprocess.run(rings, check=True, timeout=60, capture_output=True)
        for role in (*ROLES, "proxy"):
            self.launch(role)
        wait_for(self._answers, READY_WITHIN, "Swift answers")
        return self

    def launch(self, role: str) -> None:
        """Start the server ``account``, ``container``, ``object`` or ``proxy`` without waiting for it."""
        settings = self.folder / f"{role}.conf"
        text = PROXY if role == "proxy" else BACKEND
        settings.write_text(text.format(port=self._ports[role], role=role, **self._values))
        with (self.folder / f"{role}.log").open("ab") as output:
            command = [_program(f"swift-{role}-server"), str(settings)]
            self._processes[role] = spawn(
                command, env={**os.environ, "PYTHONPATH": ROOT}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def kill(self, role: str = "proxy", how: signal.Signals = signal.SIGKILL) -> None:
        """End one process, and wait for its end. Its data stay."""
        process = self._processes[role]
        process.send_signal(how)
        process.wait(30)

    def frozen(self, role: str = "proxy") -> contextlib.AbstractContextManager[None]:
        """Stop one process in the context, so that it accepts connections but never answers."""
        return stopped(self._processes[role].pid)

    @contextlib.contextmanager
    def broken_device(self, number: int) -> Iterator[None]:
        """Make a device unusable in the context: its folder is a file."""
        device = self.folder / "devices" / f"d{number}"
        device.rename(device.with_suffix(".away"))
        device.touch()
        try:
            yield
        finally:
            device.unlink()
            device.with_suffix(".away").rename(device)

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(30)
        if self._folder:
            self._folder.cleanup()

    def _answers(self) -> bool:
        for role, process in self._processes.items():
            assert process.poll() is None, f"swift-{role}-server ended by itself:\n{self.output[-3000:]}"
        try:
            return all(self._healthy(role) for role in self._processes)
        except (URLError, OSError):
            return False

    def _healthy(self, role: str) -> bool:
        path = "healthcheck" if role == "proxy" else "recon/version"
        try:
            with urlopen(f"http://127.0.0.1:{self._ports[role]}/{path}", timeout=2):
                return True
        except HTTPError as answer:
            return answer.code < 500


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed: pip install zq-queue[servers].")
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with Swift(folder=sys.argv[1], port=int(sys.argv[2])):
        signal.pause()
