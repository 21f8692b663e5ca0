# SPDX-License-Identifier: Apache-2.0
"""Switch intervals of threads: large work runs in slices, shortens the interval, and yields between slices."""

import sys
import threading
from collections.abc import Iterator

import pytest

from zq import turns
from zq.turns import Contention


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the sleeps of this thread's large work without sleeping."""
    sleeps: list[float] = []
    plain, thread = turns.time.sleep, threading.get_ident()
    monkeypatch.setattr(
        turns.time, "sleep", lambda s: sleeps.append(s) if threading.get_ident() == thread else plain(s)
    )
    return sleeps


@pytest.fixture
def ended() -> Iterator[None]:
    yield
    turns.end()


def work(seconds: float) -> None:
    """Use processor time."""
    end = turns.time.thread_time() + seconds
    while turns.time.thread_time() < end:
        pass


def test_slices_have_all_items_and_give_way_between(slept: list[float]) -> None:
    """There is no pause before the first slice, and none if there are few items."""
    assert [list(part) for part in turns.slices("abcde", 2)] == [["a", "b"], ["c", "d"], ["e"]]
    assert slept == [turns.SHORT_PAUSE] * 2
    few = list(range(turns.SLICE))
    assert list(turns.slices(few)) == [few]
    assert len(slept) == 2


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(
    ("contention", "shortest", "longest"),
    [
        (Contention.NONE, turns.SHORT_PAUSE, turns.SHORT_PAUSE),
        (Contention.RECENT, turns.REST_FACTOR * 0.002, turns.MAX_REST),
        (Contention.NOW, turns.YIELD_SECONDS, turns.MAX_REST),
    ],
)
def test_large_work_pauses_by_contention(
    slept: list[float], contention: Contention, shortest: float, longest: float
) -> None:
    turns.begin(lambda: contention)
    work(0.002)
    turns.give_way()
    assert shortest <= slept[0] <= longest
    turns.give_way()
    assert len(slept) == 1, "after next to no work no sleep pays"


def test_turns_are_short_while_any_thread_does_large_work() -> None:
    """The former interval is restored when the last thread ends its large work; both calls may be repeated."""
    before = sys.getswitchinterval()
    both = threading.Barrier(2)

    def other() -> None:
        turns.begin(lambda: Contention.NONE)
        both.wait(60)
        both.wait(60)
        turns.end()

    thread = threading.Thread(target=other)
    thread.start()
    both.wait(60)
    turns.begin(lambda: Contention.NONE)
    turns.begin(lambda: Contention.NONE)
    assert sys.getswitchinterval() == pytest.approx(turns.SHORT_TURN)
    turns.end()
    turns.end()
    assert sys.getswitchinterval() == pytest.approx(turns.SHORT_TURN)
    both.wait(60)
    thread.join()
    assert sys.getswitchinterval() == pytest.approx(before)
