# SPDX-License-Identifier: Apache-2.0
"""The pace of a sweep: pauses in proportion to work, smaller steps when requests slow down, full speed when behind."""

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
    """A clock that only pauses and work advance, with requests whose durations a test sets."""

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
        """Run a round of ``steps`` steps that each take ``work`` seconds."""
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


def test_without_requests_a_sweep_has_full_steps_and_no_pauses(world: World) -> None:
    """Without requests, the steps go on until the round's limit, to which the last step is cut."""
    pace = world.round(size=1000, max_items=2500)
    sizes = []
    while size := pace.step():
        sizes.append(size)
        pace.removed(size, QUEUE)
    assert sizes == [1000, 1000, 500]
    assert set(world.rests) == {0.0}
    assert pace.paused == 0
    assert world.expired == [(1000, QUEUE), (1000, QUEUE), (500, QUEUE)]


def test_with_requests_steps_are_small_and_pauses_follow_the_share(world: World) -> None:
    """The share begins at its minimum: a step of 2 ms is followed by 65 ms of pause."""
    world.requests(0.001)
    pace = world.round()
    assert pace.step() == MIN_STEP
    world.now += 0.002
    world.requests(0.00115, 1)
    pace.step()
    assert world.rests == pytest.approx([0.0, 0.002 * (1 / INCREASE - 1)])
    assert pace.paused == pytest.approx(0.0647, abs=0.0001)


@pytest.mark.parametrize(("work", "larger"), [(0.0005, True), (0.01, False)])
def test_the_size_of_a_step_follows_its_duration(world: World, work: float, larger: bool) -> None:
    """The size of quick steps grows up to the option's value; that of slow steps stays at its minimum."""
    world.requests(0.001)
    pace = world.round()
    sizes = []
    for _ in range(6):
        sizes.append(pace.step())
        world.now += work
        world.requests(0.001, 1)
    assert (sizes[-1] > sizes[0]) is larger
    assert MIN_STEP <= min(sizes) <= max(sizes) <= 1000


def test_the_share_falls_to_its_minimum_when_requests_slow_down_and_recovers(world: World) -> None:
    """The share drops when requests take twice as long as usual; it rises by a constant and falls by a factor."""
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


def test_durations_during_a_round_do_not_change_the_baseline(world: World) -> None:
    """Otherwise, a long round would take the delays that it causes for normal."""
    world.requests(0.001)
    world.sweep(60, 0.001, lambda: world.requests(0.001))
    world.sweep(500, 0.001, lambda: world.requests(0.002))
    world.monitor.begin()
    world.requests(0.002)
    world.monitor.adjust_share()
    assert world.monitor.share == INCREASE


def test_too_few_requests_do_not_change_the_share(world: World) -> None:
    """A slow request among few is not taken as a sign of load."""
    world.requests(0.001)
    world.sweep(60, 0.001, lambda: world.requests(0.001))
    world.monitor.begin()
    world.requests(1.0, SAMPLES - 1)
    world.monitor.adjust_share()
    assert world.monitor.share == MAX_SHARE
    world.requests(1.0, 1)
    world.monitor.adjust_share()
    assert world.monitor.share < MAX_SHARE


def test_rounds_that_stay_behind_ignore_slow_requests(world: World) -> None:
    """After five minutes of rounds that reached their limit, the pace ignores requests until a round completes."""
    world.requests(0.001)
    world.monitor.end(exhausted=True)
    world.now += MAX_ARREARS + 1
    world.sweep(30, 0.001, lambda: world.requests(0.01))
    assert world.monitor.share == MAX_SHARE
    world.sweep(60, 0.001, lambda: world.requests(0.01))
    assert world.monitor.share == INCREASE


def test_a_server_that_stops_ends_the_round(world: World) -> None:
    """The round ends at the next step."""
    pace = world.round()
    assert pace.step() == 1000
    world.stopping = True
    assert pace.step() == 0


def test_after_a_quiet_time_a_sweep_has_full_steps_again(world: World) -> None:
    """A quarter of a second without a request suffices."""
    world.requests(0.001)
    pace = world.round()
    assert pace.step() == MIN_STEP
    world.now += IDLE_SECONDS
    assert pace.step() == 1000


def test_the_plain_pace_ends_at_its_bound() -> None:
    """Tests and callers without their own pace use this one."""
    pace = Steps(size=3, max_items=5)
    assert pace.step() == 3
    pace.removed(3)
    assert pace.step() == 2
    pace.removed(2, QUEUE)
    assert pace.step() == 0
    assert pace.left == 0
