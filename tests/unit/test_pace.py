# SPDX-License-Identifier: Apache-2.0
"""The pace of a sweep: it rests in proportion to its work, yields when requests suffer, and presses on in arrears."""

from collections.abc import Callable

import pytest

from zq.model import QueueRef
from zq.model.expiry import Steps
from zq.serving.maintenance.throttle import (
    IDLE_SECONDS,
    INCREASE,
    MAX_ARREARS,
    MAX_SHARE,
    MIN_STEP,
    SAMPLES,
    AdaptivePace,
    LatencyMonitor,
)

QUEUE = QueueRef("acme", "jobs")


class World:
    """A clock that stands still but for rests and work, with requests that take as long as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rests: list[float] = []
        self.stopping = False
        self.expired: list[tuple[int, QueueRef]] = []
        self.monitor = LatencyMonitor(lambda: self.now)

    def requests(self, seconds: float, count: int = SAMPLES) -> None:
        for _ in range(count):
            self.monitor.store_called("claims.create", seconds)

    def rest(self, seconds: float) -> bool:
        self.rests.append(seconds)
        self.now += seconds
        return self.stopping

    def round(self, size: int = 1000, max_items: int = 100_000) -> AdaptivePace:
        self.monitor.begin()
        return AdaptivePace(
            self.monitor, size, max_items, self.rest, lambda count, queue: self.expired.append((count, queue))
        )

    def sweep(self, steps: int, work: float, meanwhile: Callable[[], None] = lambda: None) -> AdaptivePace:
        """A round of so many steps that each take ``work`` seconds."""
        pace = self.round()
        for _ in range(steps):
            size = pace.step()
            self.now += work
            meanwhile()
            pace.removed(size, QUEUE)
        self.monitor.end(exhausted=False)
        return pace


@pytest.fixture
def world() -> World:
    return World()


def test_with_nobody_there_a_sweep_goes_in_full_steps_without_rests(world: World) -> None:
    """Until a round's bound, which the last step keeps; then the round is over."""
    pace = world.round(size=1000, max_items=2500)
    sizes = []
    while size := pace.step():
        sizes.append(size)
        pace.removed(size, QUEUE)
    assert sizes == [1000, 1000, 500]
    assert set(world.rests) == {0.0}
    assert pace.paused == 0
    assert world.expired == [(1000, QUEUE), (1000, QUEUE), (500, QUEUE)]


def test_beside_requests_steps_are_small_and_rests_follow_the_share(world: World) -> None:
    """At first the share is the least: a step of 2 ms is followed by 65 ms of rest."""
    world.requests(0.001)
    pace = world.round()
    assert pace.step() == MIN_STEP
    world.now += 0.002
    world.requests(0.00115, 1)
    pace.step()
    assert world.rests == pytest.approx([0.0, 0.002 * (1 / INCREASE - 1)])
    assert pace.paused == pytest.approx(0.0647, abs=0.0001)


@pytest.mark.parametrize(("work", "larger"), [(0.0005, True), (0.01, False)])
def test_the_size_of_a_step_follows_what_it_takes(world: World, work: float, larger: bool) -> None:
    """Quick steps grow up to the option's size, slow ones stay at the least."""
    world.requests(0.001)
    pace = world.round()
    sizes = []
    for _ in range(6):
        sizes.append(pace.step())
        world.now += work
        world.requests(0.001, 1)
    assert (sizes[-1] > sizes[0]) is larger
    assert MIN_STEP <= min(sizes) <= max(sizes) <= 1000


def test_when_requests_suffer_the_share_falls_to_the_least_and_comes_back(world: World) -> None:
    """Twice as long as usual is suffering; as usual is not. It rises by a constant and falls by a factor."""
    world.requests(0.001)
    world.sweep(60, 0.001, lambda: world.requests(0.001))
    assert world.monitor.share == MAX_SHARE
    world.sweep(60, 0.001, lambda: world.requests(0.002))
    assert world.monitor.share == INCREASE
    assert world.monitor.ratio == pytest.approx(2)
    world.sweep(0, 0.001)
    assert world.monitor.ratio == 1
    world.sweep(60, 0.001, lambda: world.requests(0.001))
    assert world.monitor.share == MAX_SHARE


def test_what_requests_take_during_a_round_is_not_taken_for_usual(world: World) -> None:
    """Else a long round would get used to the harm that it does."""
    world.requests(0.001)
    world.sweep(60, 0.001, lambda: world.requests(0.001))
    world.sweep(500, 0.001, lambda: world.requests(0.002))
    world.monitor.begin()
    world.requests(0.002)
    world.monitor.adjust_share()
    assert world.monitor.share == INCREASE


def test_too_few_requests_judge_nothing(world: World) -> None:
    """One slow request among few says nothing about all."""
    world.requests(0.001)
    world.sweep(60, 0.001, lambda: world.requests(0.001))
    world.monitor.begin()
    world.requests(1.0, SAMPLES - 1)
    world.monitor.adjust_share()
    assert world.monitor.share == MAX_SHARE
    world.requests(1.0, 1)
    world.monitor.adjust_share()
    assert world.monitor.share < MAX_SHARE


def test_rounds_that_stay_behind_press_on_though_requests_suffer(world: World) -> None:
    """After five minutes of rounds that ended early; a round that comes to its end makes it yield again."""
    world.requests(0.001)
    world.monitor.end(exhausted=True)
    world.now += MAX_ARREARS + 1
    world.sweep(30, 0.001, lambda: world.requests(0.01))
    assert world.monitor.share == MAX_SHARE
    world.sweep(60, 0.001, lambda: world.requests(0.01))
    assert world.monitor.share == INCREASE


def test_a_server_that_stops_ends_the_round(world: World) -> None:
    """At the next step, however much there is left."""
    pace = world.round()
    assert pace.step() == 1000
    world.stopping = True
    assert pace.step() == 0


def test_after_a_quiet_moment_a_sweep_goes_in_full_steps_again(world: World) -> None:
    """A quarter of a second without a request."""
    world.requests(0.001)
    pace = world.round()
    assert pace.step() == MIN_STEP
    world.now += IDLE_SECONDS
    assert pace.step() == 1000


def test_the_plain_pace_ends_at_its_bound() -> None:
    """What tests and callers without a pace of their own take."""
    pace = Steps(size=3, max_items=5)
    assert pace.step() == 3
    pace.removed(3)
    assert pace.step() == 2
    pace.removed(2, QUEUE)
    assert pace.step() == 0
    assert pace.left == 0
