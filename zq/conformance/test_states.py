# SPDX-License-Identifier: Apache-2.0
"""Listings of the messages in one state, and lookup of a message's queue and state by its id."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from threading import Event

import pytest

from zq.conformance.builders import Scene, ids_of, run_together
from zq.core.redelivery import Redelivery
from zq.model import BrowsePage, ClaimRef, Message, Outcome, Position, Release, State

pytestmark = pytest.mark.pools

READY, DELAYED, CLAIMED = State
SMALL = 3
"""Number of messages of a page, small enough for many pages."""
MANY = 2100
"""More messages than a driver skips or reserves at once."""


def page(scene: Scene, state: State, after: Position = Position(), limit: int = 1000, **terms: int) -> BrowsePage:  # noqa: B008
    return scene.storage.messages.browse(scene.queue, state, after, limit, scene.now, **terms)


def pages(scene: Scene, state: State, limit: int = SMALL) -> Iterator[list[Message]]:
    """Yield one page after the other, each read when it is requested."""
    after: Position | None = Position()
    while after is not None:
        found = page(scene, state, after, limit)
        assert len(found.items) <= limit
        assert (found.next is None) == (not found.items)
        yield list(found.items)
        after = found.next


def every(scene: Scene, state: State, limit: int = SMALL) -> list[str]:
    return [message.id for some in pages(scene, state, limit) for message in some]


def test_listings_of_a_missing_and_an_empty_queue_are_empty(scene: Scene):
    for state in State:
        assert page(scene, state) == BrowsePage([], None)
    scene.storage.queues.create(scene.queue, b"{}")
    for state in State:
        assert page(scene, state) == BrowsePage([], None)


def test_each_message_is_in_one_state(scene: Scene):
    """Pages show the same messages as reads by id, and no messages of other queues."""
    scene.at("other").post(2)
    scene.at("other").post(2, delay=60)
    scene.at("other").take(1)
    scene.post(2)
    claimed = ids_of(scene.take(2).messages)
    ready, delayed = scene.post(3), scene.post(4, delay=60)
    assert (every(scene, READY), every(scene, DELAYED), every(scene, CLAIMED)) == (ready, delayed, claimed)
    for state in State:
        items = list(page(scene, state).items)
        assert items == scene.get(ids_of(items))
        assert {message.state(scene.now) for message in items} == {state}


def mixed(scene: Scene) -> None:
    """Post ready messages of all kinds: fresh, formerly delayed, released, lapsed and moved."""
    scene.post(7, delay=30)
    scene.post(9)
    scene.tick(10)
    scene.post(5)
    scene.take(4, ttl=60)
    first = scene.take(6)
    scene.release(first.id)
    scene.tick(25)
    scene.post(3)
    second = scene.take(6, redelivery=Redelivery(20, cap=900))
    scene.settle(second.id, release=[Release(message.id, 15 + at) for at, message in enumerate(second.messages[:4])])
    scene.tick(30)
    other = scene.at("other")
    other.move(other.post(3), scene.queue.name)
    scene.release(second.id)
    scene.tick(10)
    scene.post(4)
    scene.tick(20)


@pytest.mark.parametrize("limit", [1, 2, 5, 1000])
def test_ready_messages_are_listed_in_the_order_of_claims(scene: Scene, limit: int):
    """A claim takes the messages in the listed order."""
    mixed(scene)
    listed = every(scene, READY, limit)
    assert len(listed) == 31
    assert scene.claimable() == listed


@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_delayed_messages_are_listed_by_available_time(scene: Scene, limit: int):
    """Delayed posts, releases and redeliveries are listed in the order in which claims take them."""
    for delay in (50, 20, 90, 20):
        scene.post(3, delay=delay)
    scene.post(8)
    scene.take(2, ttl=300)
    scene.release(scene.take(2).id, 70)
    scene.release(scene.take(2, redelivery=Redelivery(40, cap=900)).id)
    scene.take(1, ttl=60, redelivery=Redelivery(100, cap=900))
    scene.tick(60)
    listed = every(scene, DELAYED, limit)
    assert len(listed) == 6
    scene.claimable()
    scene.tick(110)
    assert scene.claimable() == listed


def test_claimed_messages_are_listed_in_sequence(scene: Scene):
    """The ends of the claims do not affect the order. Messages that leave a claim are not listed."""
    posted = scene.post(9)
    claims = [scene.take(3, ttl=ttl) for ttl in (300, 60, 200)]
    assert every(scene, CLAIMED) == posted
    scene.tick(100)
    scene.settle(claims[2].id, delete=[posted[6]])
    assert every(scene, CLAIMED) == [*posted[:3], *posted[7:]]
    assert every(scene, READY) == posted[3:6]


def test_thousands_of_claimed_messages_are_listed_in_sequence(scene: Scene):
    posted = scene.post(7500)
    claims = [scene.take(limit, ttl=ttl) for limit, ttl in ((1500, 300), (1500, 120), (1500, 500), (1500, 200))]
    scene.release(claims[2].id)
    scene.tick(60)
    assert every(scene, CLAIMED, 700) == posted[:3000] + posted[4500:6000]
    scene.tick(60)
    assert every(scene, CLAIMED, 700) == posted[:1500] + posted[4500:6000]


def test_a_renewed_claim_moves_nothing(scene: Scene):
    """A reader of claimed messages gets each message once, even if all claims are renewed during its reads."""
    posted = scene.post(8)
    claims = [scene.take(2) for _ in range(4)]
    met = []
    for some in pages(scene, CLAIMED):
        met += ids_of(some)
        for claim in claims:
            scene.renew(claim.id, ttl=600)
    assert met == posted


def test_pages_during_claims_posts_and_releases_repeat_nothing(scene: Scene):
    """Messages that stay ready are listed once and in order, while others are claimed, posted and released."""
    posted = scene.post(30)
    scene.tick(1)
    met = []
    for turn, some in enumerate(pages(scene, READY)):
        met += ids_of(some)
        taken = scene.take(2)
        scene.tick(1)
        if turn < 8:
            scene.post(1)
        scene.release(taken.id)
        scene.delete(posted[-1])
        scene.delete(met[0])
    assert met[:29] == posted[:29]
    assert len(set(met)) == len(met)


def test_pages_of_delayed_messages_during_posts_skip_nothing(scene: Scene):
    posted = [id for delay in range(100, 130) for id in scene.post(1, delay=delay)]
    scene.post(4)
    met = []
    for some in pages(scene, DELAYED):
        met += ids_of(some)
        scene.post(1, delay=50)
        scene.post(1)
        scene.release(scene.take(1).id, 60)
    assert met == posted


def test_pages_next_to_workers_show_untouched_messages_once(scene: Scene):
    scene.post(20)
    scene.tick(1)
    kept, waiting = scene.post(40), scene.post(40, delay=200)
    over = Event()

    @contextmanager
    def ends() -> Iterator[None]:
        try:
            yield
        finally:
            over.set()

    def work() -> None:
        for turn in cycle((0, 1)):
            if over.is_set():
                return
            claim = scene.take(5)
            scene.release(claim.id)
            scene.post(1, delay=turn)

    def look() -> None:
        with ends():
            for _ in range(5):
                seen = every(scene, READY, 7)
                assert [id for id in seen if id in kept] == kept
                assert len(set(seen)) == len(seen)
                assert [id for id in every(scene, DELAYED, 7) if id in waiting] == waiting

    run_together(work, work, look)


@pytest.mark.parametrize("state", State)
def test_expired_messages_are_in_no_state(scene: Scene, state: State):
    scene.post(MANY, ttl=60)
    scene.post(MANY, ttl=60, delay=50)
    scene.tick(1)
    ready, delayed = scene.post(2, ttl=600), scene.post(2, ttl=600, delay=300)
    scene.tick(60)
    assert every(scene, state) == {READY: ready, DELAYED: delayed, CLAIMED: []}[state]


def test_messages_of_a_lapsed_claim_are_ready(scene: Scene):
    posted = scene.post(3)
    scene.take(2, ttl=60)
    scene.tick(60)
    assert (every(scene, READY), every(scene, CLAIMED)) == ([posted[2], *posted[:2]], [])
    assert scene.claimable() == [posted[2], *posted[:2]]


def test_a_message_from_a_faster_clock_is_delayed_for_a_slower_one(scene: Scene):
    """If the clocks of two servers differ, a message can be delayed for one server and ready for the other."""
    early = scene.post(4)
    scene.tick(2)
    late = scene.post(5)
    after, met, behind = Position(), [], scene.now - 1
    while (found := scene.storage.messages.browse(scene.queue, DELAYED, after, SMALL, behind)).next is not None:
        met += ids_of(found.items)
        after = found.next
    assert met == late
    found = scene.storage.messages.browse(scene.queue, READY, Position(), 100, behind)
    assert ids_of(found.items) == early


@pytest.mark.parametrize("count", [4, MANY])
def test_messages_of_a_decided_commit_are_not_ready(scene: Scene, count: int):
    """The messages stay claimed after the end of their claim."""
    posted = scene.post(count + 1)
    claim = scene.take(count, ttl=60)
    scene.decide(1, settle=[ClaimRef(scene.queue, claim.id)])
    scene.tick(70)
    for _ in range(2):
        assert every(scene, READY) == posted[count:]
        assert every(scene, DELAYED) == []
    kept = every(scene, CLAIMED, 1000)
    assert kept
    assert kept == posted[count - len(kept) : count]
    while scene.continue_commit(1000):
        pass
    assert (every(scene, READY), every(scene, CLAIMED)) == (posted[count:], [])


def test_a_page_of_a_state_respects_the_bytes_limit(scene: Scene):
    posted = scene.post(12)
    for state, take in ((READY, False), (CLAIMED, True)):
        if take:
            scene.take(12)
        met, after = [], Position()
        while (found := page(scene, state, after, max_bytes=4)).next is not None:
            assert 1 <= len(found.items) <= 4
            met += ids_of(found.items)
            after = found.next
        assert met == posted
        assert len(page(scene, state, max_bytes=0).items) == 1


def test_positions_beyond_the_end_give_an_empty_page(scene: Scene):
    scene.post(2)
    scene.post(2, delay=60)
    scene.take(1)
    for far in (1 << 50, (1 << 63) - 1):
        for state in State:
            assert page(scene, state, Position(far, far, far)) == BrowsePage([], None)


def test_browsing_changes_nothing(scene: Scene):
    """Reading changes neither claim counts nor the order."""
    mixed(scene)
    before = {message.id: message for message in scene.walk()}
    for state in State:
        every(scene, state)
    assert {message.id: message for message in scene.walk()} == before


def located(scene: Scene, message: str) -> tuple[str, Outcome | None] | None:
    found = scene.storage.locate(scene.queue.project, message, scene.now)
    if found is None:
        return None
    assert found.entry.message.id == message
    assert found.queue.project == scene.queue.project
    return found.queue.name, found.entry.outcome


def test_a_message_is_found_by_its_id_alone(scene: Scene):
    """A message is found in any queue and state, and in its new queue after a move."""
    name, other = scene.queue.name, scene.at("other")
    [ready], [delayed], [away] = scene.post(1), scene.post(1, delay=60), other.post(1)
    assert [located(scene, id) for id in (ready, delayed, away)] == [(name, None), (name, None), ("other", None)]
    assert scene.take(1).messages[0].id == ready
    found = scene.storage.locate(scene.queue.project, ready, scene.now)
    assert found is not None
    assert found.entry.message == scene.one(ready)
    other.move([away], name)
    assert located(scene, away) == (name, None)


def test_a_message_is_not_found_in_another_project(scene: Scene):
    [id] = scene.post(1)
    stranger = scene.at(scene.queue.name, scene.queue.project + "x")
    stranger.post(1)
    assert located(stranger, id) is None
    for unknown in ("0" * 32, "", "~", "\ud800", "x" * 200):
        assert located(scene, unknown) is None


def test_a_removed_message_without_history_is_not_located(scene: Scene):
    [short], [deleted], [purged] = scene.post(1, ttl=60), scene.post(1), scene.post(1)
    scene.delete(deleted)
    scene.tick(60)
    assert [located(scene, id) for id in (short, deleted)] == [None, None]
    scene.storage.queues.purge(scene.queue)
    assert located(scene, purged) is None


def test_a_finished_message_is_found_in_history(scene: Scene):
    """The latest history entry is found: after a move, the entry of the queue where the message finished."""
    name, other = scene.queue.name, scene.at("other")
    assert scene.history() == []
    kept, moved = scene.post(2)
    scene.delete(kept, history=600)
    scene.move([moved], "other", history=600)
    assert located(scene, kept) == (name, Outcome.DELETED)
    assert located(scene, moved) == ("other", None)
    other.pop(history=600)
    assert located(scene, moved) == ("other", Outcome.POPPED)
    scene.tick(600)
    assert located(scene, kept) is None
