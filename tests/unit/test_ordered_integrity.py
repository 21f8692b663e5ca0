# SPDX-License-Identifier: Apache-2.0
"""The integrity check of a whole embedded store: it reports each planted fault, and nothing on a sound store."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from zq.core.redelivery import DeadLetters, Redelivery, claim
from zq.errors import StartRefused
from zq.model import (
    Bounds,
    ClaimRef,
    ClaimRequest,
    Commit,
    Draft,
    Grouping,
    IdempotencyKey,
    Lease,
    ListFilter,
    Move,
    QueueRef,
    new_ids,
)
from zq.model.documents import DocumentRef
from zq.model.expiry import Expiry
from zq.model.stats import Report
from zq.model.topics import Entry, Retention, TopicRef
from zq.storage import check
from zq.storage.ordered import layout
from zq.storage.ordered.integrity import Integrity
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store

NOW = time.time()
DAY = 86_400
JOBS, DEAD, DONE, LATER, GONE = (QueueRef("acme", name) for name in ("jobs", "dead", "done", "later", "gone"))


@pytest.fixture
def uri(tmp_path) -> str:
    return f"rocksdb://{tmp_path}/store"


# A body that is stored in its message's record, and another that is stored apart.
BODIES = (b'"a body"', b'"%s"' % (layout.SHORT * b"x"))


def drafts(count: int, ttl: int = DAY) -> list[Draft]:
    """Return drafts; every third one has a body that is stored apart from its record."""
    return [Draft(id, BODIES[at % 3 == 1], ttl, 0, "alice") for at, id in enumerate(new_ids(count, NOW))]


def use(storage: OrderedStorage) -> None:
    """Use each kind of record, in each state."""
    storage.messages.post(JOBS, drafts(20), NOW, idempotency_key=IdempotencyKey("post one", b"", DAY))
    storage.messages.post(JOBS, drafts(3, ttl=60), NOW)
    storage.messages.pop(JOBS, 3, NOW, history=DAY)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60), 2), NOW)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.b", 2 * DAY, 60), 2), NOW)
    storage.claims.create(
        JOBS, ClaimRequest(Lease("a.c", 1, 0), 2, redelivery_delays=Redelivery(30, cap=30).delays()), NOW
    )
    storage.claims.create(JOBS, ClaimRequest(Lease("a.d", 1, 0), 2), NOW)
    claim(storage, JOBS, ClaimRequest(Lease("a.e", 60, 0), 2, max_claims=1), DeadLetters(DEAD, 1, DAY, DAY), NOW + 5)
    storage.claims.release(JOBS, "a.b", NOW + 5, delay=7)
    moved = storage.messages.list(JOBS, 0, 100, ListFilter(claimed=True, delayed=True), NOW).items[-5].id
    storage.messages.move(JOBS, [Move(moved, "done", DAY)], NOW + 5)
    storage.transactions.stage("acme", "now", DONE, drafts(2), NOW, DAY, 1000)
    storage.transactions.stage("acme", "open", LATER, drafts(2), NOW, DAY, 1000, IdempotencyKey("stage one", b"", DAY))
    storage.transactions.stage("acme", "dropped", LATER, drafts(2), NOW, DAY, 1000)
    storage.transactions.drop_stage("acme", "dropped")
    storage.transactions.advance_fence("acme", "fence", NOW)
    storage.transactions.commit(Commit("acme", "producer", 1, ["now"], [ClaimRef(JOBS, "a.a", DAY)], DAY), NOW + 5)
    for queue in (GONE, DONE):
        storage.messages.post(queue, drafts(5), NOW, idempotency_key=IdempotencyKey("post one", b"", DAY))
        storage.messages.pop(queue, 2, NOW, history=DAY)
    storage.queues.delete(GONE)
    storage.queues.purge(DONE)
    storage.messages.post(DONE, drafts(1), NOW)
    use_topics(storage)


def use_groups(storage: OrderedStorage) -> None:
    """Post to queues of both group orders: heads are ready, claimed, delayed and expired; some queues are purged."""
    for kind in (Grouping.ORDERED, Grouping.FAIR):
        for queue in (QueueRef("acme", f"{kind}"), QueueRef("acme", f"{kind} and purged")):
            storage.queues.create(queue, b"{}", kind)
            posted = [structs.replace(draft, group=f"g{at % 4}") for at, draft in enumerate(drafts(12))]
            storage.messages.post(queue, posted, NOW)
            storage.messages.post(queue, [structs.replace(draft, group="e") for draft in drafts(2, ttl=60)], NOW)
            late = [structs.replace(draft, group="late", delay=60) for draft in drafts(1)]
            storage.messages.post(queue, late, NOW)
            storage.claims.create(queue, ClaimRequest(Lease("a.a", 60, 60), 2), NOW)
            storage.messages.pop(queue, 2, NOW)
        storage.queues.purge(queue)


def use_topics(storage: OrderedStorage) -> None:
    """Publish batches that stay, are trimmed, are purged or will expire, and put documents with and without expiry."""
    for number in range(12):
        once = IdempotencyKey(f"publish {number}", b"", DAY)
        storage.topics.publish(TopicRef("acme", f"t{number % 3}"), entries(3), NOW, Retention(1000, 24), once)
    storage.topics.publish(TopicRef("acme", "t0"), entries(1, ttl=60), NOW, Retention(1000, 24))
    storage.topics.publish(TopicRef("rival", "t0"), entries(2), NOW, Retention(1000, 24))
    storage.topics.purge(TopicRef("acme", "t1"))
    for name, expires in (("stays", None), ("goes", NOW + 60)):
        storage.documents.put(DocumentRef("acme", "kind", name), b"{}", NOW, expires=expires)


def entries(count: int, ttl: int = DAY) -> list[Entry]:
    return [Entry(b'"a body"', ttl) for _ in range(count)]


def used(uri: str, sweep_at: float = 0.0) -> Report:
    storage = connect(uri, sync="never", max_clock_jump=0, expiry=Expiry(delete_on_read=False))
    use(storage)
    use_groups(storage)
    if sweep_at:
        storage.maintain(sweep_at)
    storage.close()
    return told(uri)


def told(uri: str) -> Report:
    report = check(uri)
    assert report is not None
    return report


def test_a_store_that_was_used_for_everything_agrees_with_itself(uri: str):
    """Each kind of record in each family is checked; unreachable records are counted separately."""
    report = used(uri)
    assert report.examples == []
    assert report.contradictions == 0
    assert set(report.counted) >= set(layout.FAMILIES) - {"default", "fences", "numbers"}
    assert report.counted["messages of deleted queues"] == 11 + 2 * 13
    assert report.counted["history of deleted owners"] == 2
    assert report.counted["topics of trimmed batches"] == 4


@pytest.mark.parametrize("later", [0, 61, 3 * DAY])
def test_sweeping_leaves_a_store_that_agrees_with_itself(uri: str, later: float):
    """The sweep removes only unreachable records, also expired ones, or everything."""
    report = used(uri, NOW + later)
    assert report.examples == []
    assert not any("former" in kind or "trimmed" in kind for kind in report.counted)


def test_a_body_dropped_by_the_filter_is_not_a_contradiction(uri: str):
    """The body's message has expired.

    Missing bodies of other messages are reported. The filter never drops a body that is stored in the record.
    """
    storage = connect(uri, sync="never", max_clock_jump=0, expiry=Expiry(compaction_filter_grace=0))
    storage.messages.post(JOBS, drafts(12, ttl=60), NOW - 1000)
    with storage._handle as (store, _):
        store.compact("bodies")
    storage.close()
    report = told(uri)
    assert report.contradictions == 0
    assert report.counted["expired messages whose bodies a compaction dropped"] == 4


def _first(store: Store, family: str) -> tuple[bytes, bytes]:
    return next(store.scan(family, b"", b"\xff" * 64))


LOST_UNNOTICED = ("default", "fences", "floors", "hidden", "producers")
"""Families whose first entry, or any entry, may be missing without a contradiction to other families."""
PLANTED = [
    *(f"lose {name}" for name in layout.FAMILIES if name not in LOST_UNNOTICED),
    *(
        f"stray {name}"
        for name in ("bodies", "available", "expiry", "ids", "claims", "sequences", "endings", "due", "lines")
    ),
    *(f"stray {name}" for name in ("messages", "history", "keys", "staged", "numbers", "tallies", "producers")),
    *(f"{how} {name}" for how in ("stray", "twist") for name in ("batches", "topics")),
    *(f"twist {name}" for name in ("bodies", "available", "ids", "claims", "sequences", "due", "numbers", "tallies")),
    "twist lines",
    "twist messages",
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield the open, used store without unreachable records, which is sound before and after each test."""
    path = tmp_path_factory.mktemp("sound") / "store"
    storage = connect(f"rocksdb://{path}", sync="never", max_clock_jump=0, expiry=Expiry(delete_on_read=False))
    use(storage)
    use_groups(storage)
    storage.maintain(NOW)
    storage.close()
    store = Store(path, layout.FAMILIES, "never", 0)
    yield store
    store.close()


@pytest.mark.parametrize("damage", PLANTED)
def test_each_planted_fault_is_found(sound: Store, damage: str):
    """An entry is lost, added or changed in each family in which the check can notice it."""
    how, family = damage.split()
    key, value = _first(sound, family)
    stray = key[:-1] + bytes([key[-1] ^ 0x55])
    planted = {
        "lose": (family, key, None),
        "stray": (family, stray, value),
        "twist": (family, key, _twisted(family, value)),
    }
    assert _report(sound).contradictions == 0
    sound.write([planted[how]])
    report = _report(sound)
    sound.write([(family, stray, None), (family, key, value)])
    assert report.contradictions > 0
    assert len(report.examples) == min(report.contradictions, 20)


def _report(store: Store) -> Report:
    return Integrity(store, layout.ms(NOW)).report()


def _twisted(family: str, value: bytes) -> bytes:
    if family == "tallies":
        tally = layout.decode_tally(value)
        return layout.encode(structs.replace(tally, count=tally.count + 1))
    if family == "messages":
        record = layout.decode_record(value)
        return layout.encode(structs.replace(record, size=record.size + 1))
    if family == "bodies":
        return b"\0" * len(value)
    if family == "batches":  # its last byte, the number of deliveries, may have any value
        return value[:-1]
    return value[:-1] + bytes([value[-1] ^ 1]) if value else b"?"


def test_a_message_without_a_queue_is_found(uri: str):
    """The message and its index entries can never be removed."""
    storage = connect(uri, sync="never", max_clock_jump=0)
    storage.messages.post(JOBS, drafts(1), NOW)
    storage.close()
    store = Store(Path(uri.removeprefix("rocksdb://")), layout.FAMILIES, "never", 0)
    (queue, _), (number, _) = _first(store, "queues"), _first(store, "numbers")
    store.write([("queues", queue, None), ("numbers", number, None), ("tallies", number, None)])
    store.close()
    assert any("does not belong to a queue" in example for example in told(uri).examples)


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_a_store_that_is_not_there_is_refused_and_not_made(uri: str, made: bool, tmp_path):
    """A check creates no store."""
    if made:
        (tmp_path / "store").mkdir()
    with pytest.raises(StartRefused, match="no store"):
        check(uri)
    assert [path.name for path in tmp_path.rglob("*")] == ["store"] * made


def test_a_store_in_use_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch):
    """The error message is that of a second server."""
    monkeypatch.setattr("zq.storage.rocksdb.files.LOCK_PATIENCE", 0.0)
    storage = connect(uri)
    with pytest.raises(StartRefused, match="in use by another process"):
        check(uri)
    storage.close()


def test_an_open_commit_is_sound_and_its_missing_messages_are_found(uri: str):
    """A stage of the commit is not reported as stray, in any slice; a missing message of the stage is reported."""
    with closing(connect(uri)) as storage:
        storage.messages.post(JOBS, drafts(4), NOW)
        storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 600, 60), 2), NOW)
        storage.transactions.stage("acme", "large", DONE, drafts(5), NOW, DAY, 10_000)
        order = Commit("acme", "producer", 1, ["large"], [ClaimRef(JOBS, "a.a")], DAY)
        assert storage.transactions.commit(order, NOW, Bounds(1, 100)).open
    for _ in range(2):
        report = check(uri)
        assert report is not None
        assert report.contradictions == 0, report.examples
        with closing(connect(uri)) as storage:
            assert storage.transactions.continue_commit("acme", "producer", 2, NOW)
    store = Store(Path(uri.removeprefix("rocksdb://")), layout.FAMILIES, "never", 0)
    [*_, (key, _)] = store.scan("staged", b"", b"\xff" * 16)
    store.write([("staged", key, None)])
    store.close()
    report = check(uri)
    assert report is not None
    assert report.contradictions == 1
    assert "messages to publish" in report.examples[0]
