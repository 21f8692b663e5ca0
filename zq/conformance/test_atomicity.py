# SPDX-License-Identifier: Apache-2.0
"""Concurrent callers: all or nothing (L7), one holder (L2), order (L5) and markers (L6)."""

import threading
import time
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, EVERYTHING, Scene, drafts, ids_of, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.core.redelivery import DeadLetters
from zq.errors import ClaimNotFound, ClaimNotHeld, MessageClaimed
from zq.model import ListFilter, Message, QueueRef
from zq.storage.api import Storage

pytestmark = [pytest.mark.every_server, ONE_OR_TWO_CONNECTIONS]

PRODUCERS = 8
POSTS = 30


def produce(scene: Scene, client: str, posts: int, skew: float = 0.0) -> list[list[str]]:
    """Post batches of 1 to 4 messages; return the ids of each batch."""
    batches = []
    for at in range(posts):
        new = drafts(1 + at % 4, scene.now, client=client, delay=60 * (at % 5 == 4))
        scene.storage.messages.post(scene.queue, new, scene.now + skew)
        batches.append(ids_of(new))
    return batches


def follow(scene: Scene, done: threading.Event, limit: int) -> list[Message]:
    """Read by marker until the producers have finished and the queue has no more messages."""
    seen: list[Message] = []
    marker = 0
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        finished = done.is_set()
        page = scene.storage.messages.list(scene.queue, marker, limit, EVERYTHING, scene.now)
        seen += page.items
        if page.next is not None:
            marker = int(page.next)
        elif finished:
            return seen
    raise AssertionError("The reader did not come to an end.")


def test_a_reader_by_marker_misses_nothing_while_producers_post(scene: Scene):
    """While eight producers post, two readers each see every message once, and each producer's messages in order."""
    done = threading.Event()
    left = threading.Semaphore(0)

    def producer(name: str) -> list[list[str]]:
        try:
            return produce(scene, name, POSTS)
        finally:
            left.release()

    def stopper() -> None:
        for _ in range(PRODUCERS):
            left.acquire(timeout=DEADLINE)
        done.set()

    names = [f"producer-{at}" for at in range(PRODUCERS)]
    results = run_together(
        partial(follow, scene, done, 7),
        partial(follow, scene, done, 100),
        stopper,
        *(partial(producer, n) for n in names),
    )
    by_producer = dict(zip(names, results[3:], strict=True))
    posted = sorted(id for batches in by_producer.values() for batch in batches for id in batch)
    for seen in results[:2]:
        assert sorted(ids_of(seen)) == posted
        for name, batches in by_producer.items():
            assert [m.id for m in seen if m.client == name] == [id for batch in batches for id in batch]
        sequences = [message.sequence for message in seen]
        assert sequences == sorted(set(sequences))


def test_messages_of_one_post_are_adjacent(scene: Scene):
    made = run_together(*(partial(produce, scene, f"producer-{at}", POSTS) for at in range(PRODUCERS)))
    place = {message.id: at for at, message in enumerate(scene.walk())}
    assert len(place) == sum(len(batch) for batches in made for batch in batches)
    for batch in (batch for batches in made for batch in batches):
        assert [place[id] - place[batch[0]] for id in batch] == list(range(len(batch)))


def test_available_times_rise_with_sequences_under_any_clocks(scene: Scene):
    """The clocks of the servers differ by 50 ms. Messages without a delay still become available in sequence (L5)."""
    works = (partial(produce, scene, f"producer-{at}", POSTS, (at % 4) * 0.0166) for at in range(PRODUCERS))
    made = run_together(*works)
    scene.tick(0.05)
    fresh = [message for message in scene.walk() if message.available <= scene.now]
    moments = [message.available for message in fresh]
    assert moments == sorted(moments)
    assert scene.claimable(10000) == ids_of(fresh)
    assert len(fresh) == sum(len(batch) for batches in made for at, batch in enumerate(batches) if at % 5 != 4)


def test_concurrent_claims_share_no_message(scene: Scene):
    """Eight consumers empty the queue. Each message is delivered once, and each claim holds what it returned."""
    posted = scene.post(400)

    def claimer() -> list[tuple[str, list[str]]]:
        taken = []
        while (claim := scene.claim(7)) is not None:
            taken.append((claim.id, ids_of(claim.messages)))
        return taken

    claims = [claim for taken in run_together(*[claimer] * 8) for claim in taken]
    rest = scene.claimable()
    handed_out = [id for _, ids in claims for id in ids] + rest
    assert sorted(handed_out) == sorted(posted)
    assert scene.counts() == (400, 0)
    for claim, ids in claims:
        assert scene.held(claim) == sorted(ids)


def test_concurrent_pops_and_claims_share_no_message(scene: Scene):
    posted = scene.post(400)

    def popper() -> list[str]:
        popped: list[str] = []
        while some := scene.pop(5):
            popped += some
        return popped

    def claimer() -> list[str]:
        taken: list[str] = []
        while some := scene.claimable(5):
            taken += some
        return taken

    results = run_together(*[popper, claimer] * 4)
    claimed = [id for taken in results[1::2] for id in taken]
    popped = [id for taken in results[::2] for id in taken]
    rest = scene.pop()
    assert sorted(claimed + popped + rest) == sorted(posted)
    assert scene.counts() == (len(claimed), 0)
    assert sorted(ids_of(scene.walk())) == sorted(claimed)


def test_consumers_keep_up_with_producers_without_loss(scene: Scene):
    """Consumers that run concurrently with producers process each message exactly once and leave none."""
    stop = threading.Event()
    left = threading.Semaphore(0)

    def producer() -> list[str]:
        try:
            return [id for _ in range(40) for id in scene.post(3)]
        finally:
            left.release()

    def stopper() -> list[str]:
        for _ in range(3):
            left.acquire(timeout=DEADLINE)
        stop.set()
        return []

    def consumer() -> list[str]:
        worked: list[str] = []
        while True:
            finished = stop.is_set()
            claim = scene.claim(4)
            if claim is None and finished:
                return worked
            for message in claim.messages if claim else []:
                scene.delete(message.id, claim.id)
                worked.append(message.id)

    results = run_together(*[producer] * 3, *[consumer] * 4, stopper)
    posted = [id for some in results[:3] for id in some]
    worked = [id for some in results[3:] for id in some]
    assert sorted(worked) == sorted(posted)
    assert scene.is_empty()


def test_a_release_racing_a_delete_has_one_outcome(scene: Scene):
    """The holder deletes a message while another thread releases the claim: the message is either deleted or free."""
    for _ in range(30):
        [id] = scene.post(1)
        claim = scene.take(1)

        def delete(id: str = id, name: str = claim.id) -> str:
            try:
                scene.delete(id, name)
            except ClaimNotHeld:
                return "refused"
            return "deleted"

        outcome = run_together(delete, partial(scene.release, claim.id))[0]
        assert (outcome, scene.page()) in [("deleted", []), ("refused", [id])]
        scene.delete_many([id])
        assert scene.is_empty()


def test_a_lapsed_message_goes_to_one_new_holder(scene: Scene):
    """The former holder's renewal fails, and each message goes to only one of eight concurrent claims."""
    for _ in range(10):
        posted = scene.post(4)
        late = scene.take(4, ttl=60)
        scene.tick(60)

        def renew(name: str = late.id) -> list[str]:
            with pytest.raises(ClaimNotFound):
                scene.renew(name)
            return []

        taken = run_together(renew, *[partial(scene.claimable, 2)] * 8)
        rest = scene.claimable()
        assert sorted([id for some in taken for id in some] + rest) == sorted(posted)
        scene.storage.queues.purge(scene.queue)


def test_a_bulk_delete_racing_a_release_is_all_or_nothing(scene: Scene):
    """A bulk delete under two claims races the release of one: both messages are deleted, or both stay."""
    for _ in range(30):
        posted = scene.post(2)
        one, two = scene.take(1), scene.take(1)

        def delete(ids: list[str] = posted, names: tuple[str, str] = (one.id, two.id)) -> str:
            try:
                scene.delete_many(ids, names)
            except ClaimNotHeld:
                return "refused"
            return "deleted"

        outcome = run_together(delete, partial(scene.release, two.id))[0]
        left = sorted(ids_of(scene.walk()))
        assert (outcome, left) in [("deleted", []), ("refused", sorted(posted))]
        scene.storage.queues.purge(scene.queue)


def test_a_delete_with_a_foreign_claim_fails_before_the_holder_deletes(scene: Scene):
    for _ in range(20):
        [id] = scene.post(1)
        claim = scene.take(1)

        def stranger(id: str = id) -> bool:
            try:
                scene.delete(id)
            except MessageClaimed:
                return True
            return scene.get([id]) == []

        results = run_together(stranger, stranger, partial(scene.delete, id, claim.id))
        assert results[:2] == [True, True]
        assert scene.is_empty()


def test_concurrent_claims_bury_each_message_once(scene: Scene):
    posted = scene.post(100)
    scene.release(scene.take(100).id)
    grave = scene.at("dead")
    rule = DeadLetters(grave.queue, 1, None)
    assert run_together(*[partial(scene.claim, 5, dead_letters=rule)] * 8) == [None] * 8
    assert scene.claim(dead_letters=rule) is None
    assert scene.is_empty()
    assert sorted(ids_of(grave.walk())) == sorted(posted)
    assert sorted(grave.claimable()) == sorted(posted)


def test_dead_letter_queues_of_each_other_do_not_deadlock(scene: Scene):
    """Two queues bury into each other under load. All calls return, and each message is in exactly one queue."""
    other = scene.at("other")
    posted = scene.post(40) + other.post(40)

    def bury(here: Scene, there: Scene) -> None:
        for _ in range(25):
            claim = here.claim(4, dead_letters=DeadLetters(there.queue, 1, None))
            if claim is not None:
                here.release(claim.id)

    run_together(*[partial(bury, scene, other), partial(bury, other, scene)] * 3)
    assert sorted(ids_of(scene.walk()) + ids_of(other.walk())) == sorted(posted)
    assert scene.counts()[1] + other.counts()[1] == 80


@pytest.mark.fresh_store
def test_maintenance_during_other_calls_removes_no_living_message(scene: Scene):
    scene.post(200, ttl=60)
    scene.tick(59)

    def extend() -> list[str]:
        claim = scene.claim(100, ttl=600)
        return [] if claim is None else ids_of(claim.messages)

    def maintain() -> list[str]:
        for _ in range(20):
            scene.storage.maintain(scene.now + 1)
        return []

    def post() -> list[str]:
        return [id for _ in range(20) for id in scene.post(3)]

    results = run_together(extend, extend, maintain, post, post)
    scene.tick(1)
    kept = {id for some in results for id in some}
    listed = ids_of(scene.walk())
    assert len(listed) == len(kept)
    assert set(listed) == kept


def test_concurrent_first_posts_of_many_tenants_create_all_queues(storage: Storage, clock: ManualClock, project: str):
    rooms = [Scene(storage, clock, QueueRef(f"{project}.{at % 4}", f"q{at}")) for at in range(24)]
    run_together(*(partial(room.post, 2) for room in rooms))
    assert [room.counts() for room in rooms] == [(0, 2)] * 24
    assert [storage.queues.count(f"{project}.{at}") for at in range(4)] == [6] * 4


def test_messages_released_during_a_listing_are_in_the_next_listing(scene: Scene):
    for turn in range(12):
        room = scene.at(f"q{turn}")
        front = room.post(1000)
        claim = room.take(1000, ttl=6000)
        behind = room.post(3)
        free = partial(room.renew, claim.id, ttl=60) if turn % 2 else partial(room.release, claim.id)
        run_together(partial(room.page, ListFilter(), 3), free)
        room.tick(60 * (turn % 2))
        assert room.page(ListFilter(), 3) == front[:3]
        assert room.page(ListFilter(), 2000) == front + behind
