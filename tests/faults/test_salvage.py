# SPDX-License-Identifier: Apache-2.0
"""Salvage of a damaged store: the new store has everything that is readable, and every loss is reported."""

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from tests.damaged import cut, flip, flushed, table_of
from tests.faults.disks import post_two_mebibytes, run_on_small_disk
from tests.rotation import rotated
from tests.unit.test_ordered_integrity import NOW, drafts, use
from zq.errors import StartRefused
from zq.model import ClaimRequest, Grouping, KnownFence, Lease, ListFilter, QueueRef
from zq.model.expiry import Expiry
from zq.model.quotas import Work
from zq.model.stats import SalvageResult
from zq.model.topics import TopicRef
from zq.storage import check, salvage
from zq.storage.ordered import layout
from zq.storage.ordered.entries import MESSAGE_OF
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store
from zq.storage.rocksdb.survey import Survey

Dump = dict[str, dict[bytes, bytes]]
# Families that can be rebuilt from other families.
MADE_ANEW = ("numbers", "available", "expiry", "ids", "claims", "sequences", "endings", "topics")
# Offset of the only data block of a small table.
BLOCK_OF_FEW = 0.01


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with all kinds of data: delayed, claimed and dead messages, history, keys, a stage and topics."""
    path = tmp_path_factory.mktemp("sound") / "store"
    storage = connect(f"rocksdb://{path}", sync="never", max_clock_jump=0, expiry=Expiry(delete_on_read=False))
    use(storage)
    storage.maintain(NOW)
    storage.topics.purge(TopicRef("acme", "t2"))
    storage.close()
    return flushed(path)


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "old"))


def dumped(path: Path) -> Dump:
    """Return all entries of all families, except the store's own numbers."""
    survey = Survey(path)
    try:
        return {family: dict(survey.scan(family, b"", b"\xff" * 256)) for family in layout.FAMILIES[1:]}
    finally:
        survey.close()


def digest(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def salvaged(path: Path) -> tuple[SalvageResult, Dump]:
    """Salvage the store to ``new``. Assert that the old store is unchanged and the new one consistent."""
    before, new = digest(path), path.with_name("new")
    told = salvage(f"rocksdb://{path}", str(new))
    assert told is not None
    assert digest(path) == before, "the damaged store is not changed"
    assert told.report.contradictions == 0, told.report.examples
    assert told.report.damage == []
    assert sorted(file.name for file in path.parent.iterdir()) == ["new", "old"], "nothing else is left behind"
    return told, dumped(new)


def differing(old: Dump, new: Dump) -> set[str]:
    return {family for family in old if old[family] != new[family]}


def test_a_sound_store_is_copied_whole(path: Path) -> None:
    """All families are equal entry by entry, and no loss is reported."""
    old = dumped(path)
    assert all(old[family] for family in old if family not in ("hidden", "lines")), "there is something of everything"
    told, new = salvaged(path)
    assert differing(old, new) == set()
    assert told.lost == told.damage == []
    assert told.saved["messages"] == len(old["messages"]) > 15


@pytest.mark.parametrize("gone", [False, True], ids=["block", "gone"])
def test_indexes_that_cannot_be_read_cost_nothing(path: Path, gone: bool) -> None:
    """All of them are damaged at once and rebuilt from the records, entry by entry."""
    old, files = dumped(path), {family: table_of(path, family) for family in MADE_ANEW}
    for file in files.values():
        file.unlink() if gone else flip(file, BLOCK_OF_FEW)
    told, new = salvaged(path)
    assert differing(old, new) == set()
    assert told.lost == []
    assert len(told.damage) == len(files)
    for family, file in files.items():
        assert any(sentence.startswith(f"{file.name}, family {family}, keys from ") for sentence in told.damage)


# Families that a salvage cannot restore exactly, by the damaged family; all others are equal.
OTHERWISE = {
    "queues": {"queues", "keys", "due", "tallies"},
    "tallies": {"tallies"},
    "messages": {"messages", "available", "expiry", "ids", "claims", "tallies"},
    "bodies": {"messages", "bodies", "available", "expiry", "ids", "claims", "tallies"},
    "history": {"history", "sequences", "endings", "due", "tallies"},
    "keys": {"keys", "due", "tallies"},
    "fences": {"fences"},
    "stages": {"stages", "staged", "due"},
    "staged": {"stages", "staged", "due"},
    "producers": {"producers", "due"},
    "batches": {"batches", "topics", "due", "logs"},
    "floors": {"floors"},
    "records": {"records", "due"},
    "due": set(),
    "logs": {"logs", "batches", "topics", "due", "floors", "keys"},
}


@pytest.mark.parametrize("family", rotated(list(OTHERWISE), 2))
def test_a_family_that_cannot_be_read_costs_itself_alone(path: Path, family: str) -> None:
    """Other families are equal entry by entry; losses are reported, by name if another family has it."""
    old = dumped(path)
    flip(table_of(path, family), BLOCK_OF_FEW)
    told, new = salvaged(path)
    assert differing(old, new) <= OTHERWISE[family]
    assert any(f"family {family}," in sentence for sentence in told.damage)
    named = {
        "queues": len(old["queues"]) + 1,
        "tallies": len(old["tallies"]) - len(old["hidden"]),
        "messages": len(old["messages"]),
        "bodies": len(old["bodies"]),
        "history": len(old["history"]),
        "keys": len(old["keys"]),
        "stages": 1,
        "staged": 1,
        "producers": 1,
        "batches": len(old["topics"]) - sum(key[:8] + key[-8:] not in old["batches"] for key in old["topics"]),
        "records": 1,
    }
    if family in named:
        assert len(told.lost) == named[family], told.lost


def test_messages_whose_records_are_lost_come_back_without_claims_and_counts(path: Path) -> None:
    """Index entries have id, expiry and order, and large bodies are stored separately.

    Short bodies are stored in the record and are reported as lost.
    """
    old = dumped(path)
    flip(table_of(path, "messages"), BLOCK_OF_FEW)
    told, new = salvaged(path)
    assert 3 < len(old["bodies"]) < len(old["messages"]) - 3
    assert new["messages"].keys() == old["bodies"].keys()
    message_of = {name: MESSAGE_OF[name] for name in ("available", "expiry", "ids")}
    for family, of in message_of.items():
        apart = {key for key, value in old[family].items() if of(key, value) in old["bodies"]}
        assert new[family].keys() == apart
    assert old["bodies"] == new["bodies"]
    assert new["claims"] == {}
    records = [layout.decode_record(value) for value in new["messages"].values()]
    known = {key: layout.decode_record(value).id for key, value in old["messages"].items()}
    assert {record.id for record in records} == {known[key] for key in old["bodies"]}
    for id in (known[key] for key in known.keys() - old["bodies"].keys()):
        assert any(sentence.startswith(f"Message {id} of ") for sentence in told.lost)


def test_fresh_messages_that_claims_have_passed_are_before_them_again(path: Path) -> None:
    """A message that was unreadable once and is readable now is in no index: the counters must lead to it."""
    old = dumped(path)
    store = Store(path, layout.FAMILIES, "never", 0)
    for number, value in old["tallies"].items():
        tally = layout.decode_tally(value)
        passed = layout.encode(structs.replace(tally, fresh_head=tally.fresh_tail))
        store.write([("tallies", number, passed)])
    store.close()
    _, new = salvaged(path)
    assert differing(old, new) <= {"tallies"}
    records = {key: layout.decode_record(value) for key, value in new["messages"].items()}
    fresh = [key for key, record in records.items() if not record.indexed]
    assert fresh
    for key in fresh:
        assert layout.decode_tally(new["tallies"][key[:8]]).fresh_head < layout.pair.unpack(key)[1]


@pytest.mark.parametrize("lost", rotated(["", "lines", "available", "queues"], 1))
def test_groups_are_handed_out_in_order_as_before(tmp_path: Path, lost: str) -> None:
    """Any of the indexes may be lost; a queue whose entry is lost is found by its lines."""
    path = tmp_path / "old"
    jobs = QueueRef("acme", "jobs")
    storage = connect(f"rocksdb://{path}", sync="never", max_clock_jump=0)
    storage.queues.create(jobs, b"{}", Grouping.ORDERED)
    posted = [structs.replace(draft, group=group) for draft, group in zip(drafts(4), "abab", strict=True)]
    storage.messages.post(jobs, posted, NOW)
    storage.claims.create(jobs, ClaimRequest(Lease("a.a", 60, 60), 1), NOW)
    storage.close()
    if lost:
        flip(table_of(flushed(path), lost), BLOCK_OF_FEW)
    told, _ = salvaged(path)
    assert [sentence for sentence in told.lost if "metadata" not in sentence] == []
    with closing(connect(f"rocksdb://{path.with_name('new')}", sync="never", max_clock_jump=0)) as storage:
        taken = [storage.messages.pop(jobs, 10, NOW + later) for later in (0, 60)]
    assert [[message.id for message in some] for some in taken] == [
        [posted[1].id, posted[3].id],
        [posted[0].id, posted[2].id],
    ]


def test_messages_of_a_queue_that_is_lost_are_in_one_of_their_project(path: Path) -> None:
    """Neither its entry nor its number is readable; the ids contain the project."""
    old = dumped(path)
    for family in ("queues", "numbers"):
        flip(table_of(path, family), BLOCK_OF_FEW)
    told, new = salvaged(path)
    assert told.saved["messages"] == len(old["messages"])
    assert {layout.decode_queue_key(key).project for key in new["queues"]} == {"acme"}
    assert all(layout.decode_queue_key(key).name.startswith("salvaged-") for key in new["queues"])


@pytest.mark.parametrize("family", rotated(["tallies", "default", "messages", "queues"], 1))
def test_sequences_never_go_back(path: Path, family: str) -> None:
    """Whatever is damaged, the next message of a queue has a higher sequence than any before (L5, L6).

    Positions of history and topics rise too.
    """
    old = dumped(path)
    flip(table_of(path, family), BLOCK_OF_FEW)
    before = {key: layout.decode_tally(value) for key, value in old["tallies"].items()}
    _, new = salvaged(path)
    after = {key: layout.decode_tally(value) for key, value in new["tallies"].items()}
    kept = Counter(key[:8] for key in old["bodies"])
    assert before.keys() == after.keys()
    for number, tally in before.items():
        assert after[number].sequence >= tally.sequence
        assert after[number].count == (tally.count if family != "messages" else kept[number])
    storage = connect(f"rocksdb://{path.with_name('new')}", sync="never", max_clock_jump=0)
    try:
        with storage._handle as (_, registry):
            for key in old["queues"]:
                state = registry.find(layout.decode_queue_key(key))
                assert state is not None
                known = before.get(layout.number.pack(state.number))
                assert known is not None
                assert state.tally.sequence > known.sequence
                assert state.tally.position > known.position
            assert registry.new_number() > max(layout.number.unpack(key)[0] for key in old["numbers"])
    finally:
        storage.close()


def test_a_salvaged_store_is_served_and_claims_go_on(path: Path) -> None:
    """A live claim stays live in the new store, and its messages can be deleted with it."""
    flip(table_of(path, "claims"), BLOCK_OF_FEW)
    salvaged(path)
    storage = connect(f"rocksdb://{path.with_name('new')}", sync="never", max_clock_jump=0)
    try:
        jobs = QueueRef("acme", "jobs")
        claim = storage.claims.get(jobs, "a.e", NOW + 6)
        assert claim.messages
        storage.messages.delete(jobs, [claim.messages[0].id], NOW + 6, claims=["a.e"])
        assert storage.claims.create(jobs, ClaimRequest(Lease("a.z", 60, 60), 100), NOW + 20).claim is not None
        assert storage.messages.list(jobs, 0, 100, ListFilter(claimed=True, delayed=True), NOW + 20).items
    finally:
        storage.close()


@pytest.mark.parametrize(
    ("file", "harm"),
    rotated([("MANIFEST-*", lambda file: cut(file, 0.5)), ("MANIFEST-*", Path.unlink), ("CURRENT", Path.unlink)], 1),
)
def test_a_store_whose_list_of_files_is_damaged_is_saved_whole(
    path: Path, file: str, harm: Callable[[Path], None]
) -> None:
    """The list is rebuilt in a copy, because the old store must not change."""
    old = dumped(path)
    harm(next(path.glob(file)))
    told, new = salvaged(path)
    assert differing(old, new) == set()
    assert told.lost == []
    assert told.damage


def test_what_other_files_have_in_the_range_of_a_file_that_is_gone_is_saved(tmp_path: Path) -> None:
    """Only fences have no other record. Of two files, one cannot be opened and hides the other from every scan."""
    path = tmp_path / "old"
    storage = connect(f"rocksdb://{path}", sync="never")
    files = []
    for names in ("bd", "mn"):
        for name in names:
            storage.transactions.advance_fence("acme", name, NOW)
        with storage._handle as (store, _):
            store._views["fences"].flush()
        files.append(max(path.glob("*.sst"), key=lambda file: int(file.stem)))
    storage.close()
    files[1].unlink()
    told, new = salvaged(path)
    assert [layout.decode_queue_key(key).name for key in new["fences"]] == ["b", "d"]
    rescued = connect(f"rocksdb://{path.with_name('new')}")
    fences = rescued.transactions.list("acme", Work.FENCE, "", 9, NOW).items
    rescued.close()
    assert fences == [KnownFence(name, 1, pytest.approx(NOW)) for name in "bd"]
    (sentence,) = told.damage
    lower, upper = (layout.queue_key(QueueRef("acme", name)).hex() for name in "mn")
    assert sentence.startswith(f"{files[1].name}, family fences, keys from {lower} to {upper}00: ")


@pytest.mark.parametrize("torn", [True, False], ids=["torn", "corrupt"])
def test_a_damaged_log_costs_the_writes_that_cannot_be_read(tmp_path: Path, torn: bool) -> None:
    """The log of a killed server ends within a write or is damaged; all else is saved, and counters rise."""
    storage, jobs = connect(f"rocksdb://{tmp_path}/live", sync="never"), QueueRef("acme", "jobs")
    for _ in range(20):
        storage.messages.post(jobs, drafts(10), NOW)
    path = Path(shutil.copytree(tmp_path / "live", tmp_path / "killed" / "old"))
    storage.close()
    log = max(path.glob("*.log"), key=lambda file: file.stat().st_size)
    cut(log, 0.9) if torn else flip(log, 0.9)
    told, new = salvaged(path)
    assert 150 <= len(new["messages"]) < 200
    assert any("log" in sentence for sentence in told.damage)
    (tally,) = map(layout.decode_tally, new["tallies"].values())
    assert tally.count == len(new["messages"])
    assert tally.sequence >= max(layout.pair.unpack(key)[1] for key in new["messages"])


def test_a_check_goes_on_behind_damage_to_the_end(path: Path) -> None:
    """The check names each damaged file with its family; intact data are counted as before, without contradictions."""
    before = check(f"rocksdb://{path}")
    assert before is not None
    damaged = {family: table_of(path, family) for family in ("bodies", "ids", "keys", "topics", "records")}
    for file in damaged.values():
        flip(file, BLOCK_OF_FEW)
    report = check(f"rocksdb://{path}")
    assert report is not None
    assert len(report.damage) == len(damaged)
    for family, file in damaged.items():
        assert any(told.startswith(f"{file.name}, family {family}, keys from ") for told in report.damage)
    whole = set(layout.FAMILIES) - damaged.keys()
    assert {name: report.counted.get(name) for name in whole} == {name: before.counted.get(name) for name in whole}
    assert report.counted["comparisons that are impossible because of damage"] > 0
    assert report.contradictions == 0, report.examples


def test_a_target_that_is_there_is_refused(path: Path) -> None:
    """Neither a store nor an empty folder is a valid target."""
    path.with_name("new").mkdir()
    with pytest.raises(StartRefused, match="already exists"):
        salvage(f"rocksdb://{path}", str(path.with_name("new")))
    assert list(path.with_name("new").iterdir()) == []


def test_a_store_in_use_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command creates nothing."""
    monkeypatch.setattr("zq.storage.rocksdb.files.LOCK_PATIENCE", 0.0)
    storage = connect(f"rocksdb://{path}", max_clock_jump=0)
    try:
        with pytest.raises(StartRefused, match="in use by another process"):
            salvage(f"rocksdb://{path}", str(path.with_name("new")))
    finally:
        storage.close()
    assert not path.with_name("new").exists()


@pytest.mark.ability("unshare")
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """The file system of the new store has 1 MiB, and the damaged store 2 MiB."""
    old, disk = tmp_path / "store", tmp_path / "disk"
    disk.mkdir()
    with closing(connect(f"rocksdb://{old}", sync="never")) as storage:
        post_two_mebibytes(storage)
    done = run_on_small_disk(disk, "1m", "salvage", "--store", f"rocksdb://{old}", "--to", f"{disk}/new")
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr == f"zq-server: The file system of {disk}/new is full. Salvage to another one.\n"
