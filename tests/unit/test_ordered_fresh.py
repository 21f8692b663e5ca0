# SPDX-License-Identifier: Apache-2.0
"""Fresh messages of the embedded store, which are in no index, and their merge with indexed messages in claims."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from zq.model import ClaimRequest, Draft, Lease, QueueRef, Settlement, new_ids
from zq.model.expiry import Expiry
from zq.storage.api import FALSE_FUTURE
from zq.storage.ordered import layout
from zq.storage.ordered.changes import MAX_GAP
from zq.storage.ordered.integrity import Integrity
from zq.storage.ordered.layout import Tally
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store

NOW = 1_700_000_000.0
JOBS = QueueRef("acme", "jobs")


def opened(path: Path) -> OrderedStorage:
    return connect(f"rocksdb://{path}/store", sync="never", max_clock_jump=0, expiry=Expiry(delete_on_read=False))


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[OrderedStorage]:
    with closing(opened(tmp_path)) as storage:
        yield storage


def post(
    storage: OrderedStorage, count: int, at: float = NOW, delay: int = 0, ttl: int = 3600, body: bytes = b"1"
) -> list[str]:
    ids = list(new_ids(count, NOW))
    storage.messages.post(JOBS, [Draft(id, body, ttl, delay, "alice") for id in ids], at)
    return ids


def claim(storage: OrderedStorage, limit: int, now: float = NOW, name: str = "a.a", ttl: int = 60) -> list[str]:
    made = storage.claims.create(JOBS, ClaimRequest(Lease(name, ttl, 0), limit), now).claim
    return [] if made is None else [message.id for message in made.messages]


def pop(storage: OrderedStorage, limit: int, now: float = NOW, max_bytes: int = 1 << 20) -> list[str]:
    return [message.id for message in storage.messages.pop(JOBS, limit, now, max_bytes=max_bytes)]


def state_of(storage: OrderedStorage) -> QueueState:
    with storage._handle as (_, registry):
        state = registry.find(JOBS)
    assert state is not None
    return state


def indexed(storage: OrderedStorage) -> int:
    with storage._handle as (store, _):
        return sum(1 for _ in store.scan("available", b"", b"\xff" * 32))


def sound(storage: OrderedStorage, now: float = NOW) -> bool:
    with storage._handle as (store, _):
        return Integrity(store, layout.ms(now)).report().contradictions == 0


def test_fresh_messages_are_in_no_index(storage: OrderedStorage):
    """Fresh messages are never indexed; claimed, delayed and released ones are."""
    ids = post(storage, 5)
    assert indexed(storage) == 0
    assert pop(storage, 2) == ids[:2]
    assert claim(storage, 1) == ids[2:3]
    post(storage, 1, delay=60)
    assert indexed(storage) == 2
    storage.claims.release(JOBS, "a.a", NOW)
    assert indexed(storage) == 2
    assert pop(storage, 9) == ids[2:]
    assert indexed(storage) == 1
    assert sound(storage)


def test_fresh_and_indexed_messages_share_one_order(storage: OrderedStorage):
    """Released and delayed messages and those of expired claims are merged with fresh ones by available-at."""
    first = post(storage, 4)
    assert claim(storage, 2, name="a.a") == first[:2]
    assert claim(storage, 1, name="a.b", ttl=5) == first[2:3]
    delayed = post(storage, 1, at=NOW + 1, delay=3)
    between = post(storage, 1, at=NOW + 4)
    late = post(storage, 1, at=NOW + 6)
    storage.claims.release(JOBS, "a.a", NOW + 6)
    assert storage.queues.ready(JOBS, 100, NOW + 6).count == 7
    wanted = [*first[:2], first[3], *delayed, *between, first[2], *late]
    assert claim(storage, 3, NOW + 6, "a.c") == wanted[:3]
    assert pop(storage, 9, NOW + 6) == wanted[3:]
    assert sound(storage)


@pytest.mark.parametrize("settled", [False, True])
def test_a_start_does_not_rescan_claimed_messages(tmp_path: Path, settled: bool):
    """Each claim stores where the fresh messages begin."""
    with closing(opened(tmp_path)) as storage:
        ids = post(storage, 50)
        assert claim(storage, 20) == ids[:20]
        if settled:
            storage.claims.settle(JOBS, "a.a", Settlement(rest=True), NOW)
        head = state_of(storage).tally.fresh_head
        assert head == 20
    with closing(opened(tmp_path)) as storage:
        assert state_of(storage).tally.fresh_head == head
        late = post(storage, 1)
        assert indexed(storage) == (0 if settled else 20)
        assert pop(storage, 100) == [*ids[20:], *late]
        assert sound(storage)


def test_a_change_that_fails_takes_nothing(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """The next claim begins where the failed one did."""
    ids = post(storage, 5)
    with storage._handle as (store, _), monkeypatch.context() as patch:
        patch.setattr(store, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            claim(storage, 3)
        with pytest.raises(ZeroDivisionError):
            pop(storage, 3)
    assert claim(storage, 5) == ids


def test_a_claim_steps_over_few_delayed_messages_however_many_there_are(
    storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch
):
    """Fresh messages behind many delayed ones are indexed until those before them have been claimed."""
    first = post(storage, 1)
    for _ in range(5):
        post(storage, 1000, delay=600)
    second = post(storage, 3)
    assert indexed(storage) == 5003
    read: list[str] = []
    with storage._handle as (store, _):
        scan = store.scan
        monkeypatch.setattr(
            store, "scan", lambda family, *rest, **more: _noted(scan(family, *rest, **more), family, read)
        )
    assert claim(storage, 1, name="a.a") == first
    assert claim(storage, 3, name="a.b") == second
    assert len(read) < 50
    third = post(storage, 2)
    assert pop(storage, 9) == third
    assert len(read) < 60
    monkeypatch.undo()
    assert indexed(storage) == 5004
    assert sound(storage)


def test_claims_of_one_second_read_the_index_once(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """The index is not read again if it had no entry for that second, except after an entry was added."""
    ids, delayed = post(storage, 60), post(storage, 1, delay=3)
    looked: list[str] = []
    with storage._handle as (store, _):
        scan = store.scan
        monkeypatch.setattr(store, "scan", lambda family, *rest, **more: _told(scan, looked, family, *rest, **more))
    for at in range(5):
        taken = [*claim(storage, 2, NOW + at / 10, f"a.{at}"), *pop(storage, 1, NOW + at / 10)]
        assert taken == ids[3 * at : 3 * at + 3]
    assert looked.count("available") == 1
    storage.claims.release(JOBS, "a.1", NOW + 0.5)
    assert claim(storage, 3, NOW + 0.5, "a.z") == [*ids[3:5], ids[15]]
    assert looked.count("available") > 1
    assert delayed[0] in pop(storage, 99, NOW + 3)


def _told(scan: Callable[..., Iterator[tuple[bytes, bytes]]], looked: list[str], family: str, *rest, **more):
    looked.append(family)
    return scan(family, *rest, **more)


def _noted(items: Iterator[tuple[bytes, bytes]], family: str, read: list[str]) -> Iterator[tuple[bytes, bytes]]:
    for item in items:
        read.append(family)
        yield item


def test_delayed_messages_between_fresh_ones_are_stepped_over(storage: OrderedStorage):
    """Up to `MAX_GAP` delayed messages are skipped, and the fresh ones stay out of the index."""
    ids: list[str] = []
    for _ in range(10):
        ids += post(storage, 1)
        post(storage, MAX_GAP, delay=600)
    assert indexed(storage) == 10 * MAX_GAP
    assert claim(storage, 4) == ids[:4]
    assert pop(storage, 99) == ids[4:]
    assert sound(storage)


def test_messages_from_a_false_future_come_after_later_ones(storage: OrderedStorage):
    """The clock jumped far ahead and back; messages that are posted afterwards are available at once."""
    future = post(storage, 2, at=NOW + FALSE_FUTURE + 100, ttl=2 * FALSE_FUTURE)
    ids = [*post(storage, 1), *post(storage, 2)]
    assert storage.queues.ready(JOBS, 100, NOW).next == NOW + FALSE_FUTURE + 100
    assert claim(storage, 9) == ids
    late = post(storage, 1)
    assert pop(storage, 9) == late
    assert claim(storage, 9, NOW + FALSE_FUTURE + 100, "a.b")[-2:] == future
    assert sound(storage)


def test_messages_beyond_a_byte_limit_are_taken_next(storage: OrderedStorage):
    """Fresh and released messages keep their order."""
    ids = post(storage, 6, body=b"0123456789")
    claim(storage, 2)
    storage.claims.release(JOBS, "a.a", NOW)
    taken: list[str] = []
    for _ in range(3):
        taken += pop(storage, 6, max_bytes=20)
    assert taken == ids


def test_a_message_that_was_handed_out_too_often_stays_for_other_claims(storage: OrderedStorage):
    """If no claim is allowed, each fresh message is spent at once; the next claim may have another limit."""
    ids = post(storage, 3)
    claimed = storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 0), 2, max_claims=0), NOW)
    assert claimed.claim is None
    assert list(claimed.spent) == ids[:2]
    assert sound(storage)
    assert claim(storage, 9) == ids


def test_a_purged_queue_forgets_its_fresh_messages(storage: OrderedStorage):
    """Fresh messages from before the purge are not read."""
    post(storage, 3)
    storage.queues.purge(JOBS)
    ids = post(storage, 2)
    assert indexed(storage) == 0
    assert pop(storage, 9) == ids
    storage.maintain(NOW)
    assert sound(storage)


def test_depths_count_fresh_messages(storage: OrderedStorage):
    """Messages of expired claims are counted too, up to a limit; the oldest is the first that became available."""
    post(storage, 4)
    claim(storage, 2, ttl=5)
    post(storage, 3, at=NOW + 3)
    for most in (100, 2):
        [(_, depth)] = storage.depths(NOW + 6, 10, most)
        assert (depth.ready, depth.oldest_ready) == (min(7, most), NOW)


@pytest.mark.parametrize("wrong", [{"fresh_head": 1}, {"fresh_tail": 2}], ids=["head", "tail"])
def test_a_check_finds_fresh_messages_that_no_claim_would_find(tmp_path: Path, wrong: dict[str, int]):
    """Fresh messages are in no index, so that only the counters lead to them."""
    with closing(opened(tmp_path)) as storage:
        post(storage, 3)
    store = Store(tmp_path / "store", layout.FAMILIES, "never", 0)
    with closing(store):
        [(key, value)] = store.scan("tallies", b"", b"\xff" * 8)
        tally: Tally = layout.decode_tally(value)
        assert Integrity(store, layout.ms(NOW)).report().contradictions == 0
        store.write([("tallies", key, layout.encode(structs.replace(tally, **wrong)))])
        assert Integrity(store, layout.ms(NOW)).report().contradictions == 1
