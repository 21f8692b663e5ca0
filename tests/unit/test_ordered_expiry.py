# SPDX-License-Identifier: Apache-2.0
"""Space that the embedded store reclaims by reading and by sweeping, and claims while expired messages are kept."""

import time
from collections.abc import Iterator

import pytest

from tests.servers import wait_for
from zq.conformance.builders import configure
from zq.model import ClaimRequest, Draft, IdempotencyKey, Lease, ListFilter, QueueRef, new_ids
from zq.model.expiry import Expiry, Steps
from zq.storage.ordered import expiry, layout, ready
from zq.storage.ordered.registry import ReadyCursor
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect

NOW = 1_700_000_000.0
JOBS = QueueRef("acme", "jobs")
OFF = Expiry(sweep=False, delete_on_read=False, compaction_filter=False)
BY_READING = Expiry(sweep=False, compaction_filter=False)


@pytest.fixture
def storage(tmp_path) -> Iterator[OrderedStorage]:
    opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0, expiry=BY_READING)
    yield opened
    opened.close()


def post(storage: OrderedStorage, count: int, ttl: int = 60, at: float = NOW) -> list[str]:
    ids = new_ids(count, at)
    storage.messages.post(JOBS, [Draft(id, b"1", ttl, 0, "alice") for id in ids], at)
    return ids


def stored(storage: OrderedStorage, family: str = "messages") -> int:
    with storage._handle as (store, _):
        return len(list(store.scan(family, b"", b"\xff" * 64)))


def figure(storage: OrderedStorage, name: str, label: str = "") -> float:
    [value] = [
        m.value for m in storage.measures(NOW + 60) if m.name == name and label in ("", *(v for _, v in m.labels))
    ]
    return value


def await_stored(storage: OrderedStorage, count: int) -> None:
    deadline = time.monotonic() + 20
    while stored(storage) != count:
        assert time.monotonic() < deadline, stored(storage)
        time.sleep(0.005)


READS = {
    "get": lambda storage, ids: storage.messages.get(JOBS, ids, NOW + 60),
    "listing": lambda storage, _: storage.messages.list(JOBS, 0, 10, ListFilter(), NOW + 60),
    "claim": lambda storage, _: storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60), 20), NOW + 60).claim,
    "pop": lambda storage, _: storage.messages.pop(JOBS, 20, NOW + 60),
    "history": lambda storage, _: storage.history.list(JOBS, 0, 10, None, NOW + 60),
    "delete": lambda storage, ids: storage.messages.delete(JOBS, ids, NOW + 60),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_expired_messages_that_a_reader_finds_are_removed_in_the_background(storage: OrderedStorage, read):
    """The messages are removed soon after the read, with their index entries, and counted as removed by reading."""
    ids = post(storage, 300)
    read(storage, ids)
    await_stored(storage, 0)
    assert all(stored(storage, family) == 0 for family in ("bodies", "available", "expiry", "ids"))
    # Removals are counted after the messages are removed.
    wait_for(lambda: figure(storage, "expired_removed_total", "read") == 300, 60, "all are counted")
    assert storage.maintain(NOW + 60) == 0


def test_a_reader_that_finds_no_expired_message_removes_nothing(storage: OrderedStorage, monkeypatch):
    """Claims, pops and listings hand no unexpired message to the remover."""
    ids = post(storage, 300, ttl=600)
    monkeypatch.setattr(storage._handle.context.lazy_queue, "offer", pytest.fail)
    for read in READS.values():
        read(storage, ids)


def test_off_nothing_is_removed_by_reading(storage: OrderedStorage):
    configure(storage, OFF)
    ids = post(storage, 300)
    for read in READS.values():
        read(storage, ids)
    assert len(storage._handle.context.lazy_queue) == 0
    assert stored(storage) == 300


def test_removals_beyond_the_queue_size_are_dropped_and_counted(storage: OrderedStorage):
    """A sweep removes the dropped messages later."""
    configure(storage, Expiry(delete_queue_size=5, compaction_filter=False))
    ids = post(storage, 100)
    with storage._handle as (_, registry), registry.locked(JOBS):  # the remover has to wait for the queue's lock
        storage.messages.get(JOBS, ids, NOW + 60)
    assert figure(storage, "delete_queue_capacity") == 5
    dropped = figure(storage, "delete_queue_dropped_total")
    assert 0 < dropped <= 95
    await_stored(storage, int(dropped))
    assert storage.maintain(NOW + 60) == dropped
    assert figure(storage, "expired_removed_total", "sweep") == dropped


def test_a_message_prolonged_before_its_removal_stays(storage: OrderedStorage):
    """The remover checks the expiry again, by the time at which the reader saw the message as expired."""
    [message] = post(storage, 1)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 600, 60), 1), NOW)
    lazy_queue = storage._handle.context.lazy_queue
    with storage._handle as (store, _):
        [(key, _)] = store.scan("messages", b"", b"\xff" * 64)
    others = post(storage, 1)
    lazy_queue.offer([key], layout.ms(NOW + 60))
    storage.messages.get(JOBS, others, NOW + 60)
    await_stored(storage, 1)
    assert [m.id for m in storage.messages.get(JOBS, [message], NOW + 60)] == [message]


def test_a_store_closes_with_a_full_queue_of_removals(tmp_path):
    """Closing discards the remaining removals; a later sweep does them."""
    opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    ids = post(opened, 1000)
    opened.messages.get(JOBS, ids, NOW + 60)
    opened.close()
    again = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    left = stored(again)
    assert again.maintain(NOW + 60) == left
    again.close()


def test_a_claim_writes_nothing_for_expired_messages(storage: OrderedStorage, monkeypatch: pytest.MonkeyPatch):
    """A claim skips thousands of expired messages, and the next claim does not read them again."""
    configure(storage, OFF)
    post(storage, 4000)
    [living] = post(storage, 1, ttl=600)
    with storage._handle as (store, registry):
        written: list[int] = []
        write = store.write
        monkeypatch.setattr(store, "write", lambda writes: (written.append(len(writes)), write(writes)))
        claim = storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60), 1), NOW + 60).claim
        assert claim is not None
        assert [m.id for m in claim.messages] == [living]
        assert sum(written) < 10
        with registry.locked(JOBS) as (state,):
            came = list(state.ready_cursor.entries(store, layout.pair.pack(state.number, layout.ms(NOW + 61))))
        assert came == []


@pytest.mark.parametrize("restarted", [False, True])
def test_claims_skip_any_number_of_expired_messages(tmp_path, restarted: bool):
    """Each claim skips a bounded number of messages.

    A message that is released at the front is found at once, and the messages after it with the next claim.
    """
    opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0, expiry=OFF)
    first, *_ = post(opened, 1, ttl=600)
    for _ in range(12):
        post(opened, 1000)
    behind = post(opened, 3, ttl=600)
    if restarted:
        opened.close()
        opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0, expiry=OFF)

    def claim(name: str, limit: int) -> list[str]:
        made = opened.claims.create(JOBS, ClaimRequest(Lease(name, 100, 0), limit), NOW + 60).claim
        return [] if made is None else [m.id for m in made.messages]

    assert claim("a.a", 1) == [first]
    waited = 0
    while not (found := claim("a.b", 2)) and waited < 10:
        waited += 1
    assert found == behind[:2]
    assert waited <= 3
    opened.claims.release(JOBS, "a.a", NOW + 60)
    assert opened.queues.ready(JOBS, 10, NOW + 60).count == 2
    assert claim("a.c", 10) == [first, behind[2]]
    assert stored(opened) == 12_004
    opened.close()


def test_a_ready_cursor_shows_every_entry_added_since(storage: OrderedStorage):
    """The entries are inserted before, within and after the range that the cursor has passed."""
    with storage._handle as (store, _):
        keys = [b"key%02d" % number for number in range(20)]
        store.write([("available", key, b"") for key in keys])
        ready_cursor = ReadyCursor(b"", b"", b"").move_to(keys[15] + b"\0")
        ready_cursor = ready_cursor.extend([keys[4], keys[9], keys[17]])
        assert [key for key, _ in ready_cursor.entries(store, b"z")] == [*keys[4:10], *keys[16:]]
        again = ready_cursor.move_to(keys[9] + b"\0").extend([keys[12]])
        assert [key for key, _ in again.entries(store, b"z")] == [keys[12], *keys[16:]]
        ready_cursor = ready_cursor.move_to(keys[6] + b"\0").extend([keys[2]])
        assert [key for key, _ in ready_cursor.entries(store, b"z")] == [*keys[2:10], *keys[16:]]
        assert [key for key, _ in ready_cursor.move_to(keys[16] + b"\0").entries(store, b"z")] == keys[17:]
        assert [key for key, _ in ready_cursor.entries(store, keys[3])] == [keys[2]]


def test_a_large_deleted_queue_is_removed_in_steps_without_rescanning(storage: OrderedStorage, monkeypatch):
    """Each step begins where the last one ended, however little a step may remove."""
    post(storage, 1000)
    storage.messages.pop(JOBS, 500, NOW, history=3600)
    storage.queues.delete(JOBS)
    assert storage.maintain(NOW, None, Steps(7, 700)) == 0
    assert stored(storage) + stored(storage, "history") == 300
    monkeypatch.setattr(expiry, "MAX_SLICE_REMOVALS", 1)
    storage.maintain(NOW, None, Steps(7))
    assert stored(storage) + stored(storage, "history") == 0
    with storage._handle as (store, _):
        assert list(store.scan("default", layout.PENDING_QUEUE, layout.prefix_end(layout.PENDING_NUMBER))) == []


def test_a_deleted_queue_is_cleared_despite_a_damaged_idempotency_result(storage: OrderedStorage):
    """Only a repeated request reads the result; the removal needs only its key."""
    draft = Draft(new_ids(1, NOW)[0], b"1", 600, 0, "alice")
    storage.messages.post(JOBS, [draft], NOW, idempotency_key=IdempotencyKey("once", b"digest", 3600))
    with storage._handle as (store, _):
        [(key, _)] = store.scan("keys", b"", b"\xff" * 64)
        store.write([("keys", key, b"\xc1")])
    storage.queues.delete(JOBS)
    storage.maintain(NOW)
    assert stored(storage, "keys") + stored(storage, "due") == 0


def test_rounds_that_end_at_their_bound_remove_of_every_kind_in_turn(storage: OrderedStorage):
    """A backlog of expired messages delays neither the remains of a purge nor expired history entries."""
    configure(storage, Expiry(delete_on_read=False))
    storage.messages.post(JOBS, [Draft(id, b"1", 600, 0, "alice") for id in new_ids(20, NOW)], NOW)
    storage.messages.pop(JOBS, 20, NOW, 60)
    other = QueueRef("acme", "purged")
    storage.messages.post(other, [Draft(id, b"1", 600, 0, "alice") for id in new_ids(30, NOW)], NOW)
    storage.queues.purge(other)
    post(storage, 1000)
    for _ in range(4):
        storage.maintain(NOW + 61, None, Steps(50, 100))
    assert stored(storage, "history") == 0
    assert 0 < stored(storage) <= 1000
    with storage._handle as (store, _):
        assert list(store.scan("default", layout.PENDING_QUEUE, layout.prefix_end(layout.PENDING_QUEUE))) == []


def test_an_empty_queue_is_not_rescanned_after_a_sweep(storage: OrderedStorage):
    """From the second empty claim on, entries before the current time are skipped unless an entry was added there."""
    configure(storage, Expiry(delete_on_read=False))
    post(storage, 3000)
    storage.maintain(NOW + 61, None, Steps(1000, 10_000))
    lease = Lease("a.a", 60, 60)
    assert storage.claims.create(JOBS, ClaimRequest(lease, 1), NOW + 61).claim is None
    with storage._handle as (_, registry):
        state = registry.find(JOBS)
        assert state is not None
        assert state.ready_cursor.head == layout.pair.pack(state.number, layout.ms(NOW + 61) + ready.HORIZON)
        assert state.tally.fresh_head == state.tally.fresh_tail
    late, *_ = post(storage, 1, at=NOW + 60.5)
    claim = storage.claims.create(JOBS, ClaimRequest(lease, 1), NOW + 61).claim
    assert claim is not None
    assert [message.id for message in claim.messages] == [late]
