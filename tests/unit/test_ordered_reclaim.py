# SPDX-License-Identifier: Apache-2.0
"""Disk space of the embedded store: nothing remains of expired messages, dropped stages and deleted queues."""

import threading
from collections.abc import Iterator

import pytest
from msgspec import structs

from zq.errors import Repeated
from zq.model import (
    ClaimRef,
    ClaimRequest,
    Commit,
    Draft,
    Grouping,
    IdempotencyKey,
    Lease,
    ListFilter,
    QueueRef,
    Span,
    new_ids,
)
from zq.model.documents import DocumentRef
from zq.model.topics import Entry, Retention, TopicRef
from zq.storage.ordered import layout, stages
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect

NOW = 1_700_000_000.0
JOBS, DONE, LATER, STEPS = (QueueRef("acme", name) for name in ("jobs", "done", "later", "steps"))
KEPT = 600
LONG_BODY = b"1" * (layout.SHORT + 1)
KEEP = Retention(1 << 20, 1000)
FOR_EVER = {"queues", "numbers", "tallies", "fences", "logs"}
"""Families whose entries stay as long as their queue or fence, or permanently."""


@pytest.fixture
def storage(tmp_path) -> Iterator[OrderedStorage]:
    opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    yield opened
    opened.close()


def drafts(count: int) -> list[Draft]:
    """Return drafts; the last one's body is stored apart from its record."""
    *others, last = new_ids(count, NOW)
    return [*(Draft(id, b"1", 3600, 0, "alice") for id in others), Draft(last, LONG_BODY, 3600, 0, "alice")]


def entries(storage: OrderedStorage) -> dict[str, int]:
    """Return the number of entries in each family that has any."""
    with storage._handle as (store, _):
        counted = {name: len(list(store.scan(name, b"", b"\xff" * 64))) for name in layout.FAMILIES[1:]}
        counted["dropped"] = len(
            list(store.scan("default", layout.PENDING_NUMBER, layout.prefix_end(layout.PENDING_NUMBER)))
        )
    return {name: count for name, count in counted.items() if count}


def fill(storage: OrderedStorage) -> None:
    """Store messages of each kind, history entries, idempotency keys, stages, a producer and a fence."""
    storage.messages.post(JOBS, drafts(9), NOW, idempotency_key=IdempotencyKey("post one", b"", KEPT))
    storage.messages.pop(JOBS, 3, NOW, history=KEPT)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.b", 60, 60), 3), NOW)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.c", 1, 60), 1), NOW)
    storage.transactions.stage("acme", "now", DONE, drafts(2), NOW, KEPT, 1000)
    storage.transactions.stage(
        "acme", "never", LATER, drafts(2), NOW, KEPT, 1000, IdempotencyKey("stage one", b"", KEPT)
    )
    storage.queues.create(STEPS, b"{}", Grouping.ORDERED)
    grouped = [structs.replace(draft, group=f"g{at % 2}") for at, draft in enumerate(drafts(5))]
    storage.messages.post(STEPS, grouped, NOW)
    storage.claims.create(STEPS, ClaimRequest(Lease("a.d", 60, 60), 2), NOW)
    storage.transactions.advance_fence("acme", "fence", NOW)
    storage.transactions.commit(Commit("acme", "producer", 1, ["now"], [ClaimRef(JOBS, "a.b", KEPT)], KEPT), NOW)


def fill_topics(storage: OrderedStorage) -> None:
    """Publish to topics, purge one, and put a document that expires."""
    for name in ("a", "b", "a"):
        once = IdempotencyKey(f"publish {name}", b"", KEPT) if name == "b" else None
        storage.topics.publish(TopicRef("acme", name), [Entry(b"1", KEPT)], NOW, KEEP, once)
    storage.topics.purge(TopicRef("acme", "a"))
    storage.documents.put(DocumentRef("acme", "kind", "name"), b"1", NOW, expires=NOW + KEPT)


def test_what_expired_leaves_nothing(storage: OrderedStorage):
    """A sweep after the last expiry removes all entries except those of queues and fences."""
    fill(storage)
    fill_topics(storage)
    assert set(entries(storage)) == {*layout.FAMILIES[1:], "dropped"}
    storage.maintain(NOW + 3600)
    assert set(entries(storage)) == FOR_EVER


def test_a_deleted_queue_leaves_nothing(storage: OrderedStorage):
    """The sweep removes messages, history entries, idempotency keys and their index entries before they expire."""
    fill(storage)
    for queue in (JOBS, DONE, LATER, STEPS):
        storage.queues.delete(queue)
    storage.transactions.drop_stage("acme", "never")
    storage.maintain(NOW)
    assert entries(storage) == {"fences": 1, "producers": 1, "due": 1}


def test_a_key_of_a_queue_that_comes_later_stays_through_a_restart(storage: OrderedStorage, tmp_path):
    """The hidden key is found after a restart, and becomes the queue's when the queue is created."""
    once = IdempotencyKey("stage one", b"", KEPT)
    storage.transactions.stage("acme", "s", LATER, drafts(1), NOW, KEPT, 1000, once)
    storage.close()
    again = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    for hidden in (True, False):
        assert ("hidden" in entries(again)) == hidden
        with pytest.raises(Repeated):
            again.transactions.stage("acme", "s", LATER, drafts(1), NOW, KEPT, 1000, once)
        assert again.queues.create(LATER, b"{}") == hidden
    again.close()


def test_a_large_history_goes_in_several_batches(storage: OrderedStorage):
    """The deleted queue has more history entries than one scan reads; no entry refers to its number afterwards."""
    for _ in range(12):
        storage.messages.post(JOBS, drafts(1000), NOW)
        storage.messages.pop(JOBS, 1000, NOW, history=KEPT)
    storage.queues.delete(JOBS)
    storage.maintain(NOW)
    assert entries(storage) == {}


def test_a_purged_queue_keeps_its_history_through_a_restart(storage: OrderedStorage, tmp_path):
    """The purged queue gets a new number, but its history keeps its own, and positions continue to rise."""
    storage.messages.post(JOBS, drafts(2), NOW)
    storage.messages.pop(JOBS, 1, NOW, history=KEPT)
    storage.queues.purge(JOBS)
    storage.maintain(NOW)
    storage.close()
    again = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    again.messages.post(JOBS, drafts(1), NOW)
    again.messages.pop(JOBS, 1, NOW + 5, history=KEPT)
    first, second = again.history.list(JOBS, 0, 10, Span(0, NOW + 60), NOW + 5).items
    assert first.position < second.position
    assert again.history.list(JOBS, 0, 10, Span(NOW + 1, NOW + 60), NOW + 5).items == [second]
    again.close()


def test_dropping_a_stage_forgets_the_expired_one_of_its_name_too(storage: OrderedStorage):
    """Two stages of one name may be stored until a sweep; a drop removes both."""
    for moment in (NOW, NOW + 2 * KEPT):
        storage.transactions.stage("acme", "again", JOBS, drafts(1), moment, KEPT, 1000)
    assert entries(storage)["stages"] == 2
    storage.transactions.drop_stage("acme", "again")
    storage.maintain(NOW)
    assert entries(storage) == {}


def test_the_sweeper_leaves_a_stage_that_a_commit_is_reading(storage: OrderedStorage):
    """A commit that read the stage before its expiry publishes all of it, however long that takes."""
    storage.transactions.stage("acme", "late", JOBS, drafts(3), NOW, KEPT, 1000)
    active_expiry = threading.Thread(target=storage.maintain, args=(NOW + KEPT,))
    with storage.transactions._stripes.locked(stages.stage_lock(stages.prefix("acme", "late"))):
        active_expiry.start()
        active_expiry.join(0.2)
        assert active_expiry.is_alive()
        assert entries(storage)["staged"] == 3
    active_expiry.join(30)
    assert entries(storage) == {}


def test_a_listing_of_everything_crosses_many_entries_that_have_nothing_to_show(storage: OrderedStorage):
    """The queue begins with more expired messages and history entries than a listing reads under one lock."""
    old = [Draft(id, b"1", 60, 0, "alice") for id in new_ids(700, NOW)]
    storage.messages.post(JOBS, old, NOW)
    storage.messages.pop(JOBS, 300, NOW, history=60)
    posted = drafts(600)
    storage.messages.post(JOBS, posted, NOW + 60)
    storage.messages.pop(JOBS, 300, NOW + 60, history=KEPT)
    seen: list[str] = []
    marker = 0
    while (page := storage.history.list(JOBS, marker, 7, None, NOW + 60)).next is not None:
        seen += [item.message.id for item in page.items]
        marker = int(page.next)
    assert seen == [draft.id for draft in posted]
    assert len(storage.messages.list(JOBS, 0, 1000, ListFilter(), NOW + 60).items) == 300
