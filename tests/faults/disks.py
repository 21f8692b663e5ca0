# SPDX-License-Identifier: Apache-2.0
"""Disks that can become full: by a limit on file sizes, and small file systems."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from tests.servers import ZqServer, wait_for
from zq.model import Draft, QueueRef, new_ids
from zq.serving.settings import variable
from zq.storage.api import Storage

MEBIBYTES = 32


class Disk(Protocol):
    """A disk for a store, which a test can fill and free."""

    server: ZqServer
    filling: str
    """Part of a message's body."""

    def fill(self) -> None: ...

    def free(self) -> None: ...

    def close(self) -> None: ...


class LimitedFiles:
    """A size limit on every process of the server: a write fails halfway, then after a second ``fill`` all fail.

    (With a limit in bytes, a driver that opens new files could continue to write, which a full disk does not allow.)
    """

    def __init__(self, folder: Path, engine: str = "gunicorn") -> None:
        self._folder = folder / "store"
        self._filled = False
        self.server = ZqServer(f"rocksdb://{self._folder}", engine=engine)
        self.filling = "x" * (50_000 if engine == "gunicorn" else 7_000)  # keeps the request short

    def fill(self) -> None:
        largest = max(file.stat().st_size for file in self._folder.rglob("*.log"))
        self._limit(0 if self._filled else largest + 300)
        self._filled = True

    def free(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def close(self) -> None:
        pass

    def _limit(self, size: int) -> None:
        for pid in (self.server.pid, *self.server.worker_pids):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


class SmallFileSystem:
    """A tmpfs in a mount namespace of its own, filled by another file. Requires the ability ``unshare``."""

    def __init__(self, folder: Path, min_free_space: int = 0) -> None:
        mount = folder / "disk"
        mount.mkdir()
        script = f'mount -t tmpfs -o size={MEBIBYTES}m zq "$0" && touch "$0/mounted" && exec sleep 600'
        self._holder = subprocess.Popen(["unshare", "-rm", "sh", "-c", script, str(mount)], start_new_session=True)
        self._disk = Path(f"/proc/{self._holder.pid}/root{mount}")
        try:
            wait_for((self._disk / "mounted").exists, 60, "the small file system is mounted")
        except AssertionError:
            self.close()
            raise
        enter = ("nsenter", "-t", str(self._holder.pid), "-U", "-m", "--preserve-credentials")
        env = {variable("storage:rocksdb", "min_free_space"): str(min_free_space)}
        self.server = ZqServer(f"rocksdb://{mount}/store", prefix=enter, env=env)
        self.filling = "x" * 50_000

    def fill(self, leave: int = 0) -> None:
        """Fill the file system until ``leave`` bytes are free."""
        with open(self._disk / "filler", "ab", buffering=0) as filler:
            try:
                while shutil.disk_usage(self._disk).free > leave:
                    filler.write(bytes(4096))
            except OSError:
                pass

    def free(self) -> None:
        os.unlink(self._disk / "filler")

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


def run_on_small_disk(folder: Path, size: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``zq-server`` with a file system of ``size`` at ``folder``. Requires the ability ``unshare``.

    The output ends with the names of the files that are left in the folder.
    """
    script = f'mount -t tmpfs -o size={size} none "$0" && "$@"; code=$?; ls "$0"; exit $code'
    command = ["unshare", "-rm", "sh", "-c", script, str(folder), sys.executable, "-m", "zq.serving.server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def post_two_mebibytes(storage: Storage) -> None:
    now = storage.now()
    for ids in (new_ids(500, now) for _ in range(4)):
        drafts = [Draft(id, b'"%s"' % (b"x" * 1000), 3600, 0, "a") for id in ids]
        storage.messages.post(QueueRef("acme", "jobs"), drafts, now)
