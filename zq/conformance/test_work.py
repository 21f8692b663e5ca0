# SPDX-License-Identifier: Apache-2.0
"""Live stages, fences and producers are counted and listed by project."""

import pytest

from zq.conformance.builders import Scene, near
from zq.errors import Fenced
from zq.model import CommitResult, Fence, KnownFence, KnownProducer, KnownStage, KnownWork
from zq.model.quotas import Work

pytestmark = pytest.mark.pools

KINDS = list(Work)


def make(scene: Scene, work: Work, name: str, lives: int = 3600) -> None:
    if work is Work.STAGE:
        scene.stage(name, lives=lives)
    elif work is Work.FENCE:
        scene.fence(name)
    else:
        scene.commit(1, producer=name, ttl=lives)


def listed(scene: Scene, work: Work, after: str = "", limit: int = 100) -> list[KnownWork]:
    page = scene.storage.transactions.list(scene.queue.project, work, after, limit, scene.now)
    assert page.next == (page.items[-1].name if page.items else None)
    return page.items


def names(scene: Scene, work: Work, after: str = "", limit: int = 100) -> list[str]:
    return [one.name for one in listed(scene, work, after, limit)]


def count(scene: Scene, work: Work, name: str = "", project: str = "") -> tuple[int, bool]:
    return scene.storage.transactions.count(project or scene.queue.project, work, name, scene.now)


@pytest.mark.parametrize("work", KINDS)
def test_each_name_counts_once(scene: Scene, work: Work):
    assert count(scene, work, "a") == (0, False)
    for name in ("a", "b", "a"):
        make(scene, work, name)
    make(scene.rival, work, "c")
    make(scene.at("jobs", scene.queue.project + "/"), work, "d")
    assert count(scene, work, "a") == (2, True)
    assert count(scene, work, "c") == (2, False)
    assert count(scene, work, "c", scene.rival.queue.project) == (1, True)
    assert [count(scene, kind, "a") for kind in KINDS if kind is not work] == [(0, False)] * 2


@pytest.mark.fresh_store
@pytest.mark.parametrize("work", [Work.STAGE, Work.PRODUCER])
def test_expired_work_does_not_count(scene: Scene, work: Work):
    make(scene, work, "a", lives=60)
    make(scene, work, "b")
    scene.tick(60)
    assert (count(scene, work, "a"), count(scene, work, "b")) == ((1, False), (1, True))
    scene.reclaimed()
    assert count(scene, work, "b") == (1, True)


def test_a_stage_counts_until_it_is_dropped_or_committed(scene: Scene):
    for name in ("a", "b", "c"):
        make(scene, Work.STAGE, name)
    scene.drop_stage("a")
    scene.commit(1, ["b"])
    assert (count(scene, Work.STAGE, "b"), count(scene, Work.STAGE, "c")) == ((1, False), (1, True))


def test_an_unknown_fence_in_a_claim_does_not_count(scene: Scene):
    scene.post()
    with pytest.raises(Fenced):
        scene.claim_named("c", fence=Fence("none", 3))
    assert count(scene, Work.FENCE, "none") == (0, False)


def test_a_listed_stage_has_its_contents_and_expiry(scene: Scene):
    """Later messages do not change the expiry of the stage."""
    scene.stage("night", 2, lives=60)
    ends, size = scene.now + 60, size_of(scene, "night")
    scene.tick(10)
    scene.at("other").stage("night", 3)
    assert listed(scene, Work.STAGE) == [KnownStage("night", 5, size_of(scene, "night"), near(ends))]
    assert size_of(scene, "night") > size


def size_of(scene: Scene, stage: str) -> int:
    [found] = [one for one in listed(scene, Work.STAGE) if one.name == stage]
    assert isinstance(found, KnownStage)
    return found.bytes


def test_a_listed_fence_has_its_epoch_and_time(scene: Scene):
    scene.fence("etl")
    scene.tick(10)
    scene.fence("etl")
    advanced = scene.now
    scene.tick(10)
    assert listed(scene, Work.FENCE) == [KnownFence("etl", 2, near(advanced))]


def test_a_listed_producer_has_counts_and_time_of_its_last_batch(scene: Scene):
    """A repeat of the batch does not change its time."""
    scene.stage("night", 3)
    scene.commit(7, ["night"], producer="etl")
    decided = scene.now
    scene.tick(10)
    scene.commit(7, producer="etl")
    expires = decided + 86400
    assert listed(scene, Work.PRODUCER) == [KnownProducer("etl", CommitResult(7, 3, 0), near(decided), near(expires))]
    scene.commit(8, producer="etl")
    later = near(decided + 10), near(expires + 10)
    assert listed(scene, Work.PRODUCER) == [KnownProducer("etl", CommitResult(8, 0, 0), *later)]


def test_a_listed_producer_has_its_open_batch(scene: Scene):
    """The stages of the open batch are not listed."""
    scene.stage("night", 3)
    assert scene.decide(1, ["night"]).open
    assert listed(scene, Work.PRODUCER) == [KnownProducer("etl", CommitResult(1, 3, 0, open=True), near(scene.now))]
    assert listed(scene, Work.STAGE) == []
    while scene.continue_commit():
        pass
    decided, expires = near(scene.now), near(scene.now + 86400)
    assert listed(scene, Work.PRODUCER) == [KnownProducer("etl", CommitResult(1, 3, 0), decided, expires)]


@pytest.mark.parametrize("work", KINDS)
def test_listings_continue_after_a_name(scene: Scene, work: Work):
    """The listing is in byte order, and the marker need not exist."""
    for name in ("b", "a", "C", "a.b", "ab", "a-"):
        make(scene, work, name)
    make(scene.rival, work, "c")
    make(scene.at("jobs", scene.queue.project + "/"), work, "d")
    assert names(scene, work) == ["C", "a", "a-", "a.b", "ab", "b"]
    assert (names(scene, work, limit=2), names(scene, work, "a", 2)) == (["C", "a"], ["a-", "a.b"])
    assert (names(scene, work, "a0"), names(scene, work, "b"), names(scene, work, "~")) == (["ab", "b"], [], [])
    assert [names(scene, kind) for kind in KINDS if kind is not work] == [[], []]


@pytest.mark.fresh_store
@pytest.mark.parametrize("work", [Work.STAGE, Work.PRODUCER])
def test_expired_work_is_not_listed(scene: Scene, work: Work):
    """Expired work does not shorten a page, whether it is removed yet or not."""
    for name in ("a", "b", "d"):
        make(scene, work, name, lives=60)
    make(scene, work, "c")
    make(scene, work, "e")
    scene.tick(60)
    assert (names(scene, work), names(scene, work, limit=1)) == (["c", "e"], ["c"])
    scene.reclaimed()
    assert (names(scene, work), names(scene, work, "c")) == (["c", "e"], ["e"])
    make(scene, work, "a")
    assert names(scene, work) == ["a", "c", "e"]


def test_a_stage_is_listed_until_it_is_dropped_or_committed(scene: Scene):
    for name in ("a", "b", "c"):
        make(scene, Work.STAGE, name)
    scene.drop_stage("a")
    scene.commit(1, ["b"])
    assert names(scene, Work.STAGE) == ["c"]


def test_an_unknown_fence_in_a_claim_is_not_listed(scene: Scene):
    scene.post()
    with pytest.raises(Fenced):
        scene.claim_named("c", fence=Fence("none", 3))
    assert names(scene, Work.FENCE) == []


def test_work_is_listed_page_by_page(scene: Scene):
    made = sorted(f"fence-{number}" for number in range(450))
    for name in made:
        make(scene, Work.FENCE, name)
    assert names(scene, Work.FENCE, limit=1000) == made
    seen: list[str] = []
    while page := names(scene, Work.FENCE, seen[-1] if seen else "", 100):
        seen += page
    assert seen == made
