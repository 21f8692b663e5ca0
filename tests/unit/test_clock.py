# SPDX-License-Identifier: Apache-2.0
"""The clock of a server: it follows the store's time and never runs backwards (extensions 1, "Time")."""

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rotation import examples
from zq.clock import LONGEST_WAIT, MEMORY, SAMPLES, TOLERANCE, ManualClock, StoreClock
from zq.errors import Unavailable

START = 1_800_000_000.0


class World:
    """The time of a machine and of a store, set by the test.

    ``delay``: the store's round trip in seconds; ``back``: the share of ``delay`` that the reply takes.
    """

    def __init__(self) -> None:
        self.uptime = 500.0
        self.ahead = START
        """Store time minus machine time."""
        self.delay = 0.0
        self.back = 0.5
        self.asked = 0

    def monotonic(self) -> float:
        return self.uptime

    def sleep(self, seconds: float) -> None:
        self.uptime += seconds

    def read(self) -> float:
        self.asked += 1
        self.uptime += self.delay * (1 - self.back)
        told = self.uptime + self.ahead
        self.uptime += self.delay * self.back
        return told

    def store_time(self) -> float:
        return self.uptime + self.ahead

    def clock(self) -> StoreClock:
        return StoreClock(self.read, self.monotonic, self.sleep)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock(world: World) -> StoreClock:
    return world.clock()


def near(moment: float):
    return pytest.approx(moment, abs=0.0015)


def test_the_clock_has_the_time_of_the_store(world: World, clock: StoreClock):
    """The offset to the machine's clock is measured at the start and kept between refreshes."""
    assert clock.now() == near(START + 500)
    asked = world.asked
    world.uptime += 12.5
    assert clock.now() == near(START + 512.5)
    assert world.asked == asked


def test_moments_are_whole_milliseconds(world: World, clock: StoreClock):
    """A timestamp does not change when it is stored in milliseconds."""
    for _ in range(100):
        world.uptime += 0.0123456
        assert clock.now() == round(clock.now(), 3)


def known_to(clock: StoreClock, seconds: float) -> None:
    """Assert the clock's uncertainty, with a tolerance for the rounding of a reply and some seconds of age."""
    assert clock.uncertainty() == pytest.approx(seconds, abs=0.002)


def is_now(clock: StoreClock, world: World) -> float:
    """Return the clock's time; assert that it is between the call and its return, within the tolerance."""
    called = world.store_time()
    moment = clock.now()
    assert called - TOLERANCE - 0.002 <= moment <= world.store_time() + TOLERANCE + 0.002
    return moment


@pytest.mark.parametrize("back", [0.5, 0.0, 1.0, 0.2])
def test_a_round_trip_is_halved(world: World, back: float):
    """The store's time is taken for the middle of the round trip; the error is at most half the round trip."""
    world.delay, world.back = 0.04, back
    clock = world.clock()
    assert clock.now() == pytest.approx(world.store_time(), abs=0.022)
    known_to(clock, 0.02)
    world.ahead += 0.5
    clock.refresh()
    assert clock.now() == pytest.approx(world.store_time(), abs=0.022)


@pytest.mark.parametrize("back", [0.5, 0.0, 1.0])
@pytest.mark.parametrize("delay", [0.11, 0.4, 2.0])
def test_a_slow_path_gives_a_time_within_half_the_round_trip(world: World, delay: float, back: float):
    """The clock is exact to half the round trip from the first reading on, in whichever direction the path is slow."""
    world.delay, world.back = delay, back
    clock = world.clock()
    known_to(clock, delay / 2)
    for _ in range(40):
        is_now(clock, world)
        clock.refresh()
        world.uptime += 1.5
    known_to(clock, delay / 2)


def test_the_best_of_several_first_samples_counts(world: World):
    """At the start, the clock takes up to five samples within a second, so that one slow reply does no harm."""
    delays = iter([0.3, 0.2, 0.004, 0.5])

    def read() -> float:
        world.delay = next(delays)
        return world.read()

    clock = StoreClock(read, world.monotonic, world.sleep)
    known_to(clock, 0.002)
    assert clock.now() == near(world.store_time())
    assert world.asked == 3


def test_the_number_of_samples_is_bounded(world: World):
    """The clock takes at most five samples, for at most a second, and only one if the first is exact."""
    world.delay = 0.1
    clock = world.clock()
    assert world.asked == SAMPLES
    world.delay = 0.8
    clock.refresh()
    assert world.asked == SAMPLES + 2
    world.delay = 0.001
    clock.refresh()
    clock.refresh()
    assert world.asked == SAMPLES + 4


def test_slow_answers_widen_the_uncertainty_and_move_nothing(world: World, clock: StoreClock):
    """The uncertainty grows even after the last good reply is forgotten; the next good one reduces it."""
    world.delay, world.back = 1.0, 1.0
    seen = [clock.uncertainty()]
    for _ in range(15):
        clock.refresh()
        world.uptime += 2
        assert clock.now() == pytest.approx(world.store_time(), abs=0.02)
        seen.append(clock.uncertainty())
    assert seen == sorted(seen)
    assert seen[-1] < 0.02
    world.uptime += MEMORY
    clock.refresh()
    assert 0.5 < clock.uncertainty() < 1.1
    is_now(clock, world)
    world.delay = 0.0
    clock.refresh()
    known_to(clock, 0.0)
    assert clock.now() == near(world.store_time())


def test_better_answers_sharpen_a_clock_that_began_badly(world: World):
    """The first exact reply makes the clock exact, without slewing and without a step backwards."""
    world.delay, world.back = 2.0, 0.0
    clock = world.clock()
    before = is_now(clock, world)
    for delay in (1.0, 0.3, 0.05, 0.001):
        world.delay = delay
        clock.refresh()
        moment = is_now(clock, world)
        assert moment >= before
        before = moment
    world.uptime += 2 * TOLERANCE
    assert clock.now() == near(world.store_time())
    assert clock.drift() == 0


def test_the_uncertainty_grows_without_samples(world: World, clock: StoreClock):
    """While the store does not reply, the uncertainty grows, but by less than a second an hour."""
    known_to(clock, 0)
    world.uptime += 3600
    assert 0.5 < clock.uncertainty() < 1
    world.ahead -= 0.36
    is_now(clock, world)
    clock.refresh()
    known_to(clock, 0)


def test_a_time_with_large_uncertainty_is_refused(world: World):
    """A caller that would have to wait for more than some seconds gets an error."""
    world.delay = LONGEST_WAIT + 0.5
    clock = world.clock()
    asked = world.uptime
    with pytest.raises(Unavailable, match="time"):
        clock.now()
    assert world.uptime == asked
    world.delay = 0
    clock.refresh()
    assert clock.now() == near(world.store_time())


@pytest.mark.parametrize("delay", [0.0, 0.4])
@pytest.mark.parametrize("step", [-30.0, -0.9, 0.9, 30.0])
def test_a_failover_to_another_clock_is_followed(world: World, step: float, delay: float):
    """The clock follows a step forward within three readings, on a slow path too, and slews after a step back."""
    world.delay = delay
    clock = world.clock()
    clock.now()
    world.ahead += step
    for _ in range(3):
        world.uptime += 2
        clock.refresh()
    if step < 0:
        behind = clock.drift()
        assert 0 < behind <= -step + delay
        world.uptime += behind / 0.05
    is_now(clock, world)
    assert clock.drift() == 0


def test_a_small_step_at_a_failover_to_a_slow_path_is_followed_within_a_minute(world: World, clock: StoreClock):
    """The exact readings of the former clock are forgotten."""
    world.ahead += 0.3
    world.delay = 1.0
    until = world.uptime + MEMORY + 4
    while world.uptime < until:
        world.uptime += 2
        clock.refresh()
    is_now(clock, world)


class Machine:
    """A server's machine with an oscillator error of ``drift`` and the delays to the store from ``delays``."""

    def __init__(self, world: World, drift: float, delays: "itertools.cycle[tuple[float, float]]") -> None:
        self.world = world
        self.drift = drift
        self.delays = delays
        self.clock = StoreClock(self.read, self.monotonic, self.sleep)

    def monotonic(self) -> float:
        return (self.world.uptime - 500) * (1 + self.drift)

    def sleep(self, seconds: float) -> None:
        self.world.uptime += seconds / (1 + self.drift)

    def read(self) -> float:
        there, back = next(self.delays)
        self.world.uptime += there
        told = round(self.world.store_time() - 0.0005, 3)
        self.world.uptime += back
        return told


ways = st.tuples(st.floats(0, 1), st.floats(0, 1))
machines = st.tuples(st.floats(-1e-4, 1e-4), st.lists(ways, min_size=1, max_size=12))


@settings(max_examples=examples(150))
@given(st.lists(machines, min_size=2, max_size=3), st.integers(0, 2**32))
def test_no_message_is_early_and_no_claim_is_short_on_any_path(found, seed: int):
    """A delay or a claim lasts for its whole time by the store's clock, within 50 ms, whichever server reads it.

    The servers' oscillators drift, and their paths to the store take up to a second in each direction, independently.
    """
    world, chance = World(), random.Random(seed)
    servers = [Machine(world, drift, itertools.cycle(delays)) for drift, delays in found]
    given_at: dict[float, float] = {}
    """Store time at which a delay or a claim was requested, by the time at which it ends."""
    for _ in range(60):
        server = chance.choice(servers)
        if chance.random() < 0.5:
            server.clock.refresh()
        world.uptime += chance.choice([0.01, 0.5, 2])
        called = world.store_time()
        moment = server.clock.now()
        assert called - 0.026 <= moment
        for free in [free for free in given_at if free <= moment]:
            assert world.store_time() >= given_at.pop(free) + 3 - 0.052
        given_at[moment + 3] = called


def test_a_small_step_forward_is_taken_at_once(world: World, clock: StoreClock):
    """A step of up to a second is followed at the first reply."""
    clock.now()
    for step in (0.001, 0.5, 0.999):
        world.ahead += step
        clock.refresh()
        assert clock.now() == near(world.store_time())
        assert clock.drift() == 0


def test_a_jump_needs_three_answers_that_agree(world: World, clock: StoreClock):
    """A step of more than a second forward is followed at the third reply, not before."""
    world.ahead += 3600
    for _ in range(2):
        world.uptime += 5
        clock.refresh()
        assert clock.now() == near(world.store_time() - 3600)
    world.uptime += 5
    clock.refresh()
    assert clock.now() == near(world.store_time())


def test_jumps_that_disagree_are_ignored(world: World, clock: StoreClock):
    """Three replies that disagree are ignored; the clock follows as soon as the last three agree."""
    for ahead in (10, 2000, 50, 4000, 7):
        world.ahead = START + ahead
        clock.refresh()
        assert clock.now() == near(START + world.uptime)
    world.ahead = START + 300
    clock.refresh()
    clock.refresh()
    assert clock.now() == near(START + world.uptime)
    clock.refresh()
    assert clock.now() == near(world.store_time())


def test_a_normal_reply_between_jumps_restarts_the_count(world: World, clock: StoreClock):
    """Two jumps, a normal reply and another jump are not taken for a step of the store's clock."""
    for ahead in (3600, 3600, 0, 3600, 3600):
        world.ahead = START + ahead
        clock.refresh()
        assert clock.now() == near(START + world.uptime)


def test_a_jump_on_a_slow_path_needs_three_answers_too(world: World, clock: StoreClock):
    """Slow replies agree if they can be from the same clock."""
    world.delay = 0.5
    for ahead in (3600, 7200, 3600):
        world.ahead = START + ahead
        clock.refresh()
        assert abs(clock.drift()) > 3000
        assert clock.now() == near(START + world.uptime)
    for _ in range(2):
        clock.refresh()
    is_now(clock, world)
    assert clock.drift() == 0


def test_a_clock_reports_the_lead_that_its_store_distrusts(world: World):
    """If the machine's clock jumps by an hour, the metric shows the hour, although clock and store agree."""
    clock = StoreClock(world.read, world.monotonic, world.sleep, lambda: 3600.0)
    assert clock.now() == near(world.store_time())
    assert clock.drift() == near(-3600)


def test_the_clock_never_runs_backwards(world: World, clock: StoreClock):
    """Each time that the clock returns is at least the previous one, whatever the store replies."""
    steps = [-0.5, 0.2, -3600, 3600, -1, 0.9, -0.0004, 7200, 7200, -7200, -0.02, 100000, -100000]
    last = clock.now()
    for turn in range(400):
        world.ahead += steps[turn % len(steps)]
        world.uptime += (turn % 7) * 0.003
        clock.refresh()
        moment = clock.now()
        assert moment >= last
        last = moment


def test_a_store_that_fell_behind_is_approached_by_slewing(world: World, clock: StoreClock):
    """The clock runs at 95 % of its speed or more until the store has caught up."""
    before = clock.now()
    world.ahead -= 1.0
    clock.refresh()
    assert clock.now() == near(before)
    assert clock.drift() == near(1.0)
    for _ in range(10):
        world.uptime += 1
        moment = clock.now()
        assert moment - before == near(0.95)
        before = moment
    assert clock.drift() == near(0.5)
    world.uptime += 10
    assert clock.now() == near(world.store_time())
    world.uptime += 10
    assert clock.now() == near(world.store_time())
    assert clock.drift() == 0


def test_the_slewing_does_not_depend_on_how_often_the_clock_is_read(world: World):
    """After 10 s the clock has slewed by half a second, whether it was read once or a thousand times."""
    clocks = [world.clock() for _ in range(2)]
    world.ahead -= 5
    for clock in clocks:
        clock.now()
        clock.refresh()
    for _ in range(1000):
        world.uptime += 0.01
        clocks[0].now()
    assert clocks[0].now() == near(clocks[1].now())
    assert clocks[0].now() == near(world.store_time() + 4.5)


def test_a_store_that_recovers_ends_the_slewing(world: World, clock: StoreClock):
    """When the store's time agrees with the clock again, the clock runs at full speed."""
    clock.now()
    world.ahead -= 0.8
    clock.refresh()
    world.uptime += 2
    clock.now()
    world.ahead += 0.8
    clock.refresh()
    assert clock.drift() == 0
    assert clock.now() == near(world.store_time())


def test_many_threads_read_one_rising_time(world: World, clock: StoreClock):
    """During refreshes, no thread reads a time below one that it read before."""
    stop = threading.Event()

    def reader() -> bool:
        moments = [clock.now() for _ in range(2000)]
        return moments == sorted(moments)

    def refresher() -> None:
        while not stop.is_set():
            world.ahead += -0.3
            clock.refresh()
            world.ahead += 0.3
            world.uptime += 0.001

    with ThreadPoolExecutor(4) as pool:
        beside = pool.submit(refresher)
        rising = [pool.submit(reader) for _ in range(3)]
        results = [future.result(120) for future in rising]
        stop.set()
        beside.result(120)
    assert results == [True] * 3


def test_a_manual_clock_moves_only_when_it_is_advanced():
    clock = ManualClock(START + 0.0004)
    assert clock.now() == clock.now() == START
    assert clock.advance(0.001) == near(START + 0.001)
    assert clock.advance(0) == clock.now() == round(START + 0.001, 3)


def test_a_manual_clock_adds_no_errors():
    """Ten thousand steps of a millisecond add up to ten seconds."""
    clock = ManualClock(START)
    for _ in range(10_000):
        clock.advance(0.001)
    assert clock.now() == START + 10


def test_a_manual_clock_refuses_to_go_back():
    """The rejected step does not change the time."""
    clock = ManualClock(START)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-0.001)
    assert clock.now() == START
