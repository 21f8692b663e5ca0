# SPDX-License-Identifier: Apache-2.0
"""Restores of backups: modified backups are refused, old ones are reported, and the restored store works on."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.commands import run, run_apart
from tests.damaged import flip, table_of
from tests.faults.integrity import whole
from tests.faults.killed import MODULE as KILLED
from tests.faults.killed import kill_at
from tests.faults.test_unreadable_store import UNPRIVILEGED
from tests.rotation import rotated
from tests.servers import MODULE as SERVER
from tests.unit.test_ordered_integrity import DAY, DONE, JOBS, NOW, drafts, use
from zq.auth.tokens import Grant, Tokens
from zq.clock import ManualClock, StoreClock
from zq.model import ListFilter
from zq.model.documents import DocumentRef
from zq.model.expiry import Expiry
from zq.model.identity import ADMIN
from zq.model.topics import Pattern
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import backups, connect
from zq.storage.rocksdb.store import Store
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.model import Source, Subscription, SubscriptionSet

HOUR = 3600
# A command that salvages a store, and waits after it has opened the new store.
PAUSED = """
import sys, time
from zq.serving.server import main
from zq.storage import rocksdb
class Salvage:
    def __init__(self, *given): pass
    def run(self):
        print("paused", flush=True)
        time.sleep(60)
rocksdb.Salvage = Salvage
main(sys.argv[1:])
"""
SOURCE = Source("acme", "queue", "jobs")
EVERYTHING = ListFilter(claimed=True, delayed=True)
# Number of writes of a restore with ``--shift-time`` and ``--revoke-tokens``.
WRITES = 9


def opened(path: Path) -> OrderedStorage:
    return connect(f"rocksdb://{path}", sync="never", max_clock_jump=0, expiry=Expiry(delete_on_read=False))


def backed_up(storage: OrderedStorage, target: Path, ago: float = 0.0) -> Path:
    """Return a backup whose manifest has a time ``ago`` seconds in the past."""
    target.mkdir(exist_ok=True)
    with storage.snapshot() as snapshot:
        snapshot.moment -= ago
        return backups.make(snapshot, target, layout.VERSION.decode(), None).folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with all kinds of data, with two backups of it two hours apart."""
    folder = tmp_path_factory.mktemp("sound")
    with closing(opened(folder / "store")) as storage:
        use(storage)
        tokens = Tokens(storage.documents, StoreClock(storage.now))
        tokens.create(Grant(project="acme"))
        tokens.create(Grant(project="admin", roles=[ADMIN]))
        subscribed = SubscriptionSet(1, (Subscription("a" * 32, "http://example.org/", HOUR, NOW, confirmed=1),))
        ref = DocumentRef(SOURCE.project, "subscriptions", f"{SOURCE.kind}/{SOURCE.name}")
        storage.documents.put(ref, msgspec.msgpack.encode(subscribed), NOW, expires=NOW + HOUR)
        backed_up(storage, folder / "backups")
    return folder


@pytest.fixture
def backup(sound: Path, tmp_path: Path) -> Path:
    """Return a copy of a backup that a test may damage."""
    (found,) = backups.complete_backups(sound / "backups")
    return Path(shutil.copytree(found, tmp_path / "backup"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def dated(backup: Path, moment: float) -> None:
    """Set the time in the backup's manifest."""
    change(backup, lambda manifest: manifest.update(moment=moment))


def change(backup: Path, how: Callable[[dict], object], checksum: bool = True) -> None:
    """Change the manifest, with a new checksum if ``checksum`` is set."""
    file = backup / backups.MANIFEST
    manifest = json.loads(file.read_text())
    how(manifest)
    if checksum:
        text = json.dumps(manifest | {"checksum": ""}, separators=(",", ":"))
        manifest["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(json.dumps(manifest))


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in folder.iterdir()
    }


def test_a_backup_is_verified_without_a_change_and_restored(backup: Path, new: Path) -> None:
    """All entries are equal. The new store is consistent and starts with default options."""
    before = digests(backup)
    verified = run("backup", "verify", backup)
    assert (verified.code, verified.error) == (0, "")
    assert digests(backup) == before
    done = run("restore", "--store", f"rocksdb://{new}", backup)
    assert (done.code, done.error) == (0, "")
    assert "2 tokens are valid as of the backup" in done.said
    assert "1 fences are restored as of the backup" in done.said
    assert digests(backup) == before
    assert new.stat().st_mode & 0o777 == 0o700
    assert whole(f"rocksdb://{new}")
    connect(f"rocksdb://{new}").close()


def spoilt_bit(backup: Path) -> None:
    flip(max(backup.glob("*.sst"), key=lambda file: file.stat().st_size))


def missing_file(backup: Path) -> None:
    next(backup.glob("*.sst")).unlink()


def symbolic_link(backup: Path) -> None:
    file = next(backup.glob("*.sst"))
    file.rename(backup / "elsewhere")
    file.symlink_to(backup / "elsewhere")


def pipe(backup: Path) -> None:
    file = next(backup.glob("*.sst"))
    file.unlink()
    os.mkfifo(file)


def longer(backup: Path) -> None:
    with next(backup.glob("*.sst")).open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("spoil", [spoilt_bit, missing_file, symbolic_link, pipe, longer])
def test_a_file_that_is_not_as_it_was_is_named(spoil: Callable[[Path], None], backup: Path, new: Path) -> None:
    """verify exits with 1; restore exits with 2 and creates no store."""
    spoil(backup)
    verified = run("backup", "verify", backup)
    assert verified.code == 1
    assert re.search(r"^[0-9]{6}\.sst (cannot be read|is damaged or was modified): ", verified.said, re.MULTILINE)
    assert "1 unreadable places" in verified.said
    done = run("restore", backup, "--store", f"rocksdb://{new}")
    assert (done.code, "is damaged" in done.error) == (2, True), done
    assert sorted(path.name for path in new.parent.iterdir()) == ["backup"]


def without_a_table(manifest: dict) -> None:
    manifest["files"].remove(next(file for file in manifest["files"] if file["name"].endswith(".sst")))


@pytest.mark.parametrize(
    ("how", "checksum", "code"),
    rotated(
        [
            pytest.param(lambda manifest: manifest.update(moment=manifest["moment"] - DAY), False, 2, id="checksum"),
            pytest.param(lambda manifest: manifest["files"][0].update(name="../../etc/passwd"), True, 2, id="above"),
            pytest.param(lambda manifest: manifest["files"][0].update(name="/etc/passwd"), True, 2, id="root"),
            pytest.param(lambda manifest: manifest["files"][0].update(name=".."), True, 2, id="dots"),
            pytest.param(lambda manifest: manifest["files"][0].update(name="MANIFEST.json"), True, 2, id="itself"),
            pytest.param(lambda manifest: manifest["files"][0].update(size=-1), True, 2, id="negative"),
            pytest.param(lambda manifest: manifest.update(files=[]), True, 2, id="empty"),
            pytest.param(lambda manifest: manifest.update(files=7), True, 2, id="type"),
            pytest.param(lambda manifest: manifest.pop("moment"), True, 2, id="moment"),
            pytest.param(lambda manifest: manifest["files"][0].update(size=7), True, 1, id="size"),
            pytest.param(lambda manifest: manifest.update(moment=-1.5), True, 2, id="early"),
            pytest.param(lambda manifest: manifest.update(moment=253402300800.5), True, 2, id="far"),
            pytest.param(without_a_table, True, 1, id="table"),
        ],
        3,
    ),
)
def test_a_manifest_that_was_tampered_with_is_refused(
    how: Callable[[dict], object], checksum: bool, code: int, backup: Path, new: Path
) -> None:
    """The checksum or a forbidden value reveals the change; missing entries are noticed when the store is read."""
    change(backup, how, checksum)
    done = run("backup", "verify", backup)
    assert done.code == code, done
    assert done.error.count("\n") == (code == 2)
    done = run("restore", backup, "--store", f"rocksdb://{new}")
    assert (done.code, done.error.count("\n")) == (2, 1), done
    assert sorted(path.name for path in new.parent.iterdir()) == ["backup"]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"null", b'{"files": []}'])
def test_an_invalid_manifest_is_refused(text: bytes, backup: Path) -> None:
    (backup / backups.MANIFEST).write_bytes(text)
    done = run("backup", "verify", backup)
    assert (done.code, done.error.count("\n")) == (2, 1), done


def test_a_path_that_is_not_a_backup_is_refused(tmp_path: Path, sound: Path, backup: Path) -> None:
    """The cases are a folder without a manifest, a file, nothing, and a manifest that is a link or a folder."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / backups.MANIFEST).symlink_to(backup / backups.MANIFEST)
    (tmp_path / "deep" / backups.MANIFEST).mkdir(parents=True)
    for name in ("file", "empty", "nothing", "linked", "deep"):
        done = run("backup", "verify", tmp_path / name)
        assert (done.code, "is not a backup" in done.error) == (2, True), done
    (one,) = backups.complete_backups(sound / "backups")
    assert f"name one of them, such as {one}." in run("backup", "verify", one.parent).error
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "x" * 300):
        done = run("backup", "verify", tmp_path / name)
        assert (done.code, done.error.count("\n")) == (2, 1), done


def test_damage_that_the_store_had_is_found_by_verify(tmp_path: Path) -> None:
    """The hashes are correct, but the store is damaged."""
    with closing(opened(tmp_path / "store")) as storage:
        storage.messages.post(JOBS, drafts(300), NOW)
        first = backed_up(storage, tmp_path / "backups")
    flip(table_of(tmp_path / "store", "messages"))
    with closing(opened(tmp_path / "store")) as storage:
        second = backed_up(storage, tmp_path / "others")
    assert run("backup", "verify", first).code == 0
    done = run("backup", "verify", second)
    assert (done.code, "1 unreadable places" in done.said) == (1, True), done


def test_a_store_is_restored_where_none_is(backup: Path, new: Path, tmp_path: Path) -> None:
    """The target must not exist, not even as a file or a dangling link, and must be writable."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for to in (backup, tmp_path / "file", tmp_path / "link"):
        done = run("restore", backup, "--store", f"rocksdb://{to}")
        assert (done.code, "already exists" in done.error) == (2, True), done
    for to in ("/proc/store", tmp_path / "file" / "store", tmp_path / ("x" * 300)):
        done = run("restore", backup, "--store", f"rocksdb://{to}")
        assert (done.code, "cannot be written" in done.error) == (2, True), done


def test_a_store_is_never_created_inside_another(backup: Path, new: Path, tmp_path: Path) -> None:
    """RocksDB does not know the files, and a removal of the outer store would remove the inner one."""
    store = f"rocksdb://{new}"
    assert run("restore", backup, "--store", store).code == 0
    (tmp_path / "link").symlink_to(new)
    for to in (new / "inner", new / "in" / "ner", tmp_path / "link" / "inner"):
        for command in (
            ("restore", backup, "--store", f"rocksdb://{to}"),
            ("salvage", "--store", store, "--to", to),
        ):
            done = run(*command)
            assert (done.code, f"is inside the store {new}" in done.error) == (2, True), done
    assert not list(new.glob("in*"))


@pytest.mark.parametrize(
    ("at", "call", "complete"),
    rotated([("_copy", 1, False), ("_copy", 5, False), ("sync", 1, False), ("sync", 2, True)], 2),
)
def test_a_restore_that_is_killed_leaves_no_store_or_a_complete_one(
    at: str, call: int, complete: bool, backup: Path, new: Path
) -> None:
    """Without a store at the target, the repetition succeeds and removes the files that the kill left."""
    restore = ("restore", backup, "--store", f"rocksdb://{new}")
    killed = kill_at(backups.__name__, at, call)
    assert run_apart(*restore, module=KILLED, env=killed).code == -signal.SIGKILL
    assert new.exists() == complete
    if not complete:
        assert (new.parent / "new.unfinished").exists()
        done = run(*restore)
        assert (done.code, done.error) == (0, "")
    assert sorted(path.name for path in new.parent.iterdir()) == ["backup", "new"]
    assert whole(f"rocksdb://{new}")


def test_a_restore_waits_for_no_other_process_and_leaves_its_files(backup: Path, new: Path) -> None:
    """While a salvage writes to the target, a restore and a salvage to it are refused.

    After the salvage was killed, its repetition removes the files that the kill left.
    """
    store = f"rocksdb://{new.parent}/old"
    assert run("restore", backup, "--store", store).code == 0
    salvage = ("salvage", "--store", store, "--to", new)
    with subprocess.Popen([sys.executable, "-c", PAUSED, *map(str, salvage)], stdout=subprocess.PIPE) as paused:
        assert paused.stdout is not None
        assert paused.stdout.readline() == b"paused\n"
        for command in (salvage, ("restore", backup, "--store", f"rocksdb://{new}")):
            done = run(*command)
            assert (done.code, "Another process is creating a store" in done.error) == (2, True), done
        assert (new.parent / "new.unfinished" / "store" / "CURRENT").exists()
        paused.kill()
    assert run(*salvage).code == 0
    assert sorted(path.name for path in new.parent.iterdir()) == ["backup", "new", "old"]
    assert whole(f"rocksdb://{new}")


@pytest.mark.parametrize("name", ["new.unfinished", "new.unfinished/store"])
def test_the_source_is_never_removed_as_an_unfinished_store(backup: Path, new: Path, name: str) -> None:
    """The source is the temporary directory of the target, or in it."""
    source, folder = new.parent / name, new.parent / name.replace("new", "next")
    assert run("restore", backup, "--store", f"rocksdb://{source}").code == 0
    folder.parent.mkdir(exist_ok=True)
    backup.rename(folder)
    for command in (
        ("salvage", "--store", f"rocksdb://{source}", "--to", new),
        ("restore", folder, "--store", f"rocksdb://{new.with_name('next')}"),
    ):
        done = run(*command)
        assert (done.code, "Rename it first" in done.error) == (2, True), done
    assert whole(f"rocksdb://{source}")
    assert (folder / "MANIFEST.json").exists()


@pytest.mark.parametrize("name", ["new.unfinished", "new.unfinished/store"])
def test_an_open_store_is_never_removed_as_an_unfinished_store(backup: Path, new: Path, name: str) -> None:
    """The command leaves all files of the store. After the store was closed, the command removes them."""
    restore, path = ("restore", backup, "--store", f"rocksdb://{new}"), new.parent / name
    with closing(opened(path)) as storage:
        storage.messages.post(JOBS, drafts(1), NOW)
        done = run(*restore)
        assert (done.code, f"may be using the store {path}. Stop" in done.error) == (2, True), done
    assert whole(f"rocksdb://{path}")
    assert run(*restore).code == 0
    assert sorted(path.name for path in new.parent.iterdir()) == ["backup", "new"]


def test_an_unfinished_store_that_cannot_be_removed_is_named(backup: Path, new: Path) -> None:
    """A command of another user has left the files. Root drops its privilege first."""
    left = new.parent / "new.unfinished"
    left.mkdir()
    (left / "CURRENT").touch()
    left.chmod(0o555)
    restore = [*UNPRIVILEGED, sys.executable, "-m", SERVER, "restore", str(backup), "--store", f"rocksdb://{new}"]
    done = subprocess.run(restore, capture_output=True, text=True, timeout=60)
    sentence = f"empty its temporary directory {left}, but cannot: Permission denied. Remove the directory as its owner"
    assert (done.returncode, sentence in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_the_manifest_bears_witness_of_the_clock_for_30_days(backup: Path, new: Path) -> None:
    """After 30 days, or if the clock is behind, ``--force-clock`` confirms the clock. No start requires it."""
    for ago, sentence in ((31 * DAY, "31 days after the backup"), (-HOUR, "Correct the clock")):
        dated(backup, time.time() - ago)
        done = run("restore", backup, "--store", f"rocksdb://{new}")
        assert (done.code, sentence in done.error) == (2, True), done
        assert run("restore", backup, "--store", f"rocksdb://{new}", "--force-clock").code == 0
        connect(f"rocksdb://{new}").close()
        shutil.rmtree(new)
    dated(backup, time.time() - 29 * DAY)
    assert run("restore", backup, "--store", f"rocksdb://{new}").code == 0
    connect(f"rocksdb://{new}").close()


def test_what_expired_meanwhile_is_counted(tmp_path: Path, new: Path) -> None:
    """Three messages had a ttl of half an hour, and another has a ttl of a day."""
    posted = time.time() - HOUR
    with closing(opened(tmp_path / "store")) as storage:
        storage.messages.post(JOBS, drafts(3, ttl=HOUR // 2), posted)
        storage.messages.post(JOBS, drafts(1), posted)
        backup = backed_up(storage, tmp_path / "backups", HOUR)
    done = run("restore", backup, "--store", f"rocksdb://{new}")
    assert "\n3 messages have expired since the backup and were dropped.\n" in done.said


@pytest.mark.parametrize("call", rotated([*range(1, WRITES + 1)], 2))
def test_a_restore_that_is_killed_at_a_write_is_repeated_as_if_it_were_the_first(
    call: int, backup: Path, new: Path, tmp_path: Path
) -> None:
    """Expiry times are extended only once, and all tokens are revoked. The kill leaves no store at the target."""
    dated(backup, time.time() - 2 * DAY)
    other = tmp_path / "other"
    restore, repeated = (
        ("restore", backup, "--store", f"rocksdb://{path}", "--shift-time", "--revoke-tokens") for path in (other, new)
    )
    killed = kill_at("zq.storage.rocksdb.store:Store", "write", call)
    assert run_apart(*repeated, module=KILLED, env=killed).code == -signal.SIGKILL
    assert not new.exists()
    assert (new.parent / "new.unfinished" / "CURRENT").exists()
    done = run(*repeated)
    assert (done.code, done.error) == (0, "")
    assert run(*restore).code == 0
    assert whole(f"rocksdb://{new}") == whole(f"rocksdb://{other}")
    assert_near(lives(new), lives(other))
    assert_near(
        *(
            {(kind, at): end for kind, found in ends(path).items() for at, end in enumerate(found)}
            for path in (new, other)
        )
    )
    assert expiries(new, "token") == []


def assert_near(found: dict[Any, float], expected: dict[Any, float]) -> None:
    """Assert that the times by name differ by less than the duration of the test."""
    assert found.keys() == expected.keys()
    assert max(abs(found[name] - expected[name]) for name in expected) < 300


def lives(path: Path) -> dict[str, float]:
    """Return the expiry of each message."""
    with closing(opened(path)) as storage:
        pages = (storage.messages.list(queue, 0, 1000, EVERYTHING, NOW) for queue in (JOBS, DONE))
        return {message.id: message.expires for page in pages for message in page.items}


def test_nothing_expires_for_the_time_since_with_shift_time(backup: Path, tmp_path: Path) -> None:
    """Live data keep their remaining life. The store is consistent, also after sweeps before and after the expiry."""
    plain, later = tmp_path / "plain", tmp_path / "later"
    assert run("restore", backup, "--store", f"rocksdb://{plain}").code == 0
    dated(backup, time.time() - 2 * DAY)
    done = run("restore", backup, "--store", f"rocksdb://{later}", "--shift-time")
    assert (done.code, "were extended by 2 days, 0:0" in done.said) == (
        0,
        True,
    ), done
    assert whole(f"rocksdb://{later}")
    before, after = lives(plain), lives(later)
    assert before.keys() == after.keys()
    assert len(before) > 15
    assert all(2 * DAY - 1 < after[id] - before[id] < 2 * DAY + 300 for id in before)
    was, is_now = ends(plain), ends(later)
    assert set(was) == {"batches", "history", "keys", "producers", "stages"}
    assert {kind: len(found) for kind, found in was.items()} == {kind: len(found) for kind, found in is_now.items()}
    for kind, found in was.items():
        assert all(2 * DAY - 1 < new - old < 2 * DAY + 300 for old, new in zip(found, is_now[kind], strict=True)), kind
    assert expiries(plain, "token") == expiries(later, "token")
    (old,), (new,) = expiries(plain, "subscriptions"), expiries(later, "subscriptions")
    assert 2 * DAY - 1 < new - old < 2 * DAY + 300
    with closing(opened(later)) as storage:
        documents = SubscriptionDocuments(storage, ManualClock(NOW + 2 * DAY))
        assert [each.subscriber for each in documents.get(SOURCE).items] == ["http://example.org/"]
    for moment, living in ((NOW + DAY, True), (NOW + 3 * DAY + 600, False)):
        with closing(opened(later)) as storage:
            storage.maintain(moment)
            found = storage.topics.read("acme", 0, 10, Pattern("t0")).batches
            assert any(list(batch.messages(0, moment)) for batch in found) == living
        assert whole(f"rocksdb://{later}").contradictions == 0


def expiries(path: Path, kind: str) -> list[float]:
    """Return the expiry of each document of a kind, in the project and in the deployment."""
    with closing(opened(path)) as storage:
        pages = (storage.documents.list(project, kind, "", "", 100, NOW) for project in ("", "acme"))
        return sorted(document.expires for page in pages for document in page.items)


def ends(path: Path) -> dict[str, list[float]]:
    """Return the times in ``due`` of everything that a restore shifts, by kind."""
    store, found = Store(path, layout.FAMILIES, "never", 0), {}
    with closing(store):
        for key, _ in store.scan("due", b"", b"\xff" * 256):
            kind = layout.FAMILY_OF[key[8:9]]
            if kind != "records" and store.get(kind, key[9:]) is not None:  # some belong to trimmed batches
                found.setdefault(kind, []).append(layout.number.unpack_from(key)[0] / 1000)
    return found


def test_revoked_tokens_let_nobody_in(backup: Path, new: Path) -> None:
    """This includes tokens of administrators, which no later start adopts again."""
    done = run("restore", backup, "--store", f"rocksdb://{new}", "--revoke-tokens")
    assert (done.code, "2 tokens were revoked" in done.said) == (0, True), done
    with closing(opened(new)) as storage:
        tokens = Tokens(storage.documents, StoreClock(storage.now))
        assert tokens.list("", "", 100).items == []
        assert not tokens.has_admin()


def test_no_sequence_is_given_twice(sound: Path, backup: Path, new: Path) -> None:
    """A reader of the lost store has a marker later than the backup: messages of the restored store come after it."""
    lost = Path(shutil.copytree(sound / "store", new.with_name("lost")))
    for _ in range(5):  # each start continues far above the sequences of the previous one
        with closing(opened(lost)) as storage:
            storage.messages.post(JOBS, drafts(1), time.time())
            marker = storage.messages.list(JOBS, 0, 1000, EVERYTHING, time.time()).items[-1].sequence
    assert run("restore", backup, "--store", f"rocksdb://{new}").code == 0
    with closing(opened(new)) as storage:
        storage.messages.post(JOBS, drafts(1), time.time())
        assert len(storage.messages.list(JOBS, marker, 1000, EVERYTHING, time.time()).items) == 1
