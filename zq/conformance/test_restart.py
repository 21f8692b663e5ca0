# SPDX-License-Identifier: Apache-2.0
"""Closing and opening a store: every acknowledged change is still there (law L1)."""

from collections.abc import Iterator

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import EVERYTHING, OpenStore, Scene, ids_of
from zq.core.redelivery import DeadLetters
from zq.errors import ClaimNotFound
from zq.model import ClaimRef, CommitResult, QueueRef, Stats

pytestmark = [pytest.mark.durable, pytest.mark.every_server, pytest.mark.objects, pytest.mark.fresh_store]


class RestartableScene(Scene):
    """A scene whose store can be closed and opened again."""

    def __init__(self, open_store: OpenStore, queue: QueueRef) -> None:
        storage = open_store()
        super().__init__(storage, ManualClock(storage.now()), queue)
        self._open = open_store

    def restart(self) -> None:
        self.storage.close()
        self.storage = self._open()


@pytest.fixture
def scene(open_store: OpenStore, queue: QueueRef) -> Iterator[RestartableScene]:
    opened = RestartableScene(open_store, queue)
    yield opened
    opened.storage.close()


def test_an_empty_store_opens_again(scene: RestartableScene):
    """Closing twice without a write does no harm."""
    scene.restart()
    scene.restart()
    assert scene.storage.queues.list("acme", "", 10).items == []
    scene.storage.ping()
    assert scene.storage.now() > 0


def test_queues_and_metadata_survive(scene: RestartableScene):
    """Created, updated, purged and deleted queues are unchanged, and so are queues that a post created."""
    queues = scene.storage.queues
    for name in ["a", "b", "c", "d"]:
        queues.create(QueueRef("acme", name), b'{"name": "%s"}' % name.encode())
    queues.update(QueueRef("acme", "b"), b'{"name": "b"}', b'{"name": "B"}')
    queues.delete(QueueRef("acme", "c"))
    queues.purge(QueueRef("acme", "d"))
    scene.post(1)
    before = queues.list("acme", "", 100)
    scene.restart()
    after = scene.storage.queues.list("acme", "", 100)
    assert after == before
    assert [queue.ref.name for queue in after.items] == ["a", "b", "d", "jobs"]
    assert after.items[1].metadata == b'{"name": "B"}'
    assert scene.storage.queues.count("acme") == 4
    assert scene.storage.queues.count("rival") == 0


def test_messages_survive_whole_and_in_order(scene: RestartableScene):
    """Ready, delayed, released and lapsed messages keep every field and the order of claims."""
    scene.post(3, client="bob")
    scene.post(2, delay=60)
    scene.post(3, ttl=600)
    scene.take(1, ttl=30)
    scene.release(scene.take(2).id)
    scene.tick(45)
    scene.post(2)
    before = scene.walk()
    stats = scene.stats()
    assert len(before) == 10
    scene.restart()
    assert scene.walk() == before
    assert scene.stats() == stats
    assert scene.get(ids_of(before)) == before
    ready = sorted((m for m in before if m.available <= scene.now), key=lambda m: (m.available, m.sequence))
    assert scene.claimable() == ids_of(ready)


def test_claims_survive_with_their_holders_rights(scene: RestartableScene):
    """Claimed messages stay claimed until the claim lapses. Only their claim can renew, delete and release them."""
    posted = scene.post(6)
    kept, released, lapsing = scene.take(2, ttl=600), scene.take(2, ttl=600), scene.take(2, ttl=60)
    scene.restart()
    assert scene.page() == []
    assert scene.claim() is None
    found = scene.storage.claims.get(scene.queue, kept.id, scene.now)
    assert (found.ttl, found.created) == (kept.ttl, kept.created)
    assert sorted(found.messages, key=lambda message: message.sequence) == kept.messages
    scene.renew(kept.id, ttl=900)
    scene.delete(posted[0], kept.id)
    scene.release(released.id)
    assert scene.counts() == (3, 2)
    scene.tick(60)
    assert scene.claimable() == posted[2:]
    with pytest.raises(ClaimNotFound):
        scene.held(lapsing.id)
    scene.restart()
    assert scene.held(kept.id) == posted[1:2]


def test_a_release_after_a_restart_restores_the_place(scene: RestartableScene):
    posted = scene.post(3)
    claim = scene.take(2)
    scene.restart()
    scene.release(claim.id)
    assert scene.claimable() == posted


def test_extended_ttls_survive(scene: RestartableScene):
    posted = scene.post(1, ttl=60)
    claim = scene.take(ttl=600, grace=10)
    scene.restart()
    scene.tick(300)
    scene.reclaimed()
    assert scene.held(claim.id) == posted
    scene.tick(309.999)
    scene.restart()
    assert scene.page() == posted
    scene.tick(0.001)
    assert scene.is_empty()


def test_delays_survive(scene: RestartableScene):
    posted = scene.post(2, delay=60)
    scene.restart()
    scene.tick(59.999)
    assert scene.claim() is None
    assert scene.page() == []
    scene.restart()
    scene.tick(0.001)
    assert scene.page() == posted
    assert scene.claimable() == posted


@pytest.mark.parametrize("removal", ["none", "delete", "pop", "purge", "expire"])
def test_sequences_rise_above_every_issued_marker(scene: RestartableScene, removal: str):
    """Sequences rise even if the message with the highest one was removed (L6)."""
    old = scene.post(5, ttl=60)
    marker = scene.one(old[-1]).sequence
    if removal == "delete":
        scene.delete_many(old)
    elif removal == "pop":
        assert scene.pop() == old
    elif removal == "purge":
        scene.storage.queues.purge(scene.queue)
    elif removal == "expire":
        scene.tick(60)
        scene.reclaimed()
    for _ in range(3):
        scene.restart()
        new = scene.post(2)
        assert scene.page(EVERYTHING, marker=marker) == new
        marker = scene.one(new[-1]).sequence


def test_the_last_available_time_of_a_queue_survives(scene: RestartableScene):
    """A post by a server with a slower clock does not overtake earlier posts after a restart (L5)."""
    scene.tick(0.05)
    first = scene.post(2)
    late = scene.now
    scene.restart()
    scene.clock = ManualClock(late - 0.05)
    second = scene.post(2)
    scene.tick(0.05)
    assert scene.claimable() == first + second


def test_removed_messages_do_not_return_after_a_restart(scene: RestartableScene):
    """Deleted, popped, purged, expired messages and ended claims do not return (L3)."""
    posted = scene.post(4) + scene.post(2, ttl=60)
    claim = scene.take(1)
    scene.delete(posted[0], claim.id)
    scene.delete_many(posted[1:2])
    assert scene.pop(1) == posted[2:3]
    purged = scene.at("purged")
    purged.post(2)
    purged.take(1)
    purged.storage.queues.purge(purged.queue)
    deleted = scene.at("deleted")
    old = deleted.post(3, delay=60)
    deleted.storage.queues.delete(deleted.queue)
    scene.tick(60)
    scene.restart()
    assert ids_of(scene.walk()) == posted[3:4]
    assert scene.stats().free == 1
    with pytest.raises(ClaimNotFound):
        scene.held(claim.id)
    assert scene.at("purged").is_empty()
    again = scene.at("deleted")
    assert not again.exists()
    new = again.post(1)
    assert ids_of(again.walk()) == new
    assert again.get(old) == []
    scene.reclaimed()
    assert again.claimable() == new
    assert scene.claimable() == posted[3:4]


def test_dead_letters_survive_in_one_queue(scene: RestartableScene):
    """A dead letter is in its new queue only, and the counts of both queues survive."""
    posted = scene.post(2)
    scene.release(scene.take(1).id)
    scene.restart()
    rule = DeadLetters(QueueRef("acme", "dead"), 1, 9999)
    claim = scene.claim(dead_letters=rule)
    assert claim is not None
    assert ids_of(claim.messages) == posted[1:]
    scene.restart()
    assert ids_of(scene.walk()) == posted[1:]
    grave = scene.at("dead")
    assert [(m.id, m.ttl, m.claim_count) for m in grave.walk()] == [(posted[0], 9999, 0)]
    assert grave.claimable() == posted[:1]


def test_maintenance_continues_after_a_restart(scene: RestartableScene):
    """Messages that expired while the store was closed are invisible at once and reclaimed later."""
    scene.post(20, ttl=60)
    kept = scene.post(2)
    scene.restart()
    scene.tick(60)
    assert scene.page() == kept
    assert scene.stats() == Stats(0, 2, scene.stats().oldest, scene.stats().newest)
    scene.restart()
    scene.reclaimed()
    assert ids_of(scene.walk()) == kept
    assert scene.reclaimed() == 0


def test_thousands_of_messages_in_many_queues_survive(scene: RestartableScene):
    """20 queues have 200 messages each, half of them claimed or popped."""
    rooms = [scene.at(f"q{at}") for at in range(20)]
    expected = {}
    for room in rooms:
        posted = room.post(200)
        claim = room.take(50)
        room.delete_many(posted[:10])
        assert room.pop(50) == posted[50:100]
        expected[room.queue.name] = (claim.id, sorted(posted[10:50]), posted[10:50] + posted[100:])
    scene.restart()
    for name, (claim, held, listed) in expected.items():
        room = scene.at(name)
        assert room.held(claim) == held
        assert ids_of(room.walk()) == listed
        assert room.counts() == (40, 100)


def test_an_open_commit_survives(scene: RestartableScene):
    """The messages of the commit are in no claim, the stages stay, and any server finishes the commit."""
    source = scene.at("in")
    posted = source.post(4)
    source.named("etl.0", 3, ttl=60)
    staged = scene.stage("s1", 5, lives=60)
    assert scene.decide(1, ["s1"], [ClaimRef(source.queue, "etl.0")]).open
    scene.continue_commit(1)
    scene.restart()
    source = Scene(scene.storage, scene.clock, source.queue)
    scene.tick(61)
    scene.reclaimed()
    assert source.claimable() == posted[3:]
    assert source.counts() == (3, 0)
    for _ in range(3):
        assert scene.continue_commit(2)
        scene.restart()
    assert scene.commit(1, ["s1"]) == CommitResult(1, 5, 3, replayed=True)
    assert scene.page() == staged
    scene.restart()
    assert ids_of(scene.walk()) == staged
    assert scene.last() == CommitResult(1, 5, 3)


def test_messages_entering_a_queue_are_counted(scene: RestartableScene):
    """Messages count once, whichever way they entered the queue, also across restarts and purges."""
    assert scene.entered() is None
    ids = scene.post(3)
    begun = scene.entered()
    scene.restart()
    assert scene.entered() == begun
    scene.post(2)
    other = scene.at("other")
    moved = other.post(1)
    scene.release(scene.take(1).id)
    scene.delete(ids[1])
    other.move(moved, scene.queue.name)
    assert scene.entered() == begun + 3
    scene.storage.queues.purge(scene.queue)
    scene.post(1)
    assert scene.entered() == begun + 4
