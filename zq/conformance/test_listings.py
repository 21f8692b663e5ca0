# SPDX-License-Identifier: Apache-2.0
"""Listings: views, markers and full pages (contract 7.3), behind any number of hidden messages."""

from collections.abc import Callable

import pytest

from zq.conformance.builders import EVERYTHING, Scene, ids_of
from zq.model import ListFilter

pytestmark = pytest.mark.pools

MANY = 3000
"""More messages than any block that a driver skips at once."""


def test_a_listing_shows_ready_messages_in_sequence(scene: Scene):
    """The default view hides claimed and delayed messages and nothing else."""
    posted = scene.post(3)
    scene.take(1)
    scene.post(2, delay=60)
    assert scene.page() == posted[1:]


def test_the_next_marker_is_the_last_sequence(scene: Scene):
    """A page continues after the sequence of its last message; only an empty page has no next."""
    scene.post(5)
    page = scene.storage.messages.list(scene.queue, 0, 3, ListFilter(), scene.now)
    assert page.next == str(page.items[-1].sequence)
    rest = scene.storage.messages.list(scene.queue, int(page.next), 3, ListFilter(), scene.now)
    assert len(rest.items) == 2
    assert rest.next == str(rest.items[-1].sequence)
    end = scene.storage.messages.list(scene.queue, int(rest.next), 3, ListFilter(), scene.now)
    assert (end.items, end.next) == ([], None)


def test_a_marker_beyond_the_end_shows_nothing(scene: Scene):
    """Any non-negative integer is a valid marker."""
    [id] = scene.post()
    for marker in [scene.one(id).sequence, 10**9, 2**53, 2**63 - 1]:
        assert scene.page(marker=marker) == []


def test_a_marker_outlives_its_message(scene: Scene):
    """Deleting or claiming a marker's message does not change where the next page starts."""
    posted = scene.post(6)
    marker = scene.one(posted[2]).sequence
    scene.delete(posted[2])
    scene.take(2)
    assert scene.page(marker=marker) == posted[3:]
    scene.delete_many(posted)
    assert scene.page(marker=marker) == []
    later = scene.post(2)
    assert scene.page(marker=marker) == later


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
def test_pages_by_marker_show_every_message_once(scene: Scene, limit: int):
    posted = scene.post(6) + scene.post(2, delay=60) + scene.post(2)
    scene.take(3)
    assert ids_of(scene.walk(EVERYTHING, limit)) == posted
    assert ids_of(scene.walk(ListFilter(), limit)) == posted[3:6] + posted[8:]


CLIENTS = ["alice", "bob"]


def one_of_each(scene: Scene, **terms: int) -> list[str]:
    """Post one message of each client."""
    return [scene.post(1, client=client, **terms)[0] for client in CLIENTS]


@pytest.mark.parametrize("without", ["", "alice", "bob", "carol"])
def test_each_view_shows_exactly_its_states(scene: Scene, without: str):
    """Filters by client, claimed and delayed combine. Released, lapsed and formerly delayed messages are ready."""
    released = one_of_each(scene)
    scene.release(scene.take(2).id)
    lapsed = one_of_each(scene)
    assert ids_of(scene.take(4, ttl=50).messages) == released + lapsed
    claimed = one_of_each(scene)
    scene.take(2, ttl=500)
    delayed = one_of_each(scene, delay=500)
    due = one_of_each(scene, delay=50)
    ready = one_of_each(scene)
    one_of_each(scene, ttl=50)
    scene.tick(50)
    for view in [ListFilter(without, some, others) for some in (False, True) for others in (False, True)]:
        groups = [released, lapsed, claimed * view.claimed, delayed * view.delayed, due, ready]
        expected = [id for ids in groups for id, client in zip(ids, CLIENTS, strict=False) if client != without]
        for limit in (1, 3, 100):
            assert ids_of(scene.walk(view, limit)) == expected
            assert scene.page(view, limit) == expected[:limit]


def test_pages_are_full_if_enough_messages_match(scene: Scene):
    """Filters apply before the limit: hidden messages never make a page short."""
    for _ in range(20):
        scene.post(1, client="alice")
        scene.post(1, delay=600)
        scene.post(1, client="bob")
    page = scene.storage.messages.list(scene.queue, 0, 15, ListFilter(without="alice"), scene.now)
    assert [message.client for message in page.items] == ["bob"] * 15
    rest = scene.storage.messages.list(scene.queue, int(page.next or 0), 15, ListFilter(without="alice"), scene.now)
    assert [message.client for message in rest.items] == ["bob"] * 5


def test_a_delayed_view_does_not_show_claimed_messages(scene: Scene):
    """A claimed message whose hold ends later is not delayed. A lapsed message is neither claimed nor delayed."""
    posted = scene.post(1)
    scene.take(ttl=60)
    assert scene.page(ListFilter(delayed=True)) == []
    assert scene.page(ListFilter(claimed=True)) == posted
    scene.tick(60)
    assert scene.page(ListFilter()) == posted


def claimed_in_front(scene: Scene) -> tuple[list[str], Callable[[], object]]:
    front = scene.post(MANY)
    claims = [scene.take(1000, ttl=600).id for _ in range(3)]
    return front, lambda: [scene.release(claim) for claim in claims]


def lapsing_in_front(scene: Scene) -> tuple[list[str], Callable[[], object]]:
    front = scene.post(MANY)
    for _ in range(3):
        scene.take(1000, ttl=600)
    return front, lambda: scene.tick(600)


def renewed_in_front(scene: Scene) -> tuple[list[str], Callable[[], object]]:
    front = scene.post(MANY)
    claims = [scene.take(1000, ttl=40000).id for _ in range(3)]

    def reveal() -> None:
        for claim in claims:
            scene.renew(claim, ttl=60)
        scene.tick(60)

    return front, reveal


def delayed_in_front(scene: Scene) -> tuple[list[str], Callable[[], object]]:
    return scene.post(MANY, delay=600), lambda: scene.tick(600)


HIDDEN = pytest.mark.parametrize("hide", [claimed_in_front, lapsing_in_front, renewed_in_front, delayed_in_front])


@HIDDEN
def test_messages_behind_thousands_of_hidden_ones_are_listed(scene: Scene, hide):
    front, _ = hide(scene)
    behind = scene.post(5)
    for _ in range(3):
        assert scene.page(ListFilter(), 5) == behind
        assert scene.page(ListFilter(), 3) == behind[:3]
        assert scene.page(ListFilter(), 2, marker=scene.one(front[1500]).sequence) == behind[:2]
    assert ids_of(scene.walk(EVERYTHING)) == front + behind


@HIDDEN
def test_hidden_messages_are_listed_again_when_they_are_ready(scene: Scene, hide):
    front, reveal = hide(scene)
    behind = scene.post(5)
    assert scene.page(ListFilter(), 5) == behind
    assert scene.page(ListFilter(), 5) == behind
    reveal()
    assert scene.page(ListFilter(), 5) == front[:5]
    assert scene.page(ListFilter(), 10, marker=scene.one(front[2995]).sequence) == front[2996:] + behind
    assert ids_of(scene.walk(ListFilter())) == front + behind


def test_one_message_in_a_hidden_block_is_listed_when_it_is_ready(scene: Scene):
    front = scene.post(MANY)
    claims: dict[int, str] = {}
    for place in range(0, MANY, 500):
        claims[place] = scene.take(1, ttl=5000).id
        scene.take(499, ttl=9000)
    due = scene.post(1, delay=300) + scene.post(MANY, delay=900)
    behind = scene.post(2)
    assert scene.page(ListFilter(), 5) == behind
    scene.release(claims[1500])
    assert scene.page(ListFilter(), 5) == [front[1500], *behind]
    scene.renew(claims[2500], ttl=60)
    assert scene.page(ListFilter(), 5) == [front[1500], *behind]
    scene.tick(60)
    assert scene.page(ListFilter(), 5) == [front[1500], front[2500], *behind]
    scene.tick(240)
    assert scene.page(ListFilter(), 5) == [front[1500], front[2500], *due[:1], *behind]


def test_a_longer_renewal_keeps_a_hidden_block_hidden(scene: Scene):
    """The messages appear at the claim's new expiry, even if a listing has already used the first one."""
    front = scene.post(2500)
    first, second, third = (scene.take(1000, ttl=60).id for _ in range(3))
    behind = scene.post(2)
    assert scene.page(ListFilter(), 5) == behind
    for claim in (first, second, third):
        scene.renew(claim, ttl=600)
    scene.tick(60)
    assert scene.page(ListFilter(), 5) == behind
    scene.tick(540)
    assert scene.page(ListFilter(), 5) == front[:5]


def test_messages_skipped_by_one_view_are_visible_in_another(scene: Scene):
    claimed = scene.post(2200)
    for _ in range(3):
        scene.take(1000)
    delayed = scene.post(2200, delay=600, client="bob")
    ready = scene.post(3)
    for _ in range(2):
        assert scene.page(ListFilter(), 10) == ready
        assert scene.page(ListFilter(claimed=True), 10) == claimed[:10]
        assert scene.page(ListFilter(delayed=True), 10) == delayed[:10]
        assert scene.page(ListFilter(without="alice"), 10) == []
        assert scene.page(ListFilter(without="alice", delayed=True), 10) == delayed[:10]
        assert scene.page(ListFilter(without="bob", delayed=True), 10) == ready
        assert scene.page(EVERYTHING, 10, marker=scene.one(claimed[-4]).sequence) == claimed[-3:] + delayed[:7]


def test_expired_messages_in_front_never_make_a_page_short(scene: Scene):
    scene.post(MANY, ttl=60)
    behind = scene.post(5)
    scene.tick(60)
    for _ in range(2):
        assert scene.page(ListFilter(), 5) == behind
        assert scene.page(EVERYTHING, 5) == behind


def test_a_large_page_holds_a_thousand_messages(scene: Scene):
    posted = scene.post(1500)
    assert scene.page(ListFilter(), 1000) == posted[:1000]
    assert ids_of(scene.walk(ListFilter(), 1000)) == posted
