# SPDX-License-Identifier: Apache-2.0
"""Turns at counters: one after the other, whatever the order in which they are named."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from zq.errors import Unavailable
from zq.storage.mongodb.turns import Turns

PATIENCE = 10.0


def test_two_at_one_counter_never_overlap():
    """Also where they name it together with others, in another order."""
    turns = Turns(PATIENCE)
    inside: list[int] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait(PATIENCE)
        for _ in range(200):
            with turns.at(["b", "a", str(number)] if number % 2 else [str(number), "a", "b"]):
                inside.append(number)
                assert inside == [number]
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result(PATIENCE)


def test_who_waits_too_long_gives_up_and_keeps_nothing():
    """Neither the counter that it got, nor the one that it did not get."""
    turns = Turns(0.05)
    with turns.at(["a"]), pytest.raises(Unavailable), turns.at(["a", "b", "c"]):
        raise AssertionError
    with turns.at(["a", "b", "c"]):
        pass


def test_who_needs_no_counter_waits_for_nobody():
    """Neither do two at the same time."""
    turns = Turns(PATIENCE)
    with turns.at([]), turns.at([]):
        pass
