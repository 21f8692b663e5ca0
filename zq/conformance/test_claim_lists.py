# SPDX-License-Identifier: Apache-2.0
"""The list of live claims and their holders."""

import pytest

from zq.conformance.builders import Scene, near
from zq.model import ClaimRequest, ClaimSummary, Holder, Lease, QueueRef, Release

pytestmark = pytest.mark.pools

WHO = Holder("a" * 32, "tool/1 <script>\u202e")
OTHER = Holder("b" * 32, "")


def claims(scene: Scene, limit: int = 100, whole_project: bool = False) -> list[ClaimSummary]:
    """Return all claims of the queue or of its project, read in pages of ``limit``."""
    found, after = [], ""
    while True:
        queue = "" if whole_project else scene.queue.name
        page = scene.storage.claims.list(scene.queue.project, after, limit, scene.now, queue)
        assert len(page.items) <= limit
        found += page.items
        if page.next is None:
            return found
        assert page.next != after
        after = page.next


def names(found: list[ClaimSummary]) -> list[tuple[str, str]]:
    return sorted((one.queue, one.id) for one in found)


def test_a_claim_is_listed_with_its_holder(scene: Scene) -> None:
    """The claim is listed until its release, and after a renewal with its new expiry time."""
    scene.post(100)
    scene.take(70, name="a", ttl=60, holder=WHO)
    began = scene.now
    [found] = claims(scene)
    assert found == ClaimSummary("a", scene.queue.name, WHO, near(began), near(began + 60), 70)
    scene.tick(10)
    scene.renew("a", ttl=300)
    [found] = claims(scene)
    assert found == ClaimSummary("a", scene.queue.name, WHO, near(scene.now), near(scene.now + 300), 70)
    scene.release("a")
    assert claims(scene) == []


def test_a_listed_claim_counts_its_messages(scene: Scene) -> None:
    """Deleted, moved and released messages do not count; a claim without messages is not listed."""
    ids = scene.post(6)
    scene.take(6, name="a", holder=WHO)
    scene.settle("a", delete=ids[:2], release=[Release(ids[2])])
    assert [(one.id, one.messages, one.holder) for one in claims(scene)] == [("a", 3, WHO)]
    scene.settle("a", delete=ids[3:])
    assert claims(scene) == []


def test_a_claim_read_by_id_has_its_holder(scene: Scene) -> None:
    """The result has the same holder as the listing, even if the holder is unknown."""
    scene.post(2)
    scene.take(1, name="a", holder=WHO)
    scene.take(1, name="b")
    told = [scene.storage.claims.get(scene.queue, name, scene.now).holder for name in "ab"]
    assert told == [WHO, Holder()]
    assert {one.id: one.holder for one in claims(scene)} == {"a": WHO, "b": Holder()}


def test_pages_neither_skip_nor_repeat(scene: Scene) -> None:
    scene.post(60)
    for number in range(20):
        scene.take(2, name=f"c{number:02}", ttl=60 if number % 2 else 120, holder=WHO)
    scene.tick(61)
    found = names(claims(scene, 3))
    assert found == [(scene.queue.name, f"c{number:02}") for number in range(0, 20, 2)]


def test_a_new_claim_of_a_name_shows_its_own_holder(scene: Scene) -> None:
    """A claim that reuses the name of a lapsed one has the new holder; a repeat does not change the holder."""
    scene.post(3)
    scene.named("a", 1, ttl=60, holder=OTHER)
    scene.named("a", 1, ttl=60, holder=WHO)
    assert [one.holder for one in claims(scene)] == [OTHER]
    scene.tick(61)
    scene.named("a", 3, ttl=60, holder=WHO)
    [found] = claims(scene)
    assert (found.holder, found.messages) == (WHO, 3)


def test_a_new_claim_with_an_unknown_holder_shows_no_earlier_holder(scene: Scene) -> None:
    scene.post(2)
    scene.named("a", 1, ttl=60, holder=OTHER)
    scene.tick(61)
    scene.named("a", 2, ttl=60)
    [found] = claims(scene)
    assert (found.holder, found.messages) == (Holder(), 2)
    scene.tick(61)
    scene.take(2, name="b", holder=WHO)
    scene.release("b")
    scene.take(2, name="c")
    assert [(one.id, one.holder) for one in claims(scene)] == [("c", Holder())]


def test_lapsed_messages_are_not_counted_in_a_claim(scene: Scene) -> None:
    """Messages of a lapsed claim do not count, even if a live claim has the same name."""
    scene.post(1)
    scene.named("a", 1, ttl=60, holder=OTHER)
    scene.tick(61)
    scene.storage.messages.delete(scene.queue, scene.claimable(), scene.now)
    scene.post(2)
    scene.named("a", 1, ttl=60, holder=WHO)
    assert [(one.id, one.messages) for one in claims(scene)] == [("a", 1)]


def test_expired_messages_are_not_counted_in_a_claim(scene: Scene) -> None:
    """A claim without living messages is not listed."""
    scene.post(2, ttl=60)
    scene.post(1, ttl=120)
    scene.storage.claims.create(scene.queue, ClaimRequest(Lease("a", 300, 60, prolong=False), 3), scene.now)
    assert [(one.id, one.messages) for one in claims(scene)] == [("a", 3)]
    scene.tick(60)
    assert [(one.id, one.messages) for one in claims(scene)] == [("a", 1)]
    scene.tick(60)
    assert claims(scene) == []


def test_claims_of_a_project_include_those_of_all_its_queues(scene: Scene) -> None:
    """Claims with the same name in several queues are listed separately.

    Claims of another project and of a purged or deleted queue are not listed.
    """
    expected = []
    for number in range(7):
        at = scene.at(f"queue-{number}" if number % 2 else f"~own/queue-{number}")
        at.post(4)
        for name in ("same", f"own-{9 - number}"):
            at.take(2, name=name, holder=WHO)
            expected.append((at.queue.name, name))
    beside = scene.at("queue-1", scene.rival.queue.project)
    beside.post(1)
    beside.take(1, name="same", holder=OTHER)
    for limit in (1, 3, 100):
        assert names(claims(scene, limit, whole_project=True)) == sorted(expected)
    assert names(claims(beside, whole_project=True)) == [("queue-1", "same")]
    assert names(claims(scene.at("queue-3"))) == [("queue-3", "own-6"), ("queue-3", "same")]
    scene.storage.queues.purge(QueueRef(scene.queue.project, "queue-1"))
    scene.storage.queues.delete(QueueRef(scene.queue.project, "~own/queue-6"))
    assert names(claims(scene, 2, whole_project=True)) == sorted(expected)[2:-2]


def test_claim_lists_of_missing_queues_are_empty(scene: Scene) -> None:
    assert claims(scene.at("missing")) == []
    assert claims(scene.at("missing", "nobody"), whole_project=True) == []


def test_many_idle_queues_do_not_hide_a_claim(scene: Scene) -> None:
    """Pages without claims may come before the page with the claim."""
    for number in range(1100):
        scene.storage.queues.create(QueueRef(scene.queue.project, f"idle-{number:04}"), b"{}")
    last = scene.at("the-last")
    last.post(1)
    last.take(1, name="a", holder=WHO)
    assert names(claims(scene, 10, whole_project=True)) == [("the-last", "a")]


def test_lapsed_claims_of_many_queues_do_not_hide_a_live_one(scene: Scene) -> None:
    for number in range(120):
        at = scene.at(f"lapsed-{number:03}")
        at.post(1)
        at.take(1, name="a", ttl=60)
    scene.tick(61)
    last = scene.at("the-last")
    last.post(1)
    last.take(1, name="a", holder=WHO)
    assert names(claims(scene, 10, whole_project=True)) == [("the-last", "a")]


def test_many_claims_are_listed_page_by_page(scene: Scene) -> None:
    scene.post(1500)
    for number in range(300):
        scene.take(5, name=f"c{number:03}", holder=WHO)
    found = claims(scene)
    assert names(found) == [(scene.queue.name, f"c{number:03}") for number in range(300)]
    assert {one.messages for one in found} == {5}
