# SPDX-License-Identifier: Apache-2.0
"""Fences: a request with another epoch than the latest is refused (extensions contract, section 9)."""

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from zq.conformance.builders import DEADLINE, Scene, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import Fenced
from zq.model import ClaimRef, Fence, SettleResult

NAME = "etl.0"


def test_epochs_of_a_fence_rise_from_one(scene: Scene):
    """Epochs rise by one, independently for each name and each project."""
    own, rival = scene.queue.project, scene.rival.queue.project
    advance = scene.storage.transactions.advance_fence
    assert [advance(own, "job", scene.now) for _ in range(3)] == [1, 2, 3]
    for project, name in [(own, "job2"), (own, "JOB"), (own, "jo"), (rival, "job"), (own, "x" * 128)]:
        assert advance(project, name, scene.now) == 1
    assert advance(own, "job", scene.now) == 4


@ONE_OR_TWO_CONNECTIONS
def test_concurrently_issued_epochs_are_distinct(scene: Scene):
    advance = scene.storage.transactions.advance_fence

    def some() -> list[int]:
        return [advance(scene.queue.project, "job", scene.now) for _ in range(10)]

    given = run_together(*[some] * 8)
    assert sorted(epoch for epochs in given for epoch in epochs) == list(range(1, 81))
    assert all(epochs == sorted(epochs) for epochs in given)


def test_the_latest_epoch_is_accepted(scene: Scene):
    posted = scene.post(3)
    fence = scene.fence()
    for there in (False, True):
        assert scene.named(NAME, 2, fence=fence) == (posted[:2], there)
    scene.renew(NAME, ttl=600, fence=fence)
    assert scene.settle(NAME, delete=posted[:1], fence=fence) == SettleResult(1)
    scene.stage("s1")
    told = scene.commit(1, ["s1"], [ClaimRef(scene.queue, NAME)], fence=fence)
    assert (told.published, told.deleted) == (1, 1)


@pytest.mark.parametrize("epoch", [1, 3, 2**31])
def test_other_epochs_are_refused(scene: Scene, epoch: int):
    """An older epoch and one that was never issued are refused, and nothing changes."""
    posted = scene.post(3)
    scene.named(NAME, 2, ttl=60)
    scene.stage("s1", 2)
    assert [scene.fence().epoch for _ in range(2)] == [1, 2]
    fence = Fence("job", epoch)
    held = scene.get(posted)
    for verb in (
        partial(scene.named, NAME, fence=fence),
        partial(scene.named, "etl.1", fence=fence),
        partial(scene.renew, NAME, ttl=600, fence=fence),
        partial(scene.settle, NAME, rest=True, fence=fence),
        partial(scene.commit, 1, ["s1"], [ClaimRef(scene.queue, NAME)], fence=fence),
        partial(scene.commit, 1, fence=fence),
    ):
        with pytest.raises(Fenced):
            verb()
        assert scene.get(posted) == held
    assert scene.page() == posted[2:]
    scene.tick(59.999)
    assert scene.settle(NAME, rest=True) == SettleResult(2)
    assert scene.commit(1, ["s1"]).published == 2


def test_a_fence_of_another_name_or_project_is_refused(scene: Scene):
    scene.post(2)
    scene.named(NAME, 2)
    for _ in range(2):
        fence = scene.fence()
    rival = scene.rival
    rival.post(2)
    rival.named(NAME, 2)
    with pytest.raises(Fenced):
        scene.settle(NAME, rest=True, fence=Fence("other", fence.epoch))
    with pytest.raises(Fenced):
        rival.settle(NAME, rest=True, fence=fence)
    assert rival.fence().epoch == 1
    assert scene.settle(NAME, rest=True, fence=fence) == SettleResult(2)


def test_a_worker_with_an_old_epoch_is_refused_at_its_next_step(scene: Scene):
    """A second job advances the fence. The first job's claim continues, but only the second job can use it."""
    posted = scene.post(2)
    first = scene.fence()
    scene.named(NAME, 2, fence=first)
    second = scene.fence()
    with pytest.raises(Fenced):
        scene.renew(NAME, fence=first)
    assert scene.named(NAME, 9, fence=second) == (posted, True)
    with pytest.raises(Fenced):
        scene.settle(NAME, delete=posted, fence=first)
    assert scene.settle(NAME, delete=posted, fence=second) == SettleResult(2)
    with pytest.raises(Fenced):
        scene.named("etl.1", fence=first)


def renewing(scene: Scene) -> tuple[Callable[[int, Fence], object], Callable[[], object]]:
    """Return a step that renews a claim with a rising ttl, and a function that reads the message's available time."""
    [id] = scene.post(1)
    scene.named(NAME)
    return lambda at, fence: scene.renew(NAME, ttl=300 + at, fence=fence), lambda: scene.one(id).available


def settling(scene: Scene) -> tuple[Callable[[int, Fence], object], Callable[[], object]]:
    """Return a step that settles a message, and a function that reads the history."""

    def step(at: int, fence: Fence) -> None:
        scene.post(1)
        scene.settle(scene.take(1).id, rest=True, history=600, fence=fence)

    return step, lambda: scene.finished()


def claiming(scene: Scene) -> tuple[Callable[[int, Fence], object], Callable[[], object]]:
    """Return a step that claims a message, and a function that reads the number of claimed messages."""

    def step(at: int, fence: Fence) -> None:
        scene.post(1)
        scene.named(f"etl.{at}", 1, fence=fence)

    return step, lambda: scene.counts()[0]


def committing(scene: Scene) -> tuple[Callable[[int, Fence], object], Callable[[], object]]:
    """Return a step that commits a staged message, and a function that reads the queue and the last batch."""

    def step(at: int, fence: Fence) -> None:
        scene.stage(f"s{at}", 1)
        scene.commit(at, [f"s{at}"], fence=fence)

    return step, lambda: (scene.page(), scene.last())


@ONE_OR_TWO_CONNECTIONS
@pytest.mark.parametrize("work", [renewing, settling, claiming, committing], ids=lambda work: work.__name__)
def test_a_request_racing_a_fence_has_no_effect_after_it(scene: Scene, work):
    """After the new holder has received its epoch, requests with the old epoch change nothing."""
    for turn in range(3):
        room = scene.at("jobs", project=f"{scene.queue.project}.{turn}")
        step, seen = work(room)
        old = room.fence()
        warm = threading.Semaphore(0)

        def zombie(step: Callable = step, old: Fence = old, warm: threading.Semaphore = warm) -> object:
            deadline, at = time.monotonic() + DEADLINE, 0
            while time.monotonic() < deadline:
                try:
                    step(at, old)
                except Fenced:
                    return None
                warm.release()
                at += 1
            raise AssertionError("The fence stopped nobody.")

        def newcomer(room: Scene = room, seen: Callable = seen, warm: threading.Semaphore = warm) -> object:
            for _ in range(3):
                assert warm.acquire(timeout=DEADLINE)
            room.fence()
            return seen()

        assert run_together(zombie, newcomer)[1] == seen()
