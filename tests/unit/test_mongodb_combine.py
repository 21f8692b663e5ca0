# SPDX-License-Identifier: Apache-2.0
"""Going together: who comes alone goes at once, who comes meanwhile goes with the next group."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from zq.errors import Unavailable
from zq.storage.mongodb.combine import Combiner

PATIENCE = 10.0


class Gate:
    """A ``serve`` that notes its groups and can be held up."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)

    def serve(self, requests: Sequence[int]) -> Sequence[int | Exception]:
        self.groups.append(list(requests))
        self.entered.release()
        assert self.open.wait(PATIENCE)
        if 13 in requests:
            raise LookupError
        return [ValueError(str(request)) if request < 0 else request * 2 for request in requests]


def waiting(combiner: Combiner[int, int], count: int) -> None:
    """Return when so many wait for the next group."""
    deadline = threading.Event()
    for _ in range(1000):
        if len(combiner._waiting) == count:
            return
        deadline.wait(0.01)
    raise AssertionError(f"{len(combiner._waiting)} wait, not {count}.")


def side_by_side(gate: Gate, combiner: Combiner[int, int], requests: Sequence[int]) -> list[Future[int]]:
    """The first request alone, the others while it is under way, in order."""
    pool = ThreadPoolExecutor(len(requests))
    futures = []
    for at, request in enumerate(requests):
        futures.append(pool.submit(combiner.ask, request))
        if at == 0:
            assert gate.entered.acquire(timeout=PATIENCE)
        else:
            waiting(combiner, at)
    gate.open.set()
    pool.shutdown()
    return futures


def test_who_comes_meanwhile_goes_together():
    """One group for all that wait, in the order in which they came, and nobody waits for company."""
    gate = Gate()
    futures = side_by_side(gate, Combiner(gate.serve, lambda _: 1, 100, PATIENCE), [1, 2, 3, 4])
    assert [future.result() for future in futures] == [2, 4, 6, 8]
    assert gate.groups == [[1], [2, 3, 4]]


def test_a_group_is_no_heavier_than_it_may_be():
    """A request that is too heavy for any group goes alone."""
    gate = Gate()
    futures = side_by_side(gate, Combiner(gate.serve, lambda weight: weight, 10, PATIENCE), [1, 4, 6, 5, 99, 1])
    assert [future.result() for future in futures] == [2, 8, 12, 10, 198, 2]
    assert gate.groups == [[1], [4, 6], [5], [99], [1]]


def test_an_answer_that_is_an_exception_is_raised_to_its_own_request():
    """Its neighbours get theirs."""
    gate = Gate()
    first, bad, good = side_by_side(gate, Combiner(gate.serve, lambda _: 1, 100, PATIENCE), [1, -2, 3])
    assert (first.result(), good.result()) == (2, 6)
    with pytest.raises(ValueError, match="-2"):
        bad.result()


def test_what_a_group_raises_is_raised_to_all_of_it_and_to_nobody_else():
    """And the next request is served."""
    gate = Gate()
    combiner = Combiner(gate.serve, lambda _: 1, 100, PATIENCE)
    first, one, other = side_by_side(gate, combiner, [1, 13, 3])
    assert first.result() == 2
    for future in (one, other):
        with pytest.raises(LookupError):
            future.result()
    assert combiner.ask(5) == 10


def test_nobody_waits_for_longer_than_the_patience():
    """Behind a group that does not come back a request gives up, and is not served later."""
    gate = Gate()
    combiner = Combiner(gate.serve, lambda _: 1, 100, 0.05)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(combiner.ask, 1)
        assert gate.entered.acquire(timeout=PATIENCE)
        with pytest.raises(Unavailable):
            combiner.ask(2)
        gate.open.set()
        assert stuck.result() == 2
    assert gate.groups == [[1]]


def test_a_leader_lingers_until_the_group_of_last_time_is_there_again():
    """And no longer: with a linger that nobody could bear it goes as soon as the last of them has come."""
    gate = Gate()
    combiner = Combiner(gate.serve, lambda _: 1, 100, PATIENCE, linger=PATIENCE)
    side_by_side(gate, combiner, [1, 2, 3, 4])
    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(combiner.ask, [5, 6, 7])) == [10, 12, 14]
    assert gate.groups[0] == [1]
    assert sorted(gate.groups[-1]) == [5, 6, 7]


def test_a_leader_that_waits_in_vain_goes_after_a_moment():
    """The next one, after a group of one, does not wait at all."""
    gate = Gate()
    combiner = Combiner(gate.serve, lambda _: 1, 100, PATIENCE, linger=0.001)
    side_by_side(gate, combiner, [1, 2, 3, 4])
    assert combiner.ask(5) == 10
    assert gate.groups[-1] == [5]
