# SPDX-License-Identifier: Apache-2.0
"""The write-ahead log of the embedded store: a start drops an incomplete end, and nothing that can be read."""

import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import spawn
from zq.conformance.builders import drafts
from zq.errors import StartRefused
from zq.model import QueueRef
from zq.storage import check, salvage
from zq.storage.rocksdb import connect, write_ahead
from zq.storage.rocksdb.store import Store
from zq.storage.rocksdb.write_ahead import BLOCK, HEADER, LogFile, masked_crc

NOW, JOBS = 1_700_000_000.0, QueueRef("acme", "jobs")
POSTS, BATCH = 60, 5


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store as after SIGKILL: all 300 messages are in one log file of about 63 KB."""
    folder = tmp_path_factory.mktemp("sound")
    live = connect(f"rocksdb://{folder}/live", sync="always", max_clock_jump=0)
    for _ in range(POSTS):
        live.messages.post(JOBS, drafts(BATCH, NOW), NOW)
    shutil.copytree(folder / "live", folder / "killed")
    live.close()
    return folder / "killed"


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "store"))


def log_of(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda file: file.stat().st_size)


def digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def messages(path: Path) -> int:
    """Open the store for writing and return the number of its messages."""
    storage = connect(f"rocksdb://{path}", sync="always", max_clock_jump=0)
    try:
        return storage.queues.stats(JOBS, NOW).entered
    finally:
        storage.close()


def changed(content: bytes, at: int, by: bytes) -> bytes:
    return content[:at] + by + content[at + len(by) :]


def flipped(content: bytes, part: float) -> bytes:
    at = int(len(content) * part)
    return changed(content, at, bytes([content[at] ^ 1]))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "32 bytes in the middle": lambda content: changed(content, len(content) // 2, bytes(range(1, 33))),
    "a bit in the middle": lambda content: flipped(content, 0.5),
    "a bit at four fifths": lambda content: flipped(content, 0.8),
    "a bit near the end, in the last block": lambda content: flipped(content, 0.97),
    "a block of zeros in the middle": lambda content: changed(content, BLOCK // 2, bytes(BLOCK // 2)),
    "the length of a record": lambda content: changed(content, start_of(content, 20) + 4, b"\xff\xff"),
    "the type of a record": lambda content: changed(content, start_of(content, 20) + 6, b"\x77"),
}


# Number of messages that a salvage does not restore, if it is not that of one post.
LOST = {"32 bytes in the middle": 2 * BATCH, "a block of zeros in the middle": POSTS * BATCH // 3}


def start_of(content: bytes, number: int) -> int:
    """Return the offset of a record, by the lengths of the records before it."""
    at = 0
    for _ in range(number):
        _, length, _ = HEADER.unpack_from(content, at)
        at += HEADER.size + length
    return at


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_with_whole_writes_behind_damage_is_refused_unchanged(path: Path, damage: str) -> None:
    """The error names the command that recovers the writes; the integrity check reports that they exist."""
    log = log_of(path)
    log.write_bytes(DAMAGES[damage](log.read_bytes()))
    before = digests(path)
    with pytest.raises(StartRefused, match=f"{log.name} at offset .* complete writes of .* zq-server salvage"):
        messages(path)
    assert digests(path) == before
    report = check(f"rocksdb://{path}")
    assert report is not None
    assert any("bytes follow" in sentence for sentence in report.damage), report.damage
    assert digests(path) == before
    saved = salvage(f"rocksdb://{path}", str(path.with_name("saved")))
    assert saved is not None
    assert saved.report.contradictions == 0, saved.report.examples
    assert saved.saved["messages"] >= POSTS * BATCH - LOST.get(damage, BATCH), saved
    assert any("bytes follow" in sentence for sentence in saved.damage), saved.damage
    assert digests(path) == before


TEARS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "40 bytes cut": (lambda content: content[:-40], BATCH),
    "the last third cut": (lambda content: content[: len(content) * 2 // 3], POSTS * BATCH // 2),
    "cut at the end of a block": (lambda content: content[:BLOCK], POSTS * BATCH),
    "300 bytes zeroed": (lambda content: content[:-300] + bytes(300), BATCH),
    "zeros in the place of the last half": (
        lambda content: content[: len(content) // 2] + bytes(len(content) // 2),
        POSTS * BATCH,
    ),
    "zeros in the place of the last writes": (
        lambda content: content[: start_of(content, 15)] + bytes(len(content) - start_of(content, 15)),
        POSTS * BATCH,
    ),
    "a bit of the last record": (lambda content: changed(content, len(content) - 5, bytes([content[-5] ^ 1])), BATCH),
}


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_end_is_dropped_with_a_warning(path: Path, tear: str, caplog: pytest.LogCaptureFixture) -> None:
    """A power failure leaves such an end; the log line has the number of dropped bytes."""
    change, lost = TEARS[tear]
    log = log_of(path)
    log.write_bytes(change(log.read_bytes()))
    report = check(f"rocksdb://{path}")
    assert report is not None
    assert any(
        "The end of the write-ahead log is incomplete" in sentence and "no complete write" in sentence
        for sentence in report.damage
    ), report.damage
    with caplog.at_level(logging.WARNING):
        there = messages(path)
    assert POSTS * BATCH - lost <= there < POSTS * BATCH
    (line,) = [
        record for record in caplog.records if "The end of the write-ahead log is incomplete" in record.getMessage()
    ]
    assert line.levelno == logging.WARNING
    assert isinstance(line.args, tuple)
    assert line.args[0] > 0
    caplog.clear()
    assert messages(path) == there
    assert not [
        record for record in caplog.records if "The end of the write-ahead log is incomplete" in record.getMessage()
    ]


def test_a_log_file_that_is_missing_is_refused(path: Path) -> None:
    """The store is not changed, and opens with all messages once the file is back."""
    log = log_of(path)
    content = log.read_bytes()
    log.unlink()
    before = digests(path)
    with pytest.raises(StartRefused, match=f"{log.name} of its write-ahead log is missing"):
        messages(path)
    assert digests(path) == before
    report = check(f"rocksdb://{path}")
    assert report is not None
    assert any(f"{log.name} of the write-ahead log is missing" in sentence for sentence in report.damage)
    log.write_bytes(content)
    assert messages(path) == POSTS * BATCH


def test_a_log_file_that_is_missing_after_a_clean_end_is_refused(tmp_path: Path) -> None:
    """RocksDB created the log file while the server ran."""
    path = tmp_path / "store"
    storage = connect(f"rocksdb://{path}", sync="always", max_clock_jump=0)
    storage.messages.post(JOBS, drafts(BATCH, NOW), NOW)
    with storage._handle as (store, _):
        assert isinstance(store, Store)
        store._views["queues"].flush()
    storage.messages.post(JOBS, drafts(BATCH, NOW), NOW)
    storage.close()
    newest = write_ahead.log_files(path)[-1]
    newest.unlink()
    with pytest.raises(StartRefused, match=f"{newest.name} of its write-ahead log is missing"):
        messages(path)


def test_a_log_torn_before_a_later_one_is_no_damage(path: Path) -> None:
    """A server that was killed twice leaves both logs, if RocksDB had not recorded yet that the first was replayed."""
    log = log_of(path)
    content = log.read_bytes()
    last = LogFile(log).batch(start_of_last(log))
    assert last is not None
    torn = content[: last.start] + bytes(HEADER.size) + content[last.start + HEADER.size :]
    log.write_bytes(torn)
    whole = content[last.start :]
    later = path / f"{write_ahead.number_of(log) + 1:06d}.log"
    later.write_bytes(recorded(whole[HEADER.size :]))
    assert messages(path) == POSTS * BATCH


def start_of_last(log: Path) -> int:
    file, at = LogFile(log), 0
    while (batch := file.batch(at)) is not None and batch.end < file.size:
        at = batch.end
    return at


def recorded(content: bytes) -> bytes:
    """Return the content as one complete record."""
    typed = bytes([write_ahead.WHOLE]) + content
    return HEADER.pack(masked_crc(typed), len(content), write_ahead.WHOLE) + content


def test_records_are_found_as_rocksdb_writes_them(path: Path) -> None:
    """Records are found by their checksums, across block boundaries; sequence numbers neither repeat nor skip."""
    file, at, expected = LogFile(log_of(path)), 0, 0
    fragments = 0
    while (batch := file.batch(at)) is not None:
        assert file.is_intact(batch)
        assert not batch.entries or not expected or batch.sequence == expected
        expected = batch.sequence + batch.entries
        fragments = max(fragments, len(batch.fragments))
        at = batch.end
    assert at == file.size
    assert fragments > 1


WRITER = """
import itertools, sys
from zq.conformance.builders import drafts
from zq.model import QueueRef
from zq.storage.ordered import layout
from zq.storage.rocksdb import connect, write_ahead
storage = connect(sys.argv[1], sync="always", max_clock_jump=0)
for number in itertools.count():
    storage.messages.post(QueueRef("acme", "jobs"), drafts(5, 1.7e9), 1.7e9)
    print(flush=True)
    with storage._handle as (store, _):
        for family in layout.FAMILIES[number % 5 :: 5]:
            store._views[family].flush()
        write_ahead.record_files(storage._housekeeping._path)
"""


def test_no_kill_makes_a_sound_store_be_refused(tmp_path: Path) -> None:
    """The list of log files is updated each time that RocksDB creates or removes a log file."""
    path, acknowledged = tmp_path / "store", 0
    for round in range(6):
        process = spawn([sys.executable, "-c", WRITER, f"rocksdb://{path}"], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"\n"
        time.sleep(0.05 * round)
        os.killpg(process.pid, signal.SIGKILL)
        acknowledged += 1 + len(process.stdout.readlines())
        process.wait(60)
        process.stdout.close()
        assert messages(path) >= acknowledged * BATCH


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store as after SIGKILL, with messages in several log files."""
    folder = tmp_path_factory.mktemp("several")
    live = connect(f"rocksdb://{folder}/live", sync="always", max_clock_jump=0)
    for family in ("queues", "hidden", ""):
        for _ in range(POSTS // 3):
            live.messages.post(JOBS, drafts(BATCH, NOW), NOW)
        with live._handle as (store, _):
            assert isinstance(store, Store)
            if family:
                store._views[family].flush()
    write_ahead.record_files(folder / "live")
    shutil.copytree(folder / "live", folder / "killed")
    live.close()
    return folder / "killed"


def harmed(content: bytes, chance: random.Random) -> bytes | None:
    """Return the content after damage by a disk or a power failure; `None` if the file is lost."""
    at, count = chance.randrange(len(content)), chance.randrange(1, 300)
    page = at // 4096 * 4096
    return chance.choice(
        [
            None,
            content[:at],
            content[:at] + bytes(len(content) - at),
            flipped(content, at / len(content)),
            changed(content, at, bytes(count))[: len(content)],
            changed(content, at, chance.randbytes(count))[: len(content)],
            changed(content, page, bytes(4096))[: len(content)],
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_no_loss_is_silent(several: Path, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """After damage to one of several files, all messages are there, the start is refused, or the log has a warning."""
    path, chance = Path(shutil.copytree(several, tmp_path / "store")), random.Random(seed)
    log = chance.choice([file for file in write_ahead.log_files(path) if file.stat().st_size])
    content = harmed(log.read_bytes(), chance)
    log.unlink() if content is None else log.write_bytes(content)
    try:
        there = messages(path)
    except StartRefused:
        return
    if there < POSTS * BATCH:
        assert [record for record in caplog.records if record.levelno >= logging.WARNING and record.args], caplog.text
        assert "The end of the write-ahead log is incomplete" in caplog.text
