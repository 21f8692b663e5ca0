# SPDX-License-Identifier: Apache-2.0
"""Groups of claimed messages in the embedded store: one index entry for messages that were claimed together."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.damaged import flip, flushed, table_of
from zq.errors import ClaimNotFound
from zq.model import ClaimRequest, Draft, HandleOutcome, Lease, MessageHandle, QueueRef, Release, Settlement, new_ids
from zq.model.expiry import Expiry
from zq.storage.ordered import layout
from zq.storage.ordered.claims import find_sequences
from zq.storage.ordered.integrity import Integrity
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
        with storage._handle as (store, _):
            assert Integrity(store, layout.ms(NOW)).report().examples == []


def post(storage: OrderedStorage, count: int, ttl: int = 3600) -> list[str]:
    ids = list(new_ids(count, NOW))
    storage.messages.post(JOBS, [Draft(id, b"1", ttl, 0, "alice") for id in ids], NOW)
    return ids


def claim(storage: OrderedStorage, limit: int, name: str = "a.a", now: float = NOW, ttl: int = 60) -> list[str]:
    made = storage.claims.create(JOBS, ClaimRequest(Lease(name, ttl, 0), limit), now).claim
    return [] if made is None else [message.id for message in made.messages]


def held(storage: OrderedStorage, name: str = "a.a", now: float = NOW) -> list[str]:
    try:
        return [message.id for message in storage.claims.get(JOBS, name, now).messages]
    except ClaimNotFound:
        return []


def groups(storage: OrderedStorage) -> list[int]:
    """Return the number of messages in each group."""
    with storage._handle as (store, _):
        return [len(layout.decode_group(value)[1]) for _, value in store.scan("claims", b"", b"\xff" * 64)]


def test_a_claim_is_one_entry_for_each_group(storage: OrderedStorage):
    """A large claim has several groups of limited size."""
    ids = post(storage, 10 + 2 * layout.GROUP)
    assert claim(storage, 10) == ids[:10]
    assert groups(storage) == [10]
    assert claim(storage, 2 * layout.GROUP, "a.b") == ids[10:]
    assert groups(storage) == [10, layout.GROUP, layout.GROUP]
    assert held(storage) == ids[:10]
    assert held(storage, "a.b") == ids[10:]


def test_a_message_that_leaves_a_claim_leaves_its_group(storage: OrderedStorage):
    """A message that is deleted, moved, released or claimed again leaves its group; empty groups are removed."""
    ids = post(storage, 9)
    claim(storage, 9)
    storage.messages.delete(JOBS, ids[:1], NOW, claims=["a.a"])
    assert (groups(storage), held(storage)) == ([8], ids[1:])
    storage.messages.delete(JOBS, ids[1:2], NOW)
    storage.claims.settle(JOBS, "a.a", Settlement(delete=[ids[2]], release=[Release(ids[3], None)]), NOW)
    assert (groups(storage), held(storage)) == ([5], ids[4:])
    assert claim(storage, 3, "a.b", NOW + 61) == ids[3:6]
    assert sorted(groups(storage)) == [3, 3]
    assert [message.id for message in storage.messages.pop(JOBS, 9, NOW + 61)] == ids[6:]
    assert groups(storage) == [3]
    storage.claims.settle(JOBS, "a.b", Settlement(rest=True), NOW + 61)
    assert groups(storage) == []


def test_a_renewed_claim_is_listed_with_its_new_end(storage: OrderedStorage):
    """The group is replaced as a whole; a renewal that does not change the end keeps it."""
    ids = post(storage, 5)
    claim(storage, 5)
    for end, ttl in ((60, 60), (600, 600)):
        storage.claims.renew(JOBS, Lease("a.a", ttl, 0), NOW)
        assert groups(storage) == [5]
        assert held(storage, now=NOW + end - 1) == ids
        assert held(storage, now=NOW + end) == []


def test_a_new_claim_of_a_name_has_no_messages_of_the_expired_one(storage: OrderedStorage):
    """Messages of the expired claim stay in their group of the same name until they are claimed again."""
    ids = post(storage, 6)
    assert claim(storage, 4) == ids[:4]
    assert claim(storage, 2, now=NOW + 61) == ids[4:]
    assert held(storage, now=NOW + 61) == ids[4:]
    assert sorted(groups(storage)) == [2, 4]
    assert storage.queues.stats(JOBS, NOW + 61).claimed == 2
    [(_, depth)] = storage.depths(NOW + 61, 10, 100)
    assert (depth.claimed, depth.ready) == (2, 4)


def test_expired_messages_leave_their_group(storage: OrderedStorage):
    post(storage, 3, ttl=100)
    claim(storage, 3)
    assert storage.maintain(NOW + 101) == 3
    assert groups(storage) == []


def test_a_former_queue_leaves_no_group(storage: OrderedStorage):
    """Groups that some messages had already left are removed too."""
    ids = post(storage, 5)
    claim(storage, 4)
    storage.messages.delete(JOBS, ids[:1], NOW)
    storage.queues.purge(JOBS)
    storage.maintain(NOW)
    assert groups(storage) == []


def test_depths_count_the_claimed_up_to_their_bound(storage: OrderedStorage):
    """The limit applies within a group too."""
    post(storage, 20)
    claim(storage, 8)
    claim(storage, 5, "a.b")
    counted = [storage.depths(NOW, 10, most)[0][1].claimed for most in (3, 8, 10, 13, 14)]
    assert counted == [3, 8, 10, 13, 13]


def test_groups_go_on_after_a_start(tmp_path: Path):
    """No group number is used twice, so that groups are not mixed."""
    with closing(opened(tmp_path)) as storage:
        ids = post(storage, 6)
        claim(storage, 2)
    with closing(opened(tmp_path)) as storage:
        assert claim(storage, 2, now=NOW + 61) == ids[2:4]
        assert groups(storage) == [2, 2]
        assert held(storage, now=NOW + 61) == ids[2:4]


def test_an_unreadable_group_does_not_block_consumers(tmp_path: Path):
    """The group's messages can be deleted, and are available once the claim has expired."""
    with closing(opened(tmp_path)) as storage:
        ids = post(storage, 8)
        claim(storage, 6)
    flip(table_of(flushed(tmp_path / "store"), "claims"), 0.01)
    with closing(opened(tmp_path)) as storage:
        storage.messages.delete(JOBS, ids[:2], NOW)
        assert claim(storage, 2, "a.b", NOW + 61) == ids[6:]
        assert [message.id for message in storage.messages.pop(JOBS, 2, NOW + 61)] == ids[2:4]
        assert storage.maintain(NOW + 3601) == 4


@pytest.mark.parametrize("wrong", ["one less", "one more", "another end"])
def test_a_check_finds_a_group_that_contradicts_its_records(tmp_path: Path, wrong: str):
    """The check finds a wrong group and a wrong record."""
    with closing(opened(tmp_path)) as storage:
        post(storage, 4)
        claim(storage, 3)
    with closing(Store(tmp_path / "store", layout.FAMILIES, "never", 0)) as store:
        [(key, value)] = store.scan("claims", b"", b"\xff" * 64)
        ends, sequences = layout.decode_group(value)
        planted = {
            "one less": (ends, sequences[1:]),
            "one more": (ends, [*sequences, 4]),
            "another end": (ends + 1, sequences),
        }
        store.write([("claims", key, layout.encode_group(*planted[wrong]))])
        assert Integrity(store, layout.ms(NOW)).report().contradictions > 0


def test_messages_held_until_another_end_have_their_own_group(storage: OrderedStorage):
    """Messages with the same end share a group; a message that is handled twice is in the group of its last end."""
    post(storage, 6)
    ids = claim(storage, 6)
    wanted = [*((id, 60) for id in ids[:3]), (ids[0], 30), (ids[3], 0), (ids[4], None), (ids[3], None)]
    handles = [MessageHandle(id, "a.a", 1, hold) for id, hold in wanted]
    assert storage.claims.handle(JOBS, handles[:3], NOW) == [HandleOutcome.DONE] * 3
    assert groups(storage) == [6]  # the end has not changed
    assert storage.claims.handle(JOBS, handles[3:6], NOW + 1) == [HandleOutcome.DONE] * 3
    assert sorted(groups(storage)) == [1, 1, 3]
    assert held(storage, now=NOW + 1) == [ids[at] for at in (0, 1, 2, 5)]
    assert storage.claims.handle(JOBS, handles[6:], NOW + 1) == [HandleOutcome.EXPIRED]
    assert storage.claims.handle(JOBS, handles[6:], NOW + 1, accepts_expired=True) == [HandleOutcome.DONE]
    assert sorted(groups(storage)) == [1, 3]
    assert claim(storage, 6, "b.b", NOW + 60) == [ids[0], ids[1], ids[2], ids[5]]
    assert groups(storage) == [4]


def test_messages_that_expire_before_their_hold_have_their_own_group(storage: OrderedStorage):
    """The index then shows by itself which messages a claim holds."""
    short, long = post(storage, 2, ttl=70), post(storage, 2)
    claim(storage, 4)
    assert (
        storage.claims.handle(JOBS, [MessageHandle(id, "a.a", 1, 600) for id in short + long], NOW)
        == [HandleOutcome.DONE] * 4
    )
    assert groups(storage) == [2, 2]
    with storage._handle as (store, registry), registry.locked(JOBS) as (state,):
        assert len(find_sequences(store, state, "a.a", layout.ms(NOW + 69))) == 4
        assert len(find_sequences(store, state, "a.a", layout.ms(NOW + 70))) == 2
