# SPDX-License-Identifier: Apache-2.0
"""Verbs that return messages keep to ``max_bytes`` and neither lose nor skip messages."""

from collections.abc import Callable, Sequence

import pytest

from zq.conformance.builders import EVERYTHING, FAR, Scene, ids_of, run_together
from zq.core import redelivery
from zq.core.redelivery import DeadLetters
from zq.model import (
    ClaimRequest,
    Draft,
    Grouping,
    HistoryEntry,
    Lease,
    ListFilter,
    Message,
    Position,
    QueueRef,
    Span,
    State,
    new_ids,
)

Taking = Callable[[Scene, int, int], Sequence[Message]]


def post(scene: Scene, *sizes: int) -> list[str]:
    """Post messages with bodies of these sizes; return their ids."""
    new = [
        Draft(id, b"1" * size, 3600, 0, "alice") for id, size in zip(new_ids(len(sizes), scene.now), sizes, strict=True)
    ]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return ids_of(new)


def post_with_attributes(scene: Scene, *sizes: int) -> list[str]:
    """Post messages with a body of one byte and attributes, each of its own group; return their ids."""
    new = [
        Draft(id, b"1", 3600, 0, "alice", attributes=b"a" * (size - 1), group=id)
        for id, size in zip(new_ids(len(sizes), scene.now), sizes, strict=True)
    ]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return ids_of(new)


def lease(scene: Scene, end: str = "") -> Lease:
    return Lease(new_ids(1, scene.now)[0] + end, 300, 60)


def claim(scene: Scene, limit: int, max_bytes: int) -> Sequence[Message]:
    request = ClaimRequest(lease(scene), limit, max_bytes=max_bytes)
    made = scene.storage.claims.create(scene.queue, request, scene.now).claim
    return made.messages if made else []


def named(scene: Scene, limit: int, max_bytes: int) -> Sequence[Message]:
    request = ClaimRequest(lease(scene, ".n"), limit, named=True, max_bytes=max_bytes)
    made = scene.storage.claims.create(scene.queue, request, scene.now).claim
    return made.messages if made else []


def pop(scene: Scene, limit: int, max_bytes: int) -> Sequence[Message]:
    return scene.storage.messages.pop(scene.queue, limit, scene.now, max_bytes=max_bytes)


def pop_with_history(scene: Scene, limit: int, max_bytes: int) -> Sequence[Message]:
    return scene.storage.messages.pop(scene.queue, limit, scene.now, 600, max_bytes)


taking = pytest.mark.parametrize("take", [claim, named, pop, pop_with_history])


@taking
@pytest.mark.parametrize(
    ("sizes", "shares"),
    [
        ((40, 40, 40, 40, 40), [2, 2, 1]),
        ((50, 50, 1, 99, 1), [2, 2, 1]),
        ((99, 40, 1, 60, 30), [1, 2, 2]),
        ((500, 1, 500, 500), [1, 1, 1, 1]),
    ],
)
def test_messages_within_the_bytes_limit_are_returned_without_skips(
    scene: Scene, take: Taking, sizes: tuple[int, ...], shares: list[int]
) -> None:
    """A call with a limit of 100 bytes returns as many messages as fit, but at least one.

    The next call continues where the last one ended. Messages that were not returned stay ready, including a small one
    behind a large one.
    """
    posted = post(scene, *sizes)
    taken: list[str] = []
    for share in shares:
        found = take(scene, 10, 100)
        assert len(found) == share
        taken += ids_of(found)
        assert taken == posted[: len(taken)]
        assert scene.page() == posted[len(taken) :]
    assert not take(scene, 10, 100)


@taking
@pytest.mark.parametrize(("max_bytes", "share"), [(10_000, 100), (800, 80), (401, 40), (320, 32), (10, 1)])
def test_many_small_messages_are_returned_up_to_the_count_or_bytes_limit(
    scene: Scene, take: Taking, max_bytes: int, share: int
) -> None:
    posted = post(scene, *[10] * 120)
    assert ids_of(take(scene, 100, max_bytes)) == posted[:share]
    assert ids_of(take(scene, 120, 10_000)) == posted[share:]


@taking
@pytest.mark.parametrize("grouping", Grouping)
def test_attributes_count_towards_the_bytes_limit(scene: Scene, take: Taking, grouping: Grouping) -> None:
    scene.storage.queues.create(scene.queue, b"{}", grouping)
    posted = post_with_attributes(scene, 40, 60, 1, 99, 500, 2000, *[10] * 40)
    taken = [ids_of(take(scene, 100, 100)) for _ in range(9)]
    assert [len(each) for each in taken] == [2, 2, 1, 1, 10, 10, 10, 10, 0]
    assert [id for each in taken for id in each] == posted


def test_a_claim_holds_exactly_the_messages_that_it_returned(scene: Scene) -> None:
    """Messages that did not fit stay ready for other claims, and a release returns only the claim's own messages."""
    posted = post(scene, 60, 60, 60)
    terms = lease(scene)
    made = scene.storage.claims.create(scene.queue, ClaimRequest(terms, 10, max_bytes=130), scene.now).claim
    assert made is not None
    assert ids_of(made.messages) == posted[:2]
    assert scene.held(terms.claim) == sorted(posted[:2])
    assert ids_of(claim(scene, 10, 130)) == posted[2:]
    scene.release(terms.claim)
    assert ids_of(claim(scene, 10, 130)) == posted[:2]


def test_a_returned_message_is_claimed_first_with_a_bytes_limit(scene: Scene) -> None:
    posted = post(scene, *[30] * 6)
    first = scene.take(1)
    assert ids_of(claim(scene, 10, 70)) == posted[1:3]
    scene.release(first.id)
    assert ids_of(claim(scene, 10, 70)) == [posted[0], posted[3]]
    assert ids_of(claim(scene, 10, 70)) == posted[4:]


def test_used_up_messages_over_the_bytes_limit_are_buried(scene: Scene) -> None:
    """A claim that finds only used-up messages searches on and returns messages behind them."""
    spent = post(scene, 60, 60, 60)
    scene.release(scene.take().id)
    fresh = post(scene, 60, 60)
    letters = DeadLetters(QueueRef(scene.queue.project, "dead"), 1, None)
    request = ClaimRequest(lease(scene), 10, max_claims=letters.max_claims, max_bytes=100)
    made = redelivery.claim(scene.storage, scene.queue, request, letters, scene.now).claim
    assert made is not None
    assert ids_of(made.messages) == fresh[:1]
    assert scene.at("dead").page() == spent


def test_concurrent_claims_with_a_bytes_limit_take_each_message_once(scene: Scene) -> None:
    posted = post(scene, *[30] * 40)

    def work() -> list[str]:
        mine: list[str] = []
        while found := claim(scene, 10, 100):
            assert len(found) <= 3
            mine += ids_of(found)
        return mine

    taken = [id for mine in run_together(*[work] * 6) for id in mine]
    assert sorted(taken) == sorted(posted)


@pytest.mark.parametrize("hidden", [0, 1200])
def test_a_page_over_the_bytes_limit_ends_early_and_its_marker_continues(scene: Scene, hidden: int) -> None:
    if hidden:
        scene.post(hidden, client="me")
    posted = post(scene, 40, 40, 40, 500, 1, 99, 1)
    pages: list[list[str]] = []
    marker = 0
    while True:
        page = scene.storage.messages.list(scene.queue, marker, 1000, ListFilter(without="me"), scene.now, 100)
        if page.next is None:
            break
        pages.append(ids_of(page.items))
        marker = int(page.next)
    assert [len(page) for page in pages] == [2, 1, 1, 2, 1]
    assert [id for page in pages for id in page] == posted


def test_a_page_between_hidden_messages_respects_the_bytes_limit(scene: Scene) -> None:
    """Between the messages of the page are more hidden messages than a driver skips at a time."""
    ours = post(scene, 60)
    scene.post(1200, client="me")
    ours += post(scene, 60, 30)
    view = ListFilter(without="me")
    first = scene.storage.messages.list(scene.queue, 0, 10, view, scene.now, 100)
    assert ids_of(first.items) == ours[:1]
    assert ids_of(scene.storage.messages.list(scene.queue, int(first.next), 10, view, scene.now, 100).items) == ours[1:]


@pytest.mark.parametrize("hidden", [0, 1200])
def test_attributes_count_towards_the_bytes_limit_of_a_page(scene: Scene, hidden: int) -> None:
    ours = post_with_attributes(scene, 60)
    if hidden:
        scene.post(hidden, client="me")
    ours += post_with_attributes(scene, 50, 50, 1, 99, 2000, *[10] * 10)
    pages: list[list[str]] = []
    marker = 0
    while True:
        page = scene.storage.messages.list(scene.queue, marker, 1000, ListFilter(without="me"), scene.now, 100)
        if page.next is None:
            break
        pages.append(ids_of(page.items))
        marker = int(page.next)
    assert [len(page) for page in pages] == [1, 2, 2, 1, 10]
    assert [id for page in pages for id in page] == ours


@pytest.mark.parametrize("state", State)
def test_attributes_count_towards_the_bytes_limit_of_a_page_of_a_state(scene: Scene, state: State) -> None:
    posted = post_with_attributes(scene, 50, 50, 1, 99, 2000, *[10] * 10)
    if state is not State.READY:
        claimed = scene.take(len(posted))
        if state is State.DELAYED:
            scene.storage.claims.release(scene.queue, claimed.id, scene.now, 60)
    pages: list[list[str]] = []
    after = Position()
    while True:
        page = scene.storage.messages.browse(scene.queue, state, after, 1000, scene.now, 100)
        if page.next is None:
            break
        pages.append(ids_of(page.items))
        after = page.next
    assert [len(page) for page in pages] == [2, 2, 1, 10]
    assert [id for page in pages for id in page] == posted


def finished(scene: Scene, marker: int) -> tuple[Sequence[HistoryEntry], str | None]:
    page = scene.storage.history.list(scene.queue, marker, 1000, Span(0.0, FAR), scene.now, 100)
    return page.items, page.next


def living_and_finished(scene: Scene, marker: int) -> tuple[Sequence[HistoryEntry], str | None]:
    page = scene.storage.history.list(scene.queue, marker, 1000, None, scene.now, 100)
    return page.items, page.next


@pytest.mark.parametrize(("read", "popped"), [(finished, 7), (living_and_finished, 7), (living_and_finished, 4)])
@pytest.mark.parametrize("post", [post, post_with_attributes])
def test_a_history_page_over_the_bytes_limit_ends_early(
    scene: Scene, read: Callable, popped: int, post: Callable
) -> None:
    """The limit counts bodies and attributes. It also applies to pages of living and finished messages."""
    posted = post(scene, 40, 40, 40, 500, 1, 99, 1)
    scene.pop(popped, history=600)
    pages: list[list[str]] = []
    marker = 0
    while True:
        items, beyond = read(scene, marker)
        if beyond is None:
            break
        pages.append(ids_of(item.message for item in items))
        marker = int(beyond)
    assert [len(page) for page in pages] == [2, 1, 1, 2, 1]
    assert [id for page in pages for id in page] == posted


def test_a_page_of_exactly_the_bytes_limit_is_complete(scene: Scene) -> None:
    posted = post(scene, *[10] * 120)
    page = scene.storage.messages.list(scene.queue, 0, 120, EVERYTHING, scene.now, 1200)
    assert ids_of(page.items) == posted
