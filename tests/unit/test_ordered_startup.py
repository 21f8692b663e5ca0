# SPDX-License-Identifier: Apache-2.0
"""Starts of the embedded store: no sequence is given twice, whatever a power cut took; which stores are opened."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from rocksdict import Options, Rdict

from zq.model import Draft, ListFilter, QueueRef, new_ids
from zq.model.quotas import Usage
from zq.model.topics import EVERYTHING, Entry, Pattern, Retention, TopicRef
from zq.storage import check
from zq.storage.ordered import layout, startup
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import SYNC_MODES, Store

NOW = 1_700_000_000.0
JOBS = QueueRef("acme", "jobs")


def publish(storage: OrderedStorage) -> int:
    """The sequence of a message of a topic."""
    return storage.topics.publish(TopicRef("acme", "a"), [Entry(b"1", 600)], NOW, Retention(1 << 20, 80))


def post(storage: OrderedStorage) -> int:
    """The sequence of a message of a queue."""
    storage.messages.post(JOBS, [Draft(id, b"1", 600, 0, "alice") for id in new_ids(1, NOW)], NOW)
    return max(message.sequence for message in storage.messages.list(JOBS, 0, 100, ListFilter(), NOW).items)


def finish(storage: OrderedStorage) -> int:
    """The position of a record of history."""
    post(storage)
    storage.messages.pop(JOBS, 1, NOW, history=600)
    with storage._handle as (store, _):
        return max(layout.pair.unpack(key)[1] for key, _ in store.scan("history", b"", b"\xff" * 16))


@pytest.mark.parametrize("known", [True, False], ids=["known before", "new"])
@pytest.mark.parametrize("give", [publish, post, finish])
def test_no_start_gives_what_another_gave_and_lost(tmp_path: Path, give: Callable[[OrderedStorage], int], known: bool):
    """Three starts in a row of which nothing but their number is left."""
    path, spare = tmp_path / "store", tmp_path / "spare"
    storage = connect(f"rocksdb://{path}", sync="interval", max_clock_jump=0)
    given = [give(storage)] if known else []
    storage.close()
    for _ in range(3):
        storage = connect(f"rocksdb://{path}", sync="interval", max_clock_jump=0)
        shutil.copytree(path, spare)
        given += [give(storage), give(storage)]
        storage.close()
        shutil.rmtree(path)
        spare.rename(path)
    assert given == sorted(set(given))


@pytest.mark.parametrize("sync", SYNC_MODES)
def test_a_start_is_on_disk_before_anything_is_given_out(tmp_path: Path, sync: str, monkeypatch: pytest.MonkeyPatch):
    """In every sync mode, at the first start and when the store is opened anew."""
    flushed: list[int] = []
    flush = Store._flush

    def watched(store: Store) -> None:
        flush(store)
        flushed.append(int.from_bytes(store.get("default", startup.STARTS) or b""))

    monkeypatch.setattr(Store, "_flush", watched)
    storage = connect(f"rocksdb://{tmp_path}/store", sync, max_clock_jump=0, sync_interval=1000)
    assert flushed == [1]
    storage._handle.reopen()
    assert flushed == [1, 1, 2]  # closing syncs too
    storage.close()


def test_counters_of_a_store_that_counted_no_starts_go_on_above(tmp_path: Path):
    """Its entries name none, and it may be of the layout before, which lacks only families."""
    path = tmp_path / "store"
    storage = connect(f"rocksdb://{path}", sync="never", max_clock_jump=0)
    given = [post(storage), post(storage)]
    with storage._handle as (store, _):
        [(key, value)] = store.scan("tallies", b"", b"\xff" * 8)
        former = layout.decode_tally(value)
        store.write(
            [
                ("tallies", key, layout.encode([former.sequence, former.fresh, former.count, 0, 0])),
                ("default", startup.STARTS, None),
                ("default", b"version", b"3"),
            ]
        )
    storage.close()
    families = [
        family for family in layout.FAMILIES if family not in ("logs", "batches", "topics", "floors", "records")
    ]
    _drop_others(path, families)
    storage = connect(f"rocksdb://{path}", max_clock_jump=0)
    assert post(storage) == given[-1] + startup.EPOCH_STRIDE + 1
    assert publish(storage) == 1
    assert len(storage.topics.read("acme", 0, 10, Pattern(EVERYTHING)).batches) == 1
    with storage._handle as (store, _):
        assert store.get("default", b"version") == layout.VERSION
    storage.close()


def test_messages_of_a_store_that_counted_no_bytes_are_of_none(tmp_path: Path):
    """Nor are they taken off when they go: those of now are counted beside them."""
    uri = f"rocksdb://{tmp_path}/store"
    storage = connect(uri, sync="never", max_clock_jump=0)
    post(storage), post(storage)
    with storage._handle as (store, _):
        for family, decode, new in (("messages", layout.decode_record, 1), ("tallies", layout.decode_tally, 2)):
            for key, value in store.scan(family, b"", b"\xff" * 16):
                fields = structs.astuple(decode(value))[:-new]
                store.write([(family, key, layout.encode(fields))])
    storage.close()
    storage = connect(uri, max_clock_jump=0)
    assert storage.usage("acme", NOW) == Usage(2, 0)
    post(storage)
    of_one = storage.usage("acme", NOW).bytes
    assert of_one > 256
    assert len(storage.messages.pop(JOBS, 2, NOW)) == 2
    assert storage.usage("acme", NOW) == Usage(1, of_one)
    storage.close()
    assert check(uri).contradictions == 0


def _drop_others(path: Path, families: list[str]) -> None:
    """Leave the store with these families only, as an earlier zq made it."""
    database = Rdict(
        str(path), Options(raw_mode=True), {name: Options(raw_mode=True) for name in Rdict.list_cf(str(path))}
    )
    for name in set(layout.FAMILIES) - set(families):
        database.drop_column_family(name)
    database.close()
