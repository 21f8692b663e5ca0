# SPDX-License-Identifier: Apache-2.0
"""Queues: metadata, listing, lazy creation, deletion, purge and statistics (contract 6)."""

import json

import pytest

from zq.conformance.builders import Scene
from zq.errors import ClaimNotFound
from zq.model import EndMessage, Grouping, QueueRef, Stats
from zq.storage.api import Storage

pytestmark = pytest.mark.pools


def names(scene: Scene, after: str = "", limit: int = 100, project: str = "") -> list[str]:
    page = scene.storage.queues.list(project or scene.queue.project, after, limit)
    return [queue.ref.name for queue in page.items]


def metadata(scene: Scene) -> bytes:
    found = scene.storage.queues.get(scene.queue)
    assert found is not None
    return found.metadata


def test_a_queue_is_created_once_and_keeps_its_first_metadata(scene: Scene):
    assert scene.storage.queues.create(scene.queue, b'{"a": 1}') is True
    assert scene.storage.queues.create(scene.queue, b'{"b": 2}') is False
    assert metadata(scene) == b'{"a": 1}'


def test_a_missing_queue_has_no_metadata(scene: Scene):
    assert scene.storage.queues.get(scene.queue) is None
    assert scene.storage.queues.count(scene.queue.project) == 0
    assert names(scene) == []


@pytest.mark.parametrize(
    "document",
    [
        b"{}",
        b'{"$set": {"a.b": null}, "_id": 1}',
        '{ "s":"\u00e9\U0001f600\\u0000" ,\n"n": 123456789012345678901234567890.5e+300 }'.encode(),
        b'{"a": "' + b"x" * 65000 + b'"}',
    ],
    ids=["empty", "operators", "odd text", "large"],
)
def test_metadata_are_returned_byte_for_byte(scene: Scene, document: bytes):
    scene.storage.queues.create(scene.queue, document)
    assert metadata(scene) == document
    [listed] = scene.storage.queues.list(scene.queue.project, "", 10).items
    assert (listed.ref, listed.metadata) == (scene.queue, document)


def test_an_update_of_the_current_metadata_succeeds(scene: Scene):
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    assert scene.storage.queues.update(scene.queue, b'{"a": 1}', b'{"a": 2}') is True
    assert metadata(scene) == b'{"a": 2}'


def test_an_update_of_other_metadata_changes_nothing(scene: Scene):
    """Compare-and-set fails if the bytes differ, even if the JSON values are equal."""
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    assert scene.storage.queues.update(scene.queue, b'{"a":1}', b'{"a": 2}') is False
    assert metadata(scene) == b'{"a": 1}'


def test_an_update_does_not_create_a_queue(scene: Scene):
    assert scene.storage.queues.update(scene.queue, b"{}", b'{"a": 2}') is False
    assert scene.storage.queues.update(scene.queue, b"", b'{"a": 2}') is False
    assert not scene.exists()


def test_a_post_creates_the_queue_without_metadata(scene: Scene):
    """The queue counts and is listed like any other, and its metadata can be updated."""
    scene.post()
    assert json.loads(metadata(scene)) == {}
    assert scene.storage.queues.count(scene.queue.project) == 1
    assert names(scene) == ["jobs"]
    assert scene.storage.queues.create(scene.queue, b'{"late": 1}') is False
    assert scene.storage.queues.update(scene.queue, metadata(scene), b'{"a": 1}') is True
    assert metadata(scene) == b'{"a": 1}'


def test_a_post_leaves_the_metadata_alone(scene: Scene):
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    scene.post(3)
    assert metadata(scene) == b'{"a": 1}'


def test_only_a_post_creates_a_queue(scene: Scene):
    assert scene.page() == []
    assert scene.get(["ffff"]) == []
    assert scene.claim() is None
    assert scene.pop() == []
    assert scene.stats() == Stats()
    scene.delete("ffff")
    scene.delete_many(["ffff"])
    scene.release("cccc")
    scene.storage.queues.purge(scene.queue)
    scene.storage.queues.delete(scene.queue)
    assert not scene.exists()
    assert scene.storage.queues.count(scene.queue.project) == 0


def test_queues_are_listed_in_byte_order(scene: Scene):
    """Capitals come before the underscore, then small letters. A prefix comes before longer names."""
    ordered = ["-x", ".x", "0", "09", "10", "9", "A", "Z", "_", "a", "a-", "a.", "a0", "aa", "b"]
    for name in reversed(ordered):
        scene.storage.queues.create(scene.at(name).queue, b"{}")
    assert names(scene) == ordered


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_pages_of_queues_show_every_queue_once(scene: Scene, limit: int):
    """Pages are full while there are enough queues. ``next`` is the last name, or None for an empty page."""
    made = [f"q{at}" for at in range(7)]
    for name in made:
        scene.storage.queues.create(scene.at(name).queue, b"{}")
    seen: list[str] = []
    after = ""
    while True:
        page = scene.storage.queues.list(scene.queue.project, after, limit)
        if not page.items:
            break
        assert len(page.items) == min(limit, len(made) - len(seen))
        seen += [queue.ref.name for queue in page.items]
        assert page.next == seen[-1]
        after = page.next
    assert page.next is None
    assert seen == made


def test_a_listing_continues_after_a_name_that_is_no_queue(scene: Scene):
    """The listing continues with greater names, whether the marker exists or not."""
    for name in ["a", "b", "b0", "c"]:
        scene.storage.queues.create(scene.at(name).queue, b"{}")
    assert names(scene, after="b") == ["b0", "c"]
    assert names(scene, after="b.") == ["b0", "c"]
    assert names(scene, after="zz") == []


def test_the_count_follows_creation_and_deletion(scene: Scene):
    """Creating or deleting a queue twice counts once."""
    for name in ["a", "b", "b"]:
        scene.storage.queues.create(scene.at(name).queue, b"{}")
    scene.at("c").post()
    scene.at("c").post()
    assert scene.storage.queues.count(scene.queue.project) == 3
    for name in ["b", "b", "c", "never"]:
        scene.storage.queues.delete(scene.at(name).queue)
    assert scene.storage.queues.count(scene.queue.project) == 1
    assert names(scene) == ["a"]


def test_deleting_a_queue_removes_all_its_data(scene: Scene):
    """Metadata, messages in every state, claims and statistics are deleted in one step."""
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    posted = scene.post(4) + scene.post(delay=60)
    claim = scene.take(2)
    scene.storage.queues.delete(scene.queue)
    assert not scene.exists()
    assert scene.get(posted) == []
    assert scene.is_empty()
    assert scene.claimable() == []
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)


def test_a_recreated_queue_is_empty(scene: Scene):
    """Messages of the former queue do not return, even when their delays and claims end."""
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    old = scene.post(3) + scene.post(2, delay=60)
    scene.take(2, ttl=60)
    scene.storage.queues.delete(scene.queue)
    [new] = scene.post()
    assert json.loads(metadata(scene)) == {}
    assert [message.id for message in scene.walk()] == [new]
    scene.tick(61)
    assert scene.get(old) == []
    assert [message.id for message in scene.walk()] == [new]
    assert scene.counts() == (0, 1)
    assert scene.claimable() == [new]


@pytest.mark.parametrize("way", ["delete", "purge"])
def test_a_late_holder_changes_nothing_in_a_recreated_queue(scene: Scene, way: str):
    """A delete by the holder succeeds, the claim is unknown, and new messages are unchanged."""
    old = scene.post(2)
    claim = scene.take()
    getattr(scene.storage.queues, way)(scene.queue)
    new = scene.post(2)
    scene.delete(old[0], claim.id)
    scene.delete_many(old)
    scene.release(claim.id)
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    with pytest.raises(ClaimNotFound):
        scene.renew(claim.id)
    assert scene.claimable() == new


def test_a_purge_keeps_only_the_metadata(scene: Scene):
    """Ready, delayed, claimed and lapsed messages are removed; the queue and its metadata stay."""
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    scene.post(2)
    scene.take(1, ttl=60)
    scene.tick(60)
    scene.take(1)
    old = scene.post(2, delay=60) + scene.post(2)
    scene.storage.queues.purge(scene.queue)
    assert metadata(scene) == b'{"a": 1}'
    assert scene.is_empty()
    assert scene.get(old) == []
    scene.tick(400)
    assert scene.is_empty()
    assert scene.claimable() == []


def test_a_purge_leaves_other_queues_alone(scene: Scene):
    """The other queue's name begins with the name of the purged queue."""
    other = scene.at("jobs2")
    scene.post(2)
    kept = other.post(3)
    claim = other.take(1)
    scene.storage.queues.purge(scene.queue)
    assert other.held(claim.id) == kept[:1]
    scene.storage.queues.delete(scene.queue)
    assert other.counts() == (1, 2)
    assert other.claimable() == kept[1:]


@pytest.mark.fresh_store
def test_an_emptied_queue_stays(scene: Scene):
    scene.storage.queues.create(scene.queue, b'{"a": 1}')
    scene.post(2, ttl=60)
    scene.pop(1)
    scene.tick(60)
    scene.reclaimed()
    assert metadata(scene) == b'{"a": 1}'
    assert names(scene) == ["jobs"]


def test_stats_count_every_living_state(scene: Scene):
    """Messages of a live claim count as claimed. Ready, delayed and lapsed messages count as free."""
    scene.post(2, ttl=100)
    scene.post(3, delay=120)
    assert scene.counts() == (0, 5)
    scene.take(2, ttl=60)
    assert scene.counts() == (2, 3)
    scene.tick(60)
    assert scene.counts() == (0, 5)
    scene.tick(60)
    assert scene.counts() == (0, 3)


def test_stats_follow_each_way_out_of_a_claim(scene: Scene):
    """A release frees all messages; a delete by the holder or the owner lowers the claimed count by one."""
    posted = scene.post(5)
    claim = scene.take(4)
    scene.delete(posted[0], claim.id)
    assert scene.counts() == (3, 1)
    scene.delete_many([posted[1]])
    assert scene.counts() == (2, 1)
    scene.release(claim.id)
    assert scene.counts() == (0, 3)


def test_stats_follow_a_renewal(scene: Scene):
    """A longer renewal keeps messages claimed past the first expiry. A shorter one frees them earlier."""
    scene.post(2)
    longer, shorter = scene.take(1, ttl=100), scene.take(1, ttl=1000)
    scene.renew(longer.id, ttl=1000)
    scene.renew(shorter.id, ttl=100)
    scene.tick(100)
    assert scene.counts() == (1, 1)
    assert scene.held(longer.id) == [longer.messages[0].id]


def test_stats_name_the_oldest_and_the_newest(scene: Scene):
    """The oldest and newest message are the first and last by sequence, even if claimed or delayed."""
    first = scene.post(1, delay=500)[0]
    early = scene.now
    scene.tick(5)
    middle = scene.post(1)[0]
    mid = scene.now
    scene.tick(5)
    last = scene.post(1)[0]
    late = scene.now
    scene.take(2)
    terms = zip((first, middle, last), (early, mid, late), strict=True)
    one, two, three = (EndMessage(id, moment, scene.one(id).sequence) for id, moment in terms)
    assert scene.stats() == Stats(2, 1, one, three)
    scene.delete_many([first])
    assert scene.stats() == Stats(2, 0, two, three)
    scene.delete_many([last])
    assert scene.stats() == Stats(1, 0, two, two)


def test_stats_skip_expired_messages_as_oldest_and_newest(scene: Scene):
    scene.post(2, ttl=60)
    kept = scene.post(1, ttl=600)[0]
    mark = EndMessage(kept, scene.now, scene.one(kept).sequence)
    scene.post(2, ttl=60)
    scene.tick(60)
    assert scene.stats() == Stats(0, 1, mark, mark)
    scene.tick(540)
    assert scene.stats() == Stats()


@pytest.mark.parametrize("way", ["pop", "delete", "purge", "expire"])
def test_an_empty_queue_next_to_others_has_neither_oldest_nor_newest(scene: Scene, way: str):
    project = scene.queue.project
    neighbours = [
        scene.at("jobs", project[:-1] + "d"),
        scene.at("job"),
        scene.at("jobs2"),
        scene.at("jobs", project + "f"),
    ]
    for neighbour in neighbours[:2]:
        neighbour.post(3)
    posted = scene.post(3, ttl=60)
    for neighbour in neighbours[2:]:
        neighbour.post(3)
    if way == "pop":
        assert scene.pop() == posted
    elif way == "delete":
        scene.delete_many(posted)
    elif way == "purge":
        scene.storage.queues.purge(scene.queue)
    else:
        scene.tick(60)
    assert scene.stats() == Stats()
    for neighbour in neighbours:
        assert neighbour.counts() == (0, 3)


def test_a_queue_keeps_its_grouping(scene: Scene, storage: Storage):
    """Purges and metadata updates keep the grouping; a queue that a post created has no groups."""
    for kind in Grouping:
        ref = QueueRef(scene.queue.project, f"made-{kind or 'plain'}")
        assert storage.queues.create(ref, b"{}", kind)
        assert not storage.queues.create(ref, b"{}", Grouping.NONE)
        assert storage.queues.update(ref, b"{}", b'{"a":1}')
        storage.queues.purge(ref)
        assert made_as(storage, ref) == (kind, b'{"a":1}')
        listed = {queue.ref: queue.grouping for queue in storage.queues.list(ref.project, "", 100).items}
        assert listed[ref] is kind
        storage.queues.delete(ref)
        assert storage.queues.create(ref, b"{}")
        assert made_as(storage, ref) == (Grouping.NONE, b"{}")
    scene.post(1)
    assert made_as(storage, scene.queue) == (Grouping.NONE, b"{}")


def made_as(storage: Storage, ref: QueueRef) -> tuple[Grouping, bytes]:
    """Return the queue's grouping and its metadata."""
    found = storage.queues.get(ref)
    assert found is not None
    return found.grouping, found.metadata
