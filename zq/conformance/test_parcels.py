# SPDX-License-Identifier: Apache-2.0
"""Parcels: a project that another store or project adopts is the same for its clients."""

from collections.abc import Iterator
from functools import partial

import pytest
from msgspec import structs

from zq.conformance.builders import Scene, drafts, make_key
from zq.conformance.test_groups import send
from zq.conformance.topic_builders import Log, entries
from zq.core.redelivery import Redelivery
from zq.errors import CommitRunning, DraftsRepeated, Fenced, Repeated
from zq.model import Draft, Grouping, new_ids
from zq.model.documents import DocumentRef, Guard
from zq.model.parcels import MessageParcel, Parcel, QueueParcel, StoredItem, facts
from zq.model.topics import Retention
from zq.storage.capabilities import MigratableStorage, ParcelController

PAGES = [1, 7, 500]


@pytest.fixture
def parcels(scene: Scene) -> ParcelController:
    storage: object = scene.storage
    if not isinstance(storage, MigratableStorage):
        pytest.skip("The driver has no parcels.")
    return storage.parcels


@pytest.fixture
def elsewhere(scene: Scene) -> Scene:
    """Return the queue of the same name in the project that adopts the parcels."""
    return scene.at(scene.queue.name, f"{scene.queue.project}.elsewhere")


def export(scene: Scene, parcels: ParcelController, limit: int = 500) -> Iterator[list[Parcel]]:
    after = ""
    while (page := parcels.export(scene.queue.project, after, limit, scene.now)).next is not None:
        assert 0 < len(page.items) <= limit
        yield page.items
        after = page.next
    assert page.items == []


def contents(scene: Scene, parcels: ParcelController, limit: int = 500) -> list[StoredItem]:
    """Return all that the project stores, without its name, in a fixed order."""
    found = [fact for page in export(scene, parcels, limit) for one in page for fact in facts(one, scene.now)]
    return sorted(found, key=repr)


def transfer(scene: Scene, to: Scene, parcels: ParcelController, limit: int = 500) -> None:
    for page in list(export(scene, parcels, limit)):
        parcels.adopt(to.queue.project, page, to.now)


def fill_queue(scene: Scene) -> None:
    """Store messages in all states, dead letters, history entries and idempotency keys."""
    storage, large = scene.storage, b'"' + b"x" * 5000 + b'"'
    storage.queues.create(scene.queue, b'{"_default_message_ttl": 900}')
    scene.post(3, once=make_key("post:1"))
    storage.messages.post(
        scene.queue,
        [
            Draft(id, body, 3600, delay, client, checksum, attributes, once=once)
            for id, body, delay, client, checksum, attributes, once in zip(
                new_ids(3, scene.now),
                (large, b"1", b'"\xc3\xa4"'),
                (0, 60, 0),
                ("bob", "c" * 60, "\u00e4"),
                ("MD5:1", "", "\u00e4"),
                (b"", b'{"a": 1}', b"y" * 2000),
                (make_key("send:1", b""), None, None),
                strict=True,
            )
        ],
        scene.now,
    )
    scene.post(1, ttl=5)
    scene.tick(1)
    scene.take(2, ttl=300, redelivery=Redelivery(delay=30))
    scene.release(scene.take(1, ttl=300).id, 120)
    scene.settle(scene.take(1).id, rest=True, history=600, once=make_key("settle:1"))
    dead = scene.post(2)
    scene.move(dead, "dead", history=900, reason="r\u00e4tsel")
    scene.move(scene.post(1), "next", history=900)
    scene.at("dead").release(scene.at("dead").take(1).id)
    scene.pop(1, history=50)
    scene.tick(10)


def fill(scene: Scene) -> None:
    """Store everything that a project can store, except stages."""
    fill_queue(scene)
    for name, grouping in (("ordered", Grouping.ORDERED), ("fair", Grouping.FAIR)):
        queue = scene.at(name)
        scene.storage.queues.create(queue.queue, b'{"a": "\xc3\xa4"}', grouping)
        send(queue, "a", "b", "a", "", "\u00e4", "a", "c")
        send(queue, "a", "b", delay=90)
        queue.take(2, ttl=40)
    scene.at("empty").post()
    scene.storage.queues.purge(scene.at("empty").queue)
    log = Log(scene.storage, scene.clock, scene.queue.project)
    for size in (1, 100, 5000):
        log.publish("news", 3, size=size, keep=Retention(10**6, 8))
        log.publish("\u00e4rger", 2, ttl=20 + size, once=make_key(f"publish:{size}"))
    log.publish("gone", 4)
    log.purge("gone")
    log.put("news", [structs.replace(entries(1)[0], attributes=b'{"x": 1}', hops=2, seal=b"s")])
    put = scene.storage.documents.put
    put(DocumentRef(scene.queue.project, "flavor", "\u00e4"), b"\x00\xff", scene.now)
    put(DocumentRef(scene.queue.project, "topic", "news"), b"{}", scene.now, expires=scene.now + 500)
    put(DocumentRef(scene.queue.project, "topic", "old"), b"{}", scene.now, expires=scene.now + 1)
    scene.fence("job")
    scene.fence("job")
    scene.stage("s", 2, once=make_key("stage:1"))
    scene.commit(7, ["s"])
    scene.commit(2**40, producer="\u00e4")
    never = scene.at("never")
    never.stage("dropped", 1, once=make_key("stage:2"))
    never.drop_stage("dropped")
    scene.tick(5)


@pytest.mark.parametrize("limit", PAGES)
def test_an_adopted_project_has_equal_contents(
    scene: Scene, elsewhere: Scene, parcels: ParcelController, limit: int
) -> None:
    """Pages of any size have the same contents, and each kind of item is among them."""
    fill(scene)
    before = contents(scene, parcels)
    assert len({fact.kind for fact in before}) == 9
    transfer(scene, elsewhere, parcels, limit)
    assert contents(elsewhere, parcels, limit) == before
    assert contents(scene, parcels, 3) == before


@pytest.mark.parametrize("limit", PAGES)
def test_the_export_of_a_queue_is_that_of_its_project_without_other_queues(
    scene: Scene, parcels: ParcelController, limit: int
) -> None:
    """Messages, history, idempotency keys and counters, in pages of any size. A missing queue has no parcels."""
    fill(scene)
    pages = list(export(scene, parcels))
    for name in (scene.queue.name, "dead", "ordered", "empty", "next"):
        expected = [one for page in pages for one in page if getattr(one, "queue", None) == name]
        found: list[Parcel] = []
        after = ""
        while (page := parcels.export_queue(scene.at(name).queue, after, limit, scene.now)).next is not None:
            assert 0 < len(page.items) <= limit
            found += page.items
            after = page.next
        assert page.items == []
        assert found == expected
    assert parcels.export_queue(scene.at("missing").queue, "", limit, scene.now).items == []


def test_a_queue_that_was_deleted_in_a_store_is_adopted_again_after_maintenance(
    scene: Scene, parcels: ParcelController
) -> None:
    """A queue that moves to another store and back is complete; later messages get higher sequences."""
    fill_queue(scene)
    before = [fact for fact in contents(scene, parcels) if getattr(fact.content, "queue", "") == scene.queue.name]
    pages, after = [], ""
    while (page := parcels.export_queue(scene.queue, after, 7, scene.now)).next is not None:
        pages.append(page.items)
        after = page.next
    last = max(message.sequence for message in scene.walk())
    scene.storage.queues.delete(scene.queue)
    while scene.storage.maintain(scene.now):
        pass
    for items in pages:
        parcels.adopt(scene.queue.project, items, scene.now)
    found = [fact for fact in contents(scene, parcels) if getattr(fact.content, "queue", "") == scene.queue.name]
    assert found == before
    [new] = scene.post(1)
    assert scene.one(new).sequence > last


def test_a_second_adoption_changes_nothing(scene: Scene, elsewhere: Scene, parcels: ParcelController) -> None:
    fill(scene)
    transfer(scene, elsewhere, parcels)
    before, usage = contents(elsewhere, parcels), scene.storage.usage(elsewhere.queue.project, scene.now)
    transfer(scene, elsewhere, parcels, 7)
    assert contents(elsewhere, parcels) == before
    assert scene.storage.usage(elsewhere.queue.project, scene.now) == usage


def test_an_interrupted_adoption_continues_after_its_last_page(
    scene: Scene, elsewhere: Scene, parcels: ParcelController
) -> None:
    fill(scene)
    pages = list(export(scene, parcels, 5))
    for page in pages[: len(pages) // 2]:
        parcels.adopt(elsewhere.queue.project, page, scene.now)
    scene.tick(1)
    transfer(scene, elsewhere, parcels)
    assert contents(elsewhere, parcels) == contents(scene, parcels)


@pytest.mark.parametrize("grouping", list(Grouping))
def test_adopted_messages_are_claimed_in_their_order(
    scene: Scene, elsewhere: Scene, parcels: ParcelController, grouping: Grouping
) -> None:
    """Claimed messages are away until their claims would have ended."""
    scene.storage.queues.create(scene.queue, b"{}", grouping)
    send(scene, "a", "b", "a", "c", "b")
    send(scene, "a", "d", delay=30)
    scene.take(2, ttl=60)
    scene.release(scene.take(1, ttl=60).id, 20)
    transfer(scene, elsewhere, parcels, 3)
    for _ in range(5):
        assert elsewhere.ready() == scene.ready()
        assert elsewhere.claimable() == scene.claimable()
        assert elsewhere.due() == scene.due()
        scene.tick(20)


def test_new_messages_follow_adopted_ones(scene: Scene, elsewhere: Scene, parcels: ParcelController) -> None:
    """A marker of the former store misses nothing (law L6)."""
    scene.storage.queues.create(scene.queue, b"{}")
    scene.post(3)
    log = Log(scene.storage, scene.clock, scene.queue.project)
    published = log.publish("news", 3)[-1]
    scene.pop(1, history=900)
    marker, position = scene.walk()[-1].sequence, scene.history()[-1].position
    transfer(scene, elsewhere, parcels)
    posted = elsewhere.post(2)
    assert elsewhere.page(marker=marker) == posted
    assert elsewhere.claimable() == [message.id for message in scene.walk()] + posted
    adopted = log.of(elsewhere.queue.project)
    assert adopted.publish("news", 2) == adopted.sequences(after=published)
    elsewhere.tick(1)
    [first] = elsewhere.at("other").post(1)
    elsewhere.at("other").move([first], elsewhere.queue.name)
    elsewhere.pop(1, history=900)
    assert [one.position > position for one in elsewhere.history(marker=position)] == [True]


def test_adopted_idempotency_keys_are_recognized(scene: Scene, elsewhere: Scene, parcels: ParcelController) -> None:
    posted = scene.post(2, once=make_key("post:1"))
    settled = scene.settle(scene.take(1).id, rest=True, once=make_key("settle:1"))
    draft = structs.replace(drafts(1, scene.now)[0], once=make_key("send:1", b""))
    scene.storage.messages.post(scene.queue, [draft], scene.now)
    log = Log(scene.storage, scene.clock, scene.queue.project)
    [published] = log.publish(once=make_key("publish:1"))
    staged = scene.at("never").stage("dropped", 1, once=make_key("stage:1"))
    transfer(scene, elsewhere, parcels)
    answers = [
        (partial(elsewhere.post, 1, once=make_key("post:1")), posted),
        (partial(elsewhere.settle, "any", once=make_key("settle:1")), settled),
        (partial(log.of(elsewhere.queue.project).publish, once=make_key("publish:1")), published),
        (partial(elsewhere.at("never").stage, "s", 1, once=make_key("stage:1")), staged),
    ]
    for verb, answer in answers:
        with pytest.raises(Repeated) as told:
            verb()
        assert told.value.answer == answer
    with pytest.raises(DraftsRepeated):
        elsewhere.storage.messages.post(elsewhere.queue, [draft], elsewhere.now)


def test_adopted_fences_and_producers_reject_former_work(
    scene: Scene, elsewhere: Scene, parcels: ParcelController
) -> None:
    old = scene.fence()
    current = scene.fence()
    scene.commit(7)
    transfer(scene, elsewhere, parcels)
    assert elsewhere.commit(7).replayed
    with pytest.raises(Fenced):
        elsewhere.commit(8, fence=old)
    assert not elsewhere.commit(8, fence=current).replayed
    assert elsewhere.fence().epoch == current.epoch + 1


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_keys_of_missing_queues_are_exported_in_pages(
    scene: Scene, elsewhere: Scene, parcels: ParcelController, limit: int
) -> None:
    for name, count in (("a", 1), ("b", 3), ("c", 2), ("\u00e4", 1)):
        for key in range(count):
            scene.at(name).stage("dropped", 1, once=make_key(f"stage:{key}"))
            scene.at(name).drop_stage("dropped")
        scene.at(name + name).post(1, once=make_key("post:1"))
    before = contents(scene, parcels)
    assert len(before) == 7 + 3 * 4
    assert contents(scene, parcels, limit) == before
    transfer(scene, elsewhere, parcels, limit)
    assert contents(elsewhere, parcels) == before


def test_an_adopted_log_keeps_its_retention(scene: Scene, elsewhere: Scene, parcels: ParcelController) -> None:
    """The next publish operation trims what it would have trimmed in the former log."""
    log, keep = Log(scene.storage, scene.clock, scene.queue.project), Retention(10**6, 20)
    for _ in range(30):
        log.publish("news", 2, keep=keep)
        scene.tick(1)
    transfer(scene, elsewhere, parcels)
    adopted = log.of(elsewhere.queue.project)
    assert adopted.sequences() == log.sequences()
    adopted.publish("news", 2, keep=Retention(10**6, 10**6))
    assert adopted.sequences()[:-2] == log.sequences()
    adopted.publish("news", 2, keep=keep)
    assert 20 <= len(adopted.sequences()) <= 23


def test_an_open_commit_is_not_exported(scene: Scene, parcels: ParcelController) -> None:
    scene.stage("s", 3)
    scene.decide(1, ["s"])
    with pytest.raises(CommitRunning):
        contents(scene, parcels)
    while scene.continue_commit():
        pass
    assert {fact.kind for fact in contents(scene, parcels)} == {"messages", "producers", "queues"}


def test_expired_items_are_neither_exported_nor_adopted(
    scene: Scene, elsewhere: Scene, parcels: ParcelController
) -> None:
    fill(scene)
    pages = list(export(scene, parcels))
    scene.tick(100_000)
    left = [one for page in export(scene, parcels) for one in page if not isinstance(one, QueueParcel)]
    assert not any(isinstance(one, MessageParcel) for one in left)
    for page in pages:
        parcels.adopt(elsewhere.queue.project, page, scene.now)
    assert contents(elsewhere, parcels) == contents(scene, parcels)
    assert elsewhere.claimable() == []


def test_a_project_with_any_item_is_listed(scene: Scene, parcels: ParcelController) -> None:
    made = [scene.at("a", f"{scene.queue.project}.{kind}") for kind in ("queue", "log", "fence", "record")]
    queue, log, fence, record = made
    queue.post()
    Log(scene.storage, scene.clock, log.queue.project).publish()
    fence.fence()
    scene.storage.documents.put(DocumentRef(record.queue.project, "topic", "a"), b"{}", scene.now)
    assert {one.queue.project for one in made} <= set(parcels.projects())


def test_a_guarded_operation_with_an_outdated_token_changes_nothing(
    scene: Scene, elsewhere: Scene, parcels: ParcelController
) -> None:
    """The token is the value of a document, which another server has replaced."""
    fill(scene)
    pages = list(export(scene, parcels))
    documents, token = scene.storage.documents, DocumentRef(elsewhere.queue.project, "token", "jobs")
    guard = Guard(token, b"1")
    documents.put(token, b"2", scene.now)
    before = contents(elsewhere, parcels)
    for page in pages:
        for parcel in page:
            if isinstance(parcel, QueueParcel) and parcel.metadata is None:
                continue  # a missing queue with idempotency keys is not stored by every driver
            with pytest.raises(Fenced):
                parcels.adopt(elsewhere.queue.project, [parcel], scene.now, guard)
    assert contents(elsewhere, parcels) == before
    with pytest.raises(Fenced):
        parcels.create_queue(elsewhere.queue, b"{}", Grouping.NONE, guard)
    with pytest.raises(Fenced):
        parcels.create_queue(elsewhere.queue, b"{}", Grouping.NONE, Guard(token, b""))
    assert not elsewhere.exists()
    elsewhere.post(3)
    with pytest.raises(Fenced):
        parcels.delete_queue(elsewhere.queue, guard)
    assert elsewhere.stats().free == 3


def test_a_guarded_operation_with_the_current_token_takes_effect(
    scene: Scene, elsewhere: Scene, parcels: ParcelController
) -> None:
    """Without a token, the document must be missing; the operations keep it as it is."""
    token = DocumentRef(elsewhere.queue.project, "token", "jobs")
    made = scene.at("made", token.project)
    assert parcels.create_queue(made.queue, b'{"a":1}', Grouping.FAIR, Guard(token, b""))
    assert not parcels.create_queue(made.queue, b"{}", Grouping.NONE, Guard(token, b""))
    queue = scene.storage.queues.get(made.queue)
    assert queue is not None
    assert (queue.metadata, queue.grouping) == (b'{"a":1}', Grouping.FAIR)
    assert scene.storage.documents.get(token, scene.now) is None
    assert parcels.delete_queue(made.queue, Guard(token, b""))
    assert scene.storage.documents.put(token, b"1", scene.now, "")
    [before] = scene.storage.documents.list(token.project, "token", "", "", 9, scene.now).items
    guard = Guard(token, b"1")
    fill_queue(scene)
    after = ""
    while (page := parcels.export_queue(scene.queue, after, 2, scene.now)).next is not None:
        parcels.adopt(elsewhere.queue.project, page.items, scene.now, guard)
        after = page.next
    assert sum(elsewhere.counts()) == sum(scene.counts())
    fresh = scene.at("fresh", elsewhere.queue.project)
    assert parcels.create_queue(fresh.queue, b"{}", Grouping.NONE, guard)
    fresh.post(2)
    assert fresh.stats().free == 2
    assert parcels.delete_queue(fresh.queue, guard)
    assert parcels.delete_queue(fresh.queue, guard)
    assert not fresh.exists()
    assert scene.storage.documents.get(token, scene.now) == before


def test_a_guarded_deletion_spares_a_queue_with_later_messages(
    scene: Scene, elsewhere: Scene, parcels: ParcelController
) -> None:
    """It names the last sequence. An empty queue has one, too."""
    token = DocumentRef(elsewhere.queue.project, "token", "jobs")
    guard = Guard(token, b"")
    for count in (0, 2):
        queue = scene.at(f"late-{count}", elsewhere.queue.project)
        assert parcels.create_queue(queue.queue, b"{}", Grouping.NONE, guard)
        if count:
            queue.post(count)
        last = _last_sequence(queue, parcels)
        [message] = queue.post(1)
        assert not parcels.delete_queue(queue.queue, guard, last)
        assert queue.one(message).id == message
        assert parcels.delete_queue(queue.queue, guard, _last_sequence(queue, parcels))
        assert not queue.exists()
        assert parcels.delete_queue(queue.queue, guard, last)


def _last_sequence(scene: Scene, parcels: ParcelController) -> int:
    [queue] = [one for one in parcels.export_queue(scene.queue, "", 9, scene.now).items if isinstance(one, QueueParcel)]
    return queue.counters.sequence
