# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, the removal of obsolete objects, and restores from the remaining ones."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.commands import run, run_apart
from tests.faults.killed import MODULE as KILLED
from tests.faults.killed import kill_at
from tests.object.conftest import Open
from tests.object.work import bodies, post
from tests.servers import wait_for
from zq.errors import StartRefused, StoreDamaged
from zq.serving.migration.record import Records, SourceRecord, check_served
from zq.storage import check, connect
from zq.storage.api import Storage
from zq.storage.object import checkpoints, epochs, offline
from zq.storage.object.checkpoints import Manifest, checkpoint_name, download, file_name
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import Head, Span, log_name, read
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import read_chain
from zq.storage.ordered.store import Write

pytestmark = pytest.mark.slow


def head(objects: Objects, epoch: int = 1) -> Head:
    found = read(objects, f"head/{epoch}", Head)
    assert found is not None
    return found


def posted(storage: Storage, start: int, end: int) -> None:
    for number in range(start, end):
        post(storage, f"{number}")


def numbers(end: int) -> list[str]:
    return [f"{number}" for number in range(end)]


def test_a_checkpoint_is_made_and_the_rest_of_the_log_is_read(machine: Open, objects: Objects) -> None:
    """The next owner reads no record before the checkpoint, so these may be missing."""
    first = machine("first", checkpoint_records=10)
    posted(first, 0, 20)
    mark = wait_for(lambda: head(objects).checkpoints, 60, "a checkpoint")[-1]
    posted(first, 20, 30)
    first.close()
    for position in range(1, mark.position + 1):
        objects.delete(log_name(1, position))
    second = machine("second")
    assert bodies(second) == numbers(30)
    posted(second, 30, 35)
    second.close()
    assert bodies(machine("third")) == numbers(35), "the log of two owners goes on behind a checkpoint of the first"


@pytest.mark.usefixtures("hasty")
def test_a_checkpoint_has_the_records_up_to_its_position(machine: Open, objects: Objects, tmp_path: Path) -> None:
    """Each of several checkpoints during posts is complete without the log, and has the records up to its position."""
    first, sent = machine("first", checkpoint_records=5), 0
    while len(marks := head(objects).checkpoints) < 3:
        posted(first, sent, sent + 5)
        sent += 5
    first.close()
    for mark in marks:
        path = tmp_path / f"{mark.position}"
        download(objects, mark, path)
        report = check(f"rocksdb://{path}")
        assert report is not None
        assert not report.contradictions
        assert not report.damage
        written = [write for entry in read_chain(objects, 0, [Span(1, mark.position)]) for write in writes_of(entry)]
        assert embedded(path) == numbers(sum(family == "messages" for family, _, _ in written))


def writes_of(entry: Entry) -> list[Write]:
    return [write for batch in entry.batches for write in batch.writes]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the owner check more often for due work."""
    monkeypatch.setattr(checkpoints, "TICK", 0.05)


@pytest.mark.usefixtures("hasty")
def test_objects_without_a_kept_checkpoint_are_removed(machine: Open, objects: Objects) -> None:
    """Records, checkpoints and table files are removed if no kept checkpoint needs them; the rest is complete."""
    first = machine("first", lease=1, keep=10, checkpoint_records=5)
    posted(first, 0, 10)
    oldest = wait_for(lambda: head(objects).checkpoints, 60, "a checkpoint")[0]
    old = read(objects, checkpoint_name(oldest), Manifest)
    assert old is not None
    deadline = time.monotonic() + 60
    sent = 10
    while objects.exists(checkpoint_name(oldest)):
        assert time.monotonic() < deadline
        posted(first, sent, sent + 5)
        sent += 5
        time.sleep(0.5)
    # The server deletes the objects before it records their removal.
    wait_for(lambda: head(objects).removed >= oldest.position, 60, "the removal is recorded")
    assert not any(objects.exists(log_name(1, position)) for position in range(1, oldest.position + 1))

    def needed() -> set[str]:
        """Return the table files of the kept checkpoints."""
        kept = [read(objects, checkpoint_name(mark), Manifest) for mark in head(objects).checkpoints]
        return {file.digest for manifest in kept if manifest for file in manifest.files if file.name.endswith(".sst")}

    # The last checkpoint may still be in progress, and refer to older files.
    wait_for(lambda: all(objects.exists(file_name(digest)) for digest in needed()), 60, "what is needed is there")
    had = {file.digest for file in old.files if file.name.endswith(".sst")}
    wait_for(lambda: not any(objects.exists(file_name(digest)) for digest in had - needed()), 60, "the others are gone")
    first.close()
    assert bodies(machine("second")) == numbers(sent)


def test_a_checkpoint_uploads_what_is_new(machine: Open, objects: Objects) -> None:
    """A checkpoint refers to table files of the previous one, also after a takeover."""
    first = machine("first", checkpoint_records=10)
    posted(first, 0, 12)
    before = wait_for(lambda: head(objects).checkpoints, 60, "a checkpoint")[-1]
    first.close()
    second = machine("second", checkpoint_records=10)
    posted(second, 12, 24)
    after = wait_for(lambda: head(objects, 2).checkpoints[1:], 60, "another checkpoint")[-1]
    files = [read(objects, checkpoint_name(mark), Manifest) for mark in (before, after)]
    old, new = ({file.digest for file in found.files if file.name.endswith(".sst")} for found in files if found)
    assert old & new


@pytest.fixture
def store(machine: Open, objects: Objects) -> Iterator[tuple[Storage, float]]:
    """Yield a served store with a checkpoint, and a time at which it had part of its messages."""
    storage = machine("first", checkpoint_records=15)
    posted(storage, 0, 15)
    wait_for(lambda: head(objects).checkpoints, 60, "a checkpoint")
    time.sleep(0.1)
    moment = time.time()
    time.sleep(0.1)
    posted(storage, 15, 25)
    yield storage, moment
    storage.close()


def embedded(path: Path) -> list[str]:
    storage = connect(f"rocksdb://{path}")
    try:
        return bodies(storage)
    finally:
        storage.close()


def test_a_store_is_restored_while_it_is_served(store: tuple[Storage, float], uri: str, tmp_path: Path) -> None:
    """The command restores into an embedded store: the latest state, a time, a position, and before the checkpoint."""
    storage, moment = store
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f"{moment % 1:.6f}Z"[1:]
    ways = {"all": [], "then": ["--at", at], "early": ["--position", "5"]}
    found = {}
    for name, options in ways.items():
        to = f"rocksdb://{tmp_path}/{name}"
        done = run("restore", "--store", uri, "--to", to, *options)
        assert done.code == 0
        found[name] = embedded(tmp_path / name)
    assert found["all"] == numbers(25)
    assert found["then"] == numbers(15)
    assert found["early"] == numbers(len(found["early"]))
    assert 0 < len(found["early"]) < 6
    assert "up to log position 5" in done.said
    post(storage, "undisturbed")


@pytest.mark.usefixtures("store")
def test_an_impossible_restore_is_refused(uri: str, tmp_path: Path) -> None:
    """The error is printed, and no file is left behind."""
    to = f"rocksdb://{tmp_path}/new"
    for options, sentence in (
        (["--position", "1000"], "The log ends at position"),
        (["--at", "yesterday"], "must be a time"),
        (["--at", "2026-01-01T00:00:00Z", "--position", "3"], "--at cannot be combined with --position."),
    ):
        done = run("restore", "--store", uri, "--to", to, *options)
        assert (done.code, sentence in done.error) == (2, True), done
    assert not list(tmp_path.glob("new*"))


def test_an_embedded_store_moves_into_an_object_store(machine: Open, uri: str, tmp_path: Path) -> None:
    """The moved store continues there; a second one does not overwrite it."""
    path = tmp_path / "plain"
    plain = connect(f"rocksdb://{path}")
    posted(plain, 0, 20)
    plain.close()
    assert run("ship", "--store", f"rocksdb://{path}", "--to", uri).code == 0
    done = run("ship", "--store", f"rocksdb://{path}", "--to", uri)
    assert done.code == 2
    assert "The prefix already contains a complete store, which zq-server ship uploaded at 20" in done.error
    storage = machine("first", takeover="refuse")
    posted(storage, 20, 25)
    storage.close()
    done = run("ship", "--store", f"rocksdb://{path}", "--to", uri)
    assert (done.code, "The prefix already contains objects of a store" in done.error) == (2, True)
    assert bodies(machine("second")) == numbers(25)
    assert embedded(path) == numbers(20)


@pytest.mark.parametrize("name", ["upload", "write", "open_epoch"])
def test_an_upload_that_is_killed_is_repeated(machine: Open, uri: str, tmp_path: Path, name: str) -> None:
    """The killed command has won an election, but a store that was opened is not replaced."""
    source = tmp_path / "plain"
    with closing(connect(f"rocksdb://{source}")) as plain:
        posted(plain, 0, 20)
    ship = ("ship", "--store", f"rocksdb://{source}", "--to", uri)
    killed = kill_at(offline.__name__, name, 1)
    assert run_apart(*ship, module=KILLED, env=killed).code == -signal.SIGKILL
    done = run(*ship)
    assert (done.code, done.error) == (0, "")
    assert run(*ship).code == 2
    assert bodies(machine("first")) == numbers(20)


def test_an_upload_that_is_killed_at_its_end_leaves_a_complete_store_without_an_owner(
    machine: Open, uri: str, tmp_path: Path
) -> None:
    source = tmp_path / "plain"
    with closing(connect(f"rocksdb://{source}")) as plain:
        posted(plain, 0, 20)
    ship = ("ship", "--store", f"rocksdb://{source}", "--to", uri)
    killed = kill_at(epochs.__name__, "fence_name", 1)  # the first use is after the opening record is stored
    assert run_apart(*ship, module=KILLED, env=killed).code == -signal.SIGKILL
    done = run(*ship)
    assert (done.code, "Serve this store" in done.error) == (2, True), done
    assert bodies(machine("first", takeover="refuse")) == numbers(20)


def test_a_store_that_a_migration_has_marked_is_not_moved_into_an_object_store(
    machine: Open, uri: str, tmp_path: Path
) -> None:
    """Servers would refuse the copy, and ``--release`` does not apply there. After the release, the copy is served."""
    source = f"rocksdb://{tmp_path}/plain"
    with closing(connect(source)) as plain:
        posted(plain, 0, 3)
        Records(plain.documents, plain.now).write(SourceRecord("redis:target", 1.0))
    done = run("ship", "--store", source, "--to", uri)
    assert (done.code, "was moved to redis:target" in done.error, "--release" in done.error) == (2, True, True), done
    assert run("migrate", "--release", source).code == 0
    assert run("ship", "--store", source, "--to", uri).code == 0
    storage = machine("first")
    check_served(storage.documents, storage.now())


def test_the_command_prints_the_owner(machine: Open, uri: str) -> None:
    """The command prints the owner's epoch and name, and whether it has stopped."""
    done = run("owner", "--store", uri)
    assert done.code == 2
    assert "There is no store" in done.error
    first = machine("first")
    done = run("owner", "--store", uri)
    assert done.code == 0
    told = done.said
    assert "epoch: 1" in told
    assert f":{os.getpid()}:" in told
    assert "state: serving" in told
    first.close()
    assert "state: released" in run("owner", "--store", uri).said


def test_a_place_without_a_store_is_not_checked(uri: str) -> None:
    """The check creates no store."""
    with pytest.raises(StartRefused, match="There is no store"):
        check(uri)


def test_a_damaged_object_is_named(
    store: tuple[Storage, float], objects: Objects, machine: Open, uri: str, tmp_path: Path
) -> None:
    """The check and the start name the object and fail, so that no acknowledged record is silently missing.

    The state before the damage can be restored.
    """
    store[0].close()
    last = head(objects).checkpoints[-1]
    manifest = read(objects, checkpoint_name(last), Manifest)
    assert manifest is not None
    file = next(file for file in manifest.files if file.name.endswith(".sst"))
    for name in (
        log_name(1, last.position + 2),
        log_name(1, head(objects).released),
        file_name(file.digest),
        checkpoint_name(last),
    ):
        value = objects.get(name)
        assert value
        objects.delete(name)
        refused(uri, machine, name)
        if name.startswith("log/"):
            to = tmp_path / name.replace("/", "-")
            before = int(name.rpartition("/")[2]) - 1
            assert run("restore", "--store", uri, "--to", f"rocksdb://{to}", "--position", f"{before}").code == 0
            assert embedded(to) == numbers(len(embedded(to)))
        objects.put(name, flipped(value))
        refused(uri, machine, name)
        objects.put(name, value)
    assert bodies(machine("second")) == numbers(25)


def flipped(value: bytes) -> bytes:
    """Return the value with one bit changed."""
    changed = bytearray(value)
    changed[len(value) // 2] ^= 1
    return bytes(changed)


def refused(uri: str, machine: Open, name: str) -> None:
    """Assert that the check and the start fail and name the object."""
    for read_it in (lambda: check(uri), lambda: machine("second")):
        with pytest.raises(StoreDamaged, match=name):
            read_it()
