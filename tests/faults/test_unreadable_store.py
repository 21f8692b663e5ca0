# SPDX-License-Identifier: Apache-2.0
"""Stores that cannot be opened: the error names the store, and there is an exit code and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.damaged import cut, flip, flushed, table_of
from tests.faults.refusal import sentence_of
from tests.servers import ZqServer, ask
from zq.storage.rocksdb import connect

WITHOUT_OVERRIDE = """\
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH:
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Runs a command of root without the privilege to read and write every file."""
UNPRIVILEGED = (sys.executable, "-c", WITHOUT_OVERRIDE) if os.geteuid() == 0 else ()
"""Prefix of a command that must not read and write every file."""
POST = {"messages": [{"body": "kept", "ttl": 600}]}


@pytest.mark.every_engine
@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_store_path_that_is_a_file_is_refused(tmp_path: Path, engine: str) -> None:
    """The file is unchanged, and systemd does not restart the server."""
    file = tmp_path / "store"
    file.write_text("not a store\n")
    server = ZqServer(f"rocksdb://{file}", engine=engine)
    assert f"{file} is not a directory" in sentence_of(server)
    assert server.wait(1) == 2
    assert file.read_text() == "not a store\n"


def test_a_store_below_a_file_is_refused(tmp_path: Path) -> None:
    """The folder cannot be created there."""
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in sentence_of(ZqServer(f"rocksdb://{tmp_path}/file/store"))


def test_a_folder_where_nothing_can_be_made_is_refused() -> None:
    """/proc allows no new folders, not even by root."""
    assert "/proc/zq-store" in sentence_of(ZqServer("rocksdb:///proc/zq-store"))


def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    """This is the usual mistake with a service user. Root drops its privilege first."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o555)
    assert str(folder) in sentence_of(ZqServer(f"rocksdb://{folder}", prefix=UNPRIVILEGED))


def test_a_store_below_a_folder_that_the_user_cannot_enter_is_refused(tmp_path: Path) -> None:
    """This holds for ``--check``, for a server, and for a target of ``migrate``."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0)
    uri = f"rocksdb://{folder}/store"
    assert f"{folder} is not" in sentence_of(ZqServer(uri, "--check", prefix=UNPRIVILEGED))
    assert f"{folder}/store cannot be opened" in sentence_of(ZqServer(uri, engine="granian", prefix=UNPRIVILEGED))
    connect(f"rocksdb://{tmp_path}/source").close()
    migrate = [*UNPRIVILEGED, sys.executable, "-m", "zq.serving.server", "migrate", f"rocksdb://{tmp_path}/source", uri]
    done = subprocess.run(migrate, capture_output=True, text=True, timeout=60)
    assert (done.returncode, f"{folder}/store cannot be opened" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("command", [["check-store"], ["salvage", "--to"]], ids=" ".join)
@pytest.mark.parametrize("private", ["", "store"])
def test_a_command_that_may_not_read_the_store_is_refused(command: list[str], private: str, tmp_path: Path) -> None:
    """This is the usual mistake of an operator who is not the server's user."""
    connect(f"rocksdb://{tmp_path}/folder/store").close()
    (tmp_path / "folder" / private).chmod(0)
    given = [*command, f"{tmp_path}/new"] if len(command) > 1 else command
    line = [*UNPRIVILEGED, sys.executable, "-m", "zq.serving.server", *given]
    env = os.environ | {"OS_STORAGE__URI": f"rocksdb://{tmp_path}/folder/store"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{tmp_path}/folder/store cannot be opened" in done.stderr
    assert done.stderr.endswith("Run zq-server as the owner of the store.\n")


@pytest.mark.every_engine
@pytest.mark.parametrize(("engine", "code"), [("gunicorn", 75), ("granian", 1)])
def test_an_object_store_that_does_not_answer_is_no_refusal(engine: str, code: int) -> None:
    """systemd restarts the server."""
    env = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    server = ZqServer("s3://bucket/prefix?endpoint=http://127.0.0.1:9", engine=engine, env=env)
    assert "unavailable" in sentence_of(server)
    assert server.wait(1) == code


@pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST-*"])
def test_a_damaged_store_is_refused_and_left_alone(tmp_path: Path, damage: str) -> None:
    """Garbage in the file that refers to all others is reported, not repaired.

    With the file restored, the store opens.
    """
    folder = tmp_path / "store"
    uri = f"rocksdb://{folder}"
    with ZqServer(uri) as server:
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert server.terminate() == 0
    (file,) = folder.rglob(damage)
    sound = file.read_bytes()
    file.write_bytes(b"rubbish \x00\xff\n" * 10)
    assert str(folder) in sentence_of(ZqServer(uri))
    file.write_bytes(sound)
    with ZqServer(uri) as server:
        stats = ask(server.url, "GET", "/v2/queues/jobs/stats").document["messages"]
        assert stats["total"] == 1


@pytest.mark.parametrize("more", [(), ("--wait-for-store",)], ids=["", "waiting"])
def test_a_store_that_is_damaged_where_every_start_reads_is_refused(tmp_path: Path, more: tuple[str, ...]) -> None:
    """Waiting would not help; the error names the repair."""
    folder = tmp_path / "store"
    connect(f"rocksdb://{folder}").close()
    flip(table_of(flushed(folder), "default"), 0.01)
    assert "salvage" in sentence_of(ZqServer(f"rocksdb://{folder}", *more))


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "cut short"])
def test_a_store_whose_table_file_is_gone_or_cut_short_is_refused_with_the_way_out(tmp_path: Path, gone: bool) -> None:
    """The error names the file and the repair commands, and does not mention another process."""
    folder = tmp_path / "store"
    connect(f"rocksdb://{folder}").close()
    file = table_of(flushed(folder), "default")
    if gone:
        file.unlink()
    else:
        cut(file, 0.5)
    told = sentence_of(ZqServer(f"rocksdb://{folder}"))
    assert file.name in told
    assert "salvage" in told
    assert "another process" not in told


@pytest.mark.parametrize(
    ("uri", "named"),
    [("nonsense://x", "nonsense"), ("no-scheme", "scheme"), ("rocksdb://host/path", "rocksdb://host/path")],
)
def test_a_store_uri_that_makes_no_sense_is_refused(uri: str, named: str) -> None:
    """The error quotes the invalid part."""
    assert named in sentence_of(ZqServer(uri))
