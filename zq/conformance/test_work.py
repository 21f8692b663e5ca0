# SPDX-License-Identifier: Apache-2.0
"""Stages, fences and producers are counted by project, while they live."""

import pytest

from zq.conformance.builders import Scene
from zq.errors import Fenced
from zq.model import Fence
from zq.model.quotas import Work

KINDS = list(Work)


def make(scene: Scene, work: Work, name: str, lives: int = 3600) -> None:
    if work is Work.STAGE:
        scene.stage(name, lives=lives)
    elif work is Work.FENCE:
        scene.fence(name)
    else:
        scene.commit(1, producer=name, ttl=lives)


def count(scene: Scene, work: Work, name: str = "", project: str = "") -> tuple[int, bool]:
    return scene.storage.transactions.count(project or scene.queue.project, work, name, scene.now)


@pytest.mark.parametrize("work", KINDS)
def test_each_name_counts_once(scene: Scene, work: Work):
    """In its project and of its kind alone, whatever is done under it later."""
    assert count(scene, work, "a") == (0, False)
    for name in ("a", "b", "a"):
        make(scene, work, name)
    make(scene.at("jobs", "other"), work, "c")
    make(scene.at("jobs", scene.queue.project + "/"), work, "d")
    assert count(scene, work, "a") == (2, True)
    assert count(scene, work, "c") == (2, False)
    assert count(scene, work, "c", "other") == (1, True)
    assert [count(scene, kind, "a") for kind in KINDS if kind is not work] == [(0, False)] * 2


@pytest.mark.parametrize("work", [Work.STAGE, Work.PRODUCER])
def test_what_has_expired_does_not_count(scene: Scene, work: Work):
    """Whether it was removed yet or not."""
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


def test_a_fence_that_nobody_made_does_not_count(scene: Scene):
    """A claim that names it is refused and leaves nothing."""
    scene.post()
    with pytest.raises(Fenced):
        scene.claim_named("c", fence=Fence("none", 3))
    assert count(scene, Work.FENCE, "none") == (0, False)
