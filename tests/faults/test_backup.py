# SPDX-License-Identifier: Apache-2.0
"""Backups of the embedded store under load, interrupted, to unsuitable targets, and damaged (operations 6)."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from tests.blocks import ROOT, blocks
from tests.commands import run, run_apart
from tests.faults.disks import LimitedFiles, run_on_small_disk
from tests.faults.killed import MODULE as KILLED
from tests.faults.killed import kill_at
from tests.faults.test_unreadable_store import UNPRIVILEGED
from tests.reader import SHELL, succeed
from tests.rotation import rotated
from tests.servers import PROJECT, ZqServer, ask, every_message, free_port, wait_for
from tests.stores import RedisServer
from zq.model import ListFilter, QueueRef
from zq.serving import control
from zq.serving.settings.options import OBJECT_SCHEMES
from zq.storage import connect
from zq.storage.rocksdb import backups

pytestmark = pytest.mark.one_store
WORKERS = 8
# Maximum seconds of a pause of the server for a backup.
MAX_PAUSE = 0.5
PAGE = blocks(ROOT / "api-ref/backup.md")
QUEUE = "/v2/queues/jobs"
FILE = re.compile(r"[0-9]{6}\.sst")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return the target folder of backups."""
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"rocksdb://{tmp_path}/store"


@pytest.fixture
def zq(uri: str) -> Iterator[ZqServer]:
    """Return a server on a store with three messages."""
    with ZqServer(uri) as running:
        post(running, 3)
        yield running


def post(running: ZqServer, count: int) -> None:
    document = {"messages": [{"body": n, "ttl": 3600} for n in range(count)]}
    assert ask(running.url, "POST", f"{QUEUE}/messages", document).status == 201


def bodies(store: str) -> list[object]:
    """Start a server on the store and return the bodies of its messages, sorted."""
    with ZqServer(store) as running:
        return sorted(message["body"] for message in every_message(running.url, "jobs"))


def only(target: Path) -> Path:
    (found,) = backups.complete_backups(target)
    return found


class Load:
    """Producers and consumers, which record when each message was first posted, acknowledged and deleted."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self.posted: dict[int, float] = {}
        self.stored: dict[int, float] = {}
        self.deleting: dict[int, float] = {}
        self.deleted: dict[int, float] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(2 * WORKERS) as threads:
            work = [threads.submit(self._repeat, what) for what in (self._produce, self._consume) * WORKERS]
            try:
                yield
            finally:
                self._ended.set()
        for each in work:
            each.result()

    def _repeat(self, what: Callable[[], None]) -> None:
        while not self._ended.is_set():
            what()

    def _produce(self) -> None:
        numbers = [next(self._numbers) for _ in range(3)]
        self.posted |= dict.fromkeys(numbers, time.monotonic())
        document = {"messages": [{"body": number, "ttl": 3600} for number in numbers]}
        assert ask(self._url, "POST", f"{QUEUE}/messages", document).status == 201
        self.stored |= dict.fromkeys(numbers, time.monotonic())

    def _consume(self) -> None:
        claimed = ask(self._url, "POST", f"{QUEUE}/claims?limit=4", {"ttl": 300, "grace": 60})
        for message in claimed.document["messages"][:2] if claimed.status == 201 else ():
            self.deleting[message["body"]] = time.monotonic()
            assert ask(self._url, "DELETE", message["href"]).status == 204
            self.deleted[message["body"]] = time.monotonic()

    def judge(self, found: set[int], began: float, ended: float) -> None:
        """Assert that a backup made between these times has lost, restored and invented no message."""
        stored = {number for number, moment in self.stored.items() if moment < began}
        assert stored - found - {number for number, moment in self.deleting.items() if moment < ended} == set()
        assert found & {number for number, moment in self.deleted.items() if moment < began} == set()
        assert found <= {number for number, moment in self.posted.items() if moment < ended}


def test_every_backup_under_load_restores_with_all_that_was_acknowledged(
    uri: str, target: Path, tmp_path: Path
) -> None:
    """With eight producers and eight consumers, each backup is complete and consistent.

    It has every message that was acknowledged before it began and was not deleted before it ended.
    """
    pauses = back_up_under_load(uri, target, tmp_path, seconds=2.5, every=0.8)
    assert min(pauses) < MAX_PAUSE, "the other tests of the suite can make some pauses longer"


def back_up_under_load(uri: str, target: Path, folder: Path, seconds: float, every: float) -> list[float]:
    """Create at least three backups under load, restore and judge each, and return the pauses of the server."""
    made: list[tuple[float, float]] = []
    pauses = []
    with ZqServer(uri) as running:
        load = Load(running.url)
        with load.running():
            wait_for(lambda: len(load.deleted) > 20, 60, "messages go through")
            until = time.monotonic() + seconds
            while time.monotonic() < until or len(made) < 3:
                began = time.monotonic()
                done = run("backup", target, "--store", uri)
                assert done.code == 0, done
                pauses.append(int(re.search(r"paused for (\d+) ms", done.said)[1]) / 1000)
                made.append((began, time.monotonic()))
                time.sleep(max(0.0, every - (time.monotonic() - began)))
    judged = backups.complete_backups(target)
    assert len(judged) == len(made)
    for number, (backup, (began, ended)) in enumerate(zip(judged, made, strict=True)):
        verified = run("backup", "verify", backup)
        assert verified.code == 0, verified
        restored = folder / f"restored{number}"
        done = run("restore", backup, "--store", f"rocksdb://{restored}")
        assert done.code == 0, done
        load.judge(everything(f"rocksdb://{restored}"), began, ended)
        shutil.rmtree(restored)
    return pauses


def everything(store: str) -> set[int]:
    """Return the bodies of all messages of a store that no server has open."""
    storage = connect(store)
    found: set[int] = set()
    marker: str | None = "0"
    try:
        while marker is not None:
            shown = ListFilter(claimed=True, delayed=True)
            page = storage.messages.list(QueueRef(PROJECT, "jobs"), int(marker), 1000, shown, storage.now())
            found |= {json.loads(message.body) for message in page.items}
            marker = page.next
    finally:
        storage.close()
    return found


@pytest.mark.parametrize(
    ("at", "call", "whole"), rotated([("_copy", 1, 0), ("_copy", 5, 0), ("sync", 1, 0), ("sync", 2, 1)], 2)
)
def test_a_command_that_is_killed_leaves_nothing_that_passes_for_a_backup(
    at: str, call: int, whole: int, zq: ZqServer, uri: str, target: Path
) -> None:
    """The leftovers are refused, and the server discards its snapshot and makes the next backup, which removes them."""
    killed = kill_at(backups.__name__, at, call)
    assert run_apart("backup", target, "--store", uri, module=KILLED, env=killed).code == -signal.SIGKILL
    assert len(backups.complete_backups(target)) == whole
    partial = list(target.glob("*.partial"))
    assert len(partial) == 1 - whole
    for left in partial:
        (left / "MANIFEST.json").exists() or shutil.copy(__file__, left / "MANIFEST.json")
        assert "is an incomplete backup" in run("backup", "verify", left).error
    wait_for(lambda: not list(Path(uri[10:]).glob(".zq-snapshot-*")), 60, "the snapshot is gone")
    wait_for(lambda: run("backup", target, "--store", uri).code == 0, 60, "the next backup is made")
    assert len(backups.complete_backups(target)) == whole + 1
    assert not list(target.glob("*.partial"))


def test_a_server_that_is_killed_costs_no_backup_that_was_begun(
    zq: ZqServer, uri: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The linked files stay until the next start. It removes them, and also files left by a kill during the removal."""
    former, left = backups._copy, [3]

    def then_killed(*given: object) -> tuple[int, str]:
        left[0] -= 1
        if not left[0]:
            zq.kill()
        return former(*given)

    monkeypatch.setattr(backups, "_copy", then_killed)
    done = run("backup", target, "--store", uri)
    assert (done.code, done.error) == (0, "")
    assert run("backup", "verify", only(target)).code == 0
    assert list(Path(uri[10:]).glob(".zq-snapshot-*"))
    Path(uri[10:], ".zq-snapshot-00000000.tmp").mkdir()
    zq.start()
    assert not list(Path(uri[10:]).glob(".zq-snapshot-*"))


def test_a_server_that_is_started_anew_ends_a_backup(
    zq: ZqServer, uri: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reports the restart and leaves no files."""
    former, left = backups._copy, [3]

    def then_anew(*given: object) -> tuple[int, str]:
        left[0] -= 1
        if not left[0]:
            zq.kill()
            zq.start()
        return former(*given)

    monkeypatch.setattr(backups, "_copy", then_anew)
    done = run("backup", target, "--store", uri)
    assert done.code == 2
    assert "Was the server restarted?" in done.error
    assert [path.name for path in target.iterdir()] == ["zq-backup.lock"]


def test_one_backup_at_a_time(zq: ZqServer, uri: str, target: Path, tmp_path: Path) -> None:
    """The server allows one backup of its store, and the commands allow one in a folder."""
    other = tmp_path / "other"
    other.mkdir()
    with control.snapshot(f"{uri[10:]}/control.sock"):
        done = run("backup", other, "--store", uri)
        assert (done.code, "A backup of this store is already running" in done.error) == (2, True)
    with backups._locked(target):
        done = run("backup", target, "--store", uri)
        assert (done.code, "Another backup in" in done.error) == (2, True)
    wait_for(lambda: run("backup", target, "--store", uri).code == 0, 60, "a backup is made again")


def test_a_backup_takes_the_space_of_what_is_new_and_old_ones_go(zq: ZqServer, uri: str, target: Path) -> None:
    """Files of earlier backups are linked and outlive them; ``--keep`` counts complete backups."""
    for number in range(4):
        assert run("backup", target, "--store", uri, "--keep", 2).code == 0
        if number == 1:
            (target / "20200101T000000.000Z").mkdir()  # incomplete: not a backup
    first, second = backups.complete_backups(target)
    shared = [file for file in first.glob("*.sst") if (second / file.name).exists()]
    assert shared
    assert all(file.samefile(second / file.name) for file in shared)
    assert run("backup", "verify", second).code == 0
    figures = ask(zq.url, "GET", "/metrics").body.decode()
    assert float(re.search(r"^zq_backup_age_seconds (\S+)", figures, re.MULTILINE)[1]) < 60
    assert float(re.search(r"^zq_backup_pause_seconds (\S+)", figures, re.MULTILINE)[1]) > 0


def test_a_backup_on_another_file_system_is_a_copy(zq: ZqServer, uri: str) -> None:
    """The snapshot is always in the store's folder, on the store's own file system."""
    far = Path(f"/dev/shm/zq-backup-{os.getpid()}")
    far.mkdir()
    try:
        assert run("backup", far, "--store", uri).code == 0
        assert run("backup", "verify", only(far)).code == 0
    finally:
        shutil.rmtree(far)


def test_a_server_under_granian_makes_one_too(uri: str, target: Path) -> None:
    """Granian's workers are processes of a different kind."""
    with ZqServer(uri, engine="granian") as running:
        post(running, 3)
        assert run("backup", target, "--store", uri).code == 0
    assert run("backup", "verify", only(target)).code == 0


def test_a_server_with_pools_makes_none(uri: str, target: Path) -> None:
    """The backups of its stores would be of different times."""
    with ZqServer(uri, config="[DEFAULT]\npooling = true\n"):
        done = run("backup", target, "--store", uri)
    assert (done.code, "these pools" in done.error) == (2, True), done


def test_a_target_that_takes_no_backup_is_refused(zq: ZqServer, uri: str, tmp_path: Path) -> None:
    """Each target gets an error message of its own; the server continues and keeps no snapshot."""
    file = tmp_path / "file"
    file.touch()
    for where, sentence in (
        (file, "is not a directory"),
        (tmp_path / "nowhere", "does not exist"),
        (uri[10:], "is inside the store"),
        ("/proc", "Cannot create a backup in /proc"),
        ("x" * 300, "File name too long"),
    ):
        done = run("backup", where, "--store", uri)
        assert (done.code, sentence in done.error) == (2, True), done
        assert done.error.count("\n") == 1
    assert not list(Path(uri[10:]).glob(".zq-snapshot-*"))


def test_a_backup_of_another_user_is_named_with_the_remedy(zq: ZqServer, uri: str, target: Path) -> None:
    """Root has run one backup by hand, and the server's user cannot read it."""
    assert run("backup", target, "--store", uri).code == 0
    (other,) = target.glob("*Z")
    other.chmod(0)
    command = [*UNPRIVILEGED, sys.executable, "-m", "zq.serving.server", "backup", str(target), "--store", uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    other.chmod(0o700)
    sentence = f"{other}/MANIFEST.json: Permission denied. The server's user must own the folder and its backups."
    assert (done.returncode, done.stderr) == (2, f"zq-server: The backup failed: {sentence}\n")


@pytest.mark.ability("unshare")
def test_a_full_target_is_said_and_left_as_it_was(zq: ZqServer, uri: str, target: Path) -> None:
    """The file system has 32 KiB."""
    done = run_on_small_disk(target, "32k", "backup", str(target), "--store", uri)
    assert (done.returncode, "No space left on device" in done.stderr) == (2, True), done
    assert done.stdout.split() == ["zq-backup.lock"]


def test_a_store_without_a_server_or_without_backups_is_refused(uri: str, target: Path) -> None:
    """The error message names the alternative."""
    for store, sentence in (
        (uri, "Start the server, which creates the backup"),
        ("memory:", "A store in memory cannot be backed up"),
        *((f"{scheme}://container/prefix", "zq-server restore --at") for scheme in OBJECT_SCHEMES),
        ("redis://127.0.0.1", "Use the tools of the store"),
        ("mongodb://127.0.0.1", "Use the tools of the store"),
    ):
        done = run("backup", target, "--store", store)
        assert (done.code, sentence in done.error) == (2, True), done
    assert list(target.iterdir()) == []


def test_the_store_of_a_server_with_another_socket_is_not_to_be_copied(uri: str, target: Path, tmp_path: Path) -> None:
    """A copy of an open store would be inconsistent."""
    with ZqServer(uri, config=f"[server]\ncontrol = {tmp_path}/sock\n"):
        done = run("backup", target, "--store", uri)
        assert (done.code, done.error.count("A server has the store open: add --config")) == (2, 1), done
        assert "copy the store" not in done.error


def test_a_restore_is_refused_with_what_to_name() -> None:
    other = run("restore", "a", "--store", "redis://127.0.0.1").error
    assert other == "zq-server: A backup can be restored only to an embedded store: --store rocksdb:///var/lib/zq.\n"
    assert "Name a backup: zq-server restore BACKUP" in run("restore").error


UNFIT = [
    ["backup"],
    ["backup", "a", "b"],
    ["backup", "verify"],
    ["backup", "verify", "a", "b"],
    ["backup", "verify", "a", "--keep", "1"],
    ["check-store", "a"],
    ["check-store", "--keep", "1"],
    ["restore", "a"],
    ["restore", "a", "b", "--store", "rocksdb:new"],
    ["restore", "a", "--store", "rocksdb:new", "--to", "rocksdb:other"],
    ["restore", "a", "--store", "rocksdb:new", "--position", "0"],
    ["restore", "a", "--store", "redis://127.0.0.1"],
    ["restore", "a", "--store", "new"],
    ["restore", "a", "--store", "rocksdb:"],
    ["backup", "a", "--store", "nothing:a"],
    ["restore", "--store", "s3://a/b", "--to", "rocksdb:new", "--shift-time"],
    ["restore", "--store", "s3://a/b", "--to", "rocksdb:new", "--revoke-tokens"],
]


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups and object stores share a command, which refuses arguments of the other kind with one line."""
    monkeypatch.chdir(tmp_path)
    done = {" ".join(arguments): run(*arguments) for arguments in UNFIT}
    assert {line: each for line, each in done.items() if (each.code, each.error.count("\n")) != (2, 1)} == {}
    assert list(tmp_path.iterdir()) == []


def test_a_bad_number_of_backups_is_a_usage_error() -> None:
    for keep in ("0", "-1", "x", "100001", ""):
        with pytest.raises(SystemExit) as ended:
            run("backup", "a", "--keep", keep)
        assert ended.value.code == 2, keep


def replaced(lines: str, *pairs: tuple[object, object]) -> str:
    """Return the lines with values of the page replaced by values of this test."""
    for old, new in pairs:
        assert str(old) in lines
        lines = lines.replace(str(old), str(new))
    return lines


def test_the_commands_of_the_page_work(zq: ZqServer, uri: str, target: Path, tmp_path: Path) -> None:
    """The commands of ``api-ref/backup.md`` back up a served store and restore a consistent store."""
    (lines,) = (block.text for block in PAGE if block.text.startswith("zq-server backup"))
    restored = f"{tmp_path}/restored"
    pairs = (("/var/lib/zq/restored", restored), ("/var/lib/zq/store", uri[10:]), ("/srv/zq-backups", target))
    said = succeed([*SHELL, replaced(lines, *pairs)], tmp_path)
    assert said.count(" 0 contradictions") == 2
    assert bodies(f"rocksdb://{restored}") == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.ability("redis-server", "redis-cli")
def test_the_commands_for_redis_bring_back_what_it_had(target: Path, tmp_path: Path) -> None:
    """A snapshot of a running Redis is loaded by another Redis."""
    take, give = (block.text for block in PAGE if "redis-cli" in block.text)
    port, folder = free_port(), tmp_path / "redis"
    with RedisServer("redis-server") as store, ZqServer(store.uri) as running:
        post(running, 3)
        pairs = (("6379", store.port), ("6380", port), ("/srv/zq-backups", target), ("/srv/redis", folder))
        succeed([*SHELL, replaced(take + give, *pairs)], tmp_path)
    try:
        assert bodies(f"redis://127.0.0.1:{port}/0") == [0, 1, 2]
    finally:
        redis.Redis(port=port).shutdown(nosave=True)


def test_a_store_whose_disk_is_full_is_not_backed_up_and_recovers(tmp_path: Path, target: Path) -> None:
    """Data in memory cannot be written: the command reports that, and works again once there is space."""
    disk = LimitedFiles(tmp_path)
    store = f"rocksdb://{tmp_path}/store"
    with disk.server as running:
        post(running, 3)
        disk.fill()
        disk.fill()
        done = run("backup", target, "--store", store)
        assert (done.code, done.error) == (2, "zq-server: The store is temporarily unavailable. Try again later.\n")
        assert not list((tmp_path / "store").glob(".zq-snapshot-*"))
        disk.free()
        body = {"messages": [{"body": "later", "ttl": 3600}]}
        wait_for(lambda: ask(running.url, "POST", f"{QUEUE}/messages", body).status == 201, 60, "posts are taken again")
        wait_for(lambda: run("backup", target, "--store", store).code == 0, 60, "a backup is made again")
    assert run("backup", "verify", only(target)).code == 0
