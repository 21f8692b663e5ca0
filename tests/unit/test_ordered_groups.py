# SPDX-License-Identifier: Apache-2.0
"""What claims hold in the embedded store is listed in groups: one entry for messages that were claimed together."""

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
    """How many messages each entry lists."""
    with storage._handle as (store, _):
        return [len(layout.decode_group(value)[1]) for _, value in store.scan("claims", b"", b"\xff" * 64)]


def test_a_claim_is_one_entry_for_each_group(storage: OrderedStorage):
    """A large one has several, none of which is large."""
    ids = post(storage, 10 + 2 * layout.GROUP)
    assert claim(storage, 10) == ids[:10]
    assert groups(storage) == [10]
    assert claim(storage, 2 * layout.GROUP, "a.b") == ids[10:]
    assert groups(storage) == [10, layout.GROUP, layout.GROUP]
    assert held(storage) == ids[:10]
    assert held(storage, "a.b") == ids[10:]


def test_what_leaves_a_claim_is_listed_no_more(storage: OrderedStorage):
    """Deleted, popped, moved, released or taken over; with the last one the entry goes."""
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
    """Wholly, and in place of the former entry; a renewal that changes nothing leaves it."""
    ids = post(storage, 5)
    claim(storage, 5)
    for end, ttl in ((60, 60), (600, 600)):
        storage.claims.renew(JOBS, Lease("a.a", ttl, 0), NOW)
        assert groups(storage) == [5]
        assert held(storage, now=NOW + end - 1) == ids
        assert held(storage, now=NOW + end) == []


def test_a_name_that_is_claimed_anew_has_none_of_what_lapsed(storage: OrderedStorage):
    """Though that is listed under the same name until somebody takes it."""
    ids = post(storage, 6)
    assert claim(storage, 4) == ids[:4]
    assert claim(storage, 2, now=NOW + 61) == ids[4:]
    assert held(storage, now=NOW + 61) == ids[4:]
    assert sorted(groups(storage)) == [2, 4]
    assert storage.queues.stats(JOBS, NOW + 61).claimed == 2
    [(_, depth)] = storage.depths(NOW + 61, 10, 100)
    assert (depth.claimed, depth.ready) == (2, 4)


def test_expired_messages_leave_their_group(storage: OrderedStorage):
    """When they are removed."""
    post(storage, 3, ttl=100)
    claim(storage, 3)
    assert storage.maintain(NOW + 101) == 3
    assert groups(storage) == []


def test_a_former_queue_leaves_no_group(storage: OrderedStorage):
    """Of those that messages had left before, neither."""
    ids = post(storage, 5)
    claim(storage, 4)
    storage.messages.delete(JOBS, ids[:1], NOW)
    storage.queues.purge(JOBS)
    storage.maintain(NOW)
    assert groups(storage) == []


def test_depths_count_the_claimed_up_to_their_bound(storage: OrderedStorage):
    """Within a group, too."""
    post(storage, 20)
    claim(storage, 8)
    claim(storage, 5, "a.b")
    counted = [storage.depths(NOW, 10, most)[0][1].claimed for most in (3, 8, 10, 13, 14)]
    assert counted == [3, 8, 10, 13, 13]


def test_groups_go_on_after_a_start(tmp_path: Path):
    """No number is given twice, so that no group is mixed with another."""
    with closing(opened(tmp_path)) as storage:
        ids = post(storage, 6)
        claim(storage, 2)
    with closing(opened(tmp_path)) as storage:
        assert claim(storage, 2, now=NOW + 61) == ids[2:4]
        assert groups(storage) == [2, 2]
        assert held(storage, now=NOW + 61) == ids[2:4]


def test_a_group_that_cannot_be_read_holds_up_nobody(tmp_path: Path):
    """Its messages can be deleted, and once the claim has lapsed they are handed out."""
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
def test_a_check_finds_a_group_that_is_not_what_records_say(tmp_path: Path, wrong: str):
    """Whichever of the two is wrong."""
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


def test_what_is_held_until_another_end_is_in_a_group_of_its_own(storage: OrderedStorage):
    """With all that has the same end; a message that is handled twice is in the last one's."""
    post(storage, 6)
    ids = claim(storage, 6)
    wanted = [*((id, 60) for id in ids[:3]), (ids[0], 30), (ids[3], 0), (ids[4], None), (ids[3], None)]
    handles = [MessageHandle(id, "a.a", 1, hold) for id, hold in wanted]
    assert storage.claims.handle(JOBS, handles[:3], NOW) == [HandleOutcome.DONE] * 3
    assert groups(storage) == [6]  # the end is the same
    assert storage.claims.handle(JOBS, handles[3:6], NOW + 1) == [HandleOutcome.DONE] * 3
    assert sorted(groups(storage)) == [1, 1, 3]
    assert held(storage, now=NOW + 1) == [ids[at] for at in (0, 1, 2, 5)]
    assert storage.claims.handle(JOBS, handles[6:], NOW + 1) == [HandleOutcome.EXPIRED]
    assert storage.claims.handle(JOBS, handles[6:], NOW + 1, accepts_expired=True) == [HandleOutcome.DONE]
    assert sorted(groups(storage)) == [1, 3]
    assert claim(storage, 6, "b.b", NOW + 60) == [ids[0], ids[1], ids[2], ids[5]]
    assert groups(storage) == [4]


def test_what_dies_before_its_hold_ends_is_in_a_group_of_its_own(storage: OrderedStorage):
    """So that the index alone says what a claim holds."""
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
