# SPDX-License-Identifier: Apache-2.0
"""The clock of a server: it follows the store's time and never runs backwards (extensions 1, "Time")."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from zq.clock import ManualClock, StoreClock

START = 1_800_000_000.0


class World:
    """A machine's monotonic time and a store's time, both told what to be; ``delay`` = the store's round trip."""

    def __init__(self) -> None:
        self.uptime = 500.0
        self.ahead = START
        """Store time minus machine time."""
        self.delay = 0.0
        self.asked = 0

    def monotonic(self) -> float:
        return self.uptime

    def read(self) -> float:
        self.asked += 1
        self.uptime += self.delay / 2
        told = self.uptime + self.ahead
        self.uptime += self.delay / 2
        return told

    def store_time(self) -> float:
        return self.uptime + self.ahead


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clock(world: World) -> StoreClock:
    return StoreClock(world.read, world.monotonic)


def near(moment: float):
    return pytest.approx(moment, abs=0.0015)


def test_the_clock_tells_the_store_s_time(world: World, clock: StoreClock):
    """Not the machine's: the offset is taken at the start and held between refreshes."""
    assert clock.now() == near(START + 500)
    asked = world.asked
    world.uptime += 12.5
    assert clock.now() == near(START + 512.5)
    assert world.asked == asked


def test_moments_are_whole_milliseconds(world: World, clock: StoreClock):
    """A moment survives being stored in milliseconds."""
    for _ in range(100):
        world.uptime += 0.0123456
        assert clock.now() == round(clock.now(), 3)


def test_a_round_trip_is_halved(world: World):
    """The store's answer stands for the middle between asking and hearing."""
    world.delay = 0.08
    clock = StoreClock(world.read, world.monotonic)
    assert clock.now() == near(world.store_time())
    world.ahead += 0.5
    clock.refresh()
    assert clock.now() == near(world.store_time())


def test_a_store_that_is_slow_at_the_start_still_gives_a_time(world: World):
    """With no exact sample to be had, an inexact one must do."""
    world.delay = 0.4
    clock = StoreClock(world.read, world.monotonic)
    assert clock.now() == pytest.approx(world.store_time(), abs=0.4)


def test_a_small_step_forward_is_taken_at_once(world: World, clock: StoreClock):
    """Up to a second the store is believed on its first word."""
    clock.now()
    for step in (0.001, 0.5, 0.999):
        world.ahead += step
        clock.refresh()
        assert clock.now() == near(world.store_time())
        assert clock.drift() == 0


def test_a_slow_answer_changes_nothing(world: World, clock: StoreClock):
    """A round trip above 100 ms tells too little; one of 100 ms is still taken."""
    world.ahead += 0.5
    world.delay = 0.11
    clock.refresh()
    assert clock.now() == near(world.store_time() - 0.5)
    world.delay = 0.099
    clock.refresh()
    assert clock.now() == near(world.store_time())


def test_a_jump_needs_three_answers_that_agree(world: World, clock: StoreClock):
    """More than a second forward is believed at the third sample, not before."""
    world.ahead += 3600
    for _ in range(2):
        world.uptime += 5
        clock.refresh()
        assert clock.now() == near(world.store_time() - 3600)
    world.uptime += 5
    clock.refresh()
    assert clock.now() == near(world.store_time())


def test_jumps_that_disagree_are_not_believed(world: World, clock: StoreClock):
    """Three different answers are none; when the last three agree, they count."""
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


def test_a_sane_answer_between_jumps_starts_the_count_anew(world: World, clock: StoreClock):
    """Two strays, a sane answer and one more stray make no jump."""
    for ahead in (3600, 3600, 0, 3600, 3600):
        world.ahead = START + ahead
        clock.refresh()
        assert clock.now() == near(START + world.uptime)


def test_a_slow_answer_does_not_count_towards_a_jump(world: World, clock: StoreClock):
    """Only exact samples agree with each other."""
    world.ahead += 3600
    world.delay = 0.5
    for _ in range(5):
        clock.refresh()
    assert clock.now() == near(world.store_time() - 3600)


def test_the_clock_never_runs_backwards(world: World, clock: StoreClock):
    """Whatever the store says, however often it is asked, each moment is at least the one before."""
    steps = [-0.5, 0.2, -3600, 3600, -1, 0.9, -0.0004, 7200, 7200, -7200, -0.02, 100000, -100000]
    last = clock.now()
    for turn in range(400):
        world.ahead += steps[turn % len(steps)]
        world.uptime += (turn % 7) * 0.003
        clock.refresh()
        moment = clock.now()
        assert moment >= last
        last = moment


def test_a_store_that_fell_behind_is_approached_slowly(world: World, clock: StoreClock):
    """The clock runs on at no less than 95 % of its speed until the store has caught up, then with it."""
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
    """Read once or a thousand times, after 10 s it has given up half a second."""
    clocks = [StoreClock(world.read, world.monotonic) for _ in range(2)]
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
    """When the store is back where the clock is, the two run on together."""
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
    """Reads beside refreshes: no thread sees a moment below one that it saw before."""
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
        results = [future.result(30) for future in rising]
        stop.set()
        beside.result(30)
    assert results == [True] * 3


def test_a_manual_clock_moves_only_when_told():
    """It stands still between steps, and says where it is after each."""
    clock = ManualClock(START + 0.0004)
    assert clock.now() == clock.now() == START
    assert clock.advance(0.001) == near(START + 0.001)
    assert clock.advance(0) == clock.now() == round(START + 0.001, 3)


def test_a_manual_clock_adds_no_errors():
    """Ten thousand steps of a millisecond are ten seconds."""
    clock = ManualClock(START)
    for _ in range(10_000):
        clock.advance(0.001)
    assert clock.now() == START + 10


def test_a_manual_clock_refuses_to_go_back():
    """Like every clock of zq; and the refusal moves nothing."""
    clock = ManualClock(START)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-0.001)
    assert clock.now() == START
