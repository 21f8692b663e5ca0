# SPDX-License-Identifier: Apache-2.0
"""Striped locks, which exclude each other by name, and group commit, which coalesces concurrent requests."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from zq.errors import Unavailable
from zq.storage.concurrency import GroupCommit, StripedLocks

PATIENCE = 60.0


class Executor:
    """An executor that records the groups and can be blocked."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)

    def execute(self, requests: Sequence[int]) -> Sequence[int | Exception]:
        self.groups.append(list(requests))
        self.entered.release()
        assert self.open.wait(PATIENCE)
        if 13 in requests:
            raise LookupError
        return [ValueError(str(request)) if request < 0 else request * 2 for request in requests]


def waiting(commit: GroupCommit[int, int], count: int) -> None:
    """Wait until `count` requests wait for the next group."""
    deadline = threading.Event()
    for _ in range(6000):
        if len(commit._waiting) == count:
            return
        deadline.wait(0.01)
    raise AssertionError(f"{len(commit._waiting)} wait, not {count}.")


def side_by_side(executor: Executor, commit: GroupCommit[int, int], requests: Sequence[int]) -> list[Future[int]]:
    """Submit the first request and, while it is under way, the others in order."""
    pool = ThreadPoolExecutor(len(requests))
    futures = []
    for at, request in enumerate(requests):
        futures.append(pool.submit(commit.submit, request))
        if at == 0:
            assert executor.entered.acquire(timeout=PATIENCE)
        else:
            waiting(commit, at)
    executor.open.set()
    pool.shutdown()
    return futures


def test_concurrent_requests_are_coalesced_and_one_leader_executes_the_group():
    """The first request runs at once in its own group; the waiting requests form one group, in order of arrival."""
    executor = Executor()
    futures = side_by_side(executor, GroupCommit(executor.execute), [1, 2, 3, 4])
    assert [future.result() for future in futures] == [2, 4, 6, 8]
    assert executor.groups == [[1], [2, 3, 4]]


def test_groups_run_in_parallel_up_to_the_limit():
    """Two requests run in parallel; the others wait until one of the two groups ends."""
    executor = Executor()
    commit = GroupCommit(executor.execute, parallel=2)
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(commit.submit, 1), pool.submit(commit.submit, 2)]
        assert all(executor.entered.acquire(timeout=PATIENCE) for _ in range(2))
        for at, request in enumerate([3, 4, 5], 1):
            futures.append(pool.submit(commit.submit, request))
            waiting(commit, at)
        assert sorted(executor.groups) == [[1], [2]]
        executor.open.set()
        assert [future.result() for future in futures] == [2, 4, 6, 8, 10]
    assert len(executor.groups) < 5
    assert commit.submit(6) == 12


def test_a_group_is_no_heavier_than_its_capacity():
    """A request that exceeds the capacity forms a group of its own."""
    executor = Executor()
    commit = GroupCommit(executor.execute, weigh=lambda weight: weight, capacity=10)
    futures = side_by_side(executor, commit, [1, 4, 6, 5, 99, 1])
    assert [future.result() for future in futures] == [2, 8, 12, 10, 198, 2]
    assert executor.groups == [[1], [4, 6], [5], [99], [1]]


def test_an_answer_that_is_an_exception_is_raised_to_its_own_request():
    """The other members of the group get their answers."""
    executor = Executor()
    first, bad, good = side_by_side(executor, GroupCommit(executor.execute), [1, -2, 3])
    assert (first.result(), good.result()) == (2, 6)
    with pytest.raises(ValueError, match="-2"):
        bad.result()


def test_an_error_of_a_group_is_raised_to_all_its_members_and_to_no_other_request():
    executor = Executor()
    commit = GroupCommit(executor.execute)
    first, one, other = side_by_side(executor, commit, [1, 13, 3])
    assert first.result() == 2
    for future in (one, other):
        with pytest.raises(LookupError):
            future.result()
    assert commit.submit(5) == 10


def test_a_group_that_fails_by_one_member_is_executed_one_by_one():
    """Only the member that caused the error fails."""
    executor = Executor()
    commit = GroupCommit(executor.execute, one_by_one_after=(LookupError,))
    first, bad, good = side_by_side(executor, commit, [1, 13, 3])
    assert (first.result(), good.result()) == (2, 6)
    with pytest.raises(LookupError):
        bad.result()
    assert executor.groups == [[1], [13, 3], [13], [3]]


def test_requests_with_a_key_in_common_are_executed_one_by_one():
    """The first request is finished before the second one is checked."""
    executor = Executor()
    commit = GroupCommit(executor.execute, keys=lambda request: [request % 10])
    futures = side_by_side(executor, commit, [1, 2, 12])
    assert [future.result() for future in futures] == [2, 4, 24]
    assert executor.groups == [[1], [2], [12]]


def test_no_request_waits_longer_than_the_timeout():
    """A request that waits for a stuck group fails, and is not executed later."""
    executor = Executor()
    commit = GroupCommit(executor.execute, timeout=0.05)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(commit.submit, 1)
        assert executor.entered.acquire(timeout=PATIENCE)
        with pytest.raises(Unavailable):
            commit.submit(2)
        executor.open.set()
        assert stuck.result() == 2
    assert executor.groups == [[1]]


def test_a_leader_lingers_until_the_group_has_its_last_size():
    """The leader ends its linger as soon as the group has as many members as the last one."""
    executor = Executor()
    commit = GroupCommit(executor.execute, linger=PATIENCE)
    side_by_side(executor, commit, [1, 2, 3, 4])
    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(commit.submit, [5, 6, 7])) == [10, 12, 14]
    assert executor.groups[0] == [1]
    assert sorted(executor.groups[-1]) == [5, 6, 7]


def test_a_leader_without_followers_stops_lingering():
    """After a group of one member, the next leader does not linger at all."""
    executor = Executor()
    commit = GroupCommit(executor.execute, linger=0.001)
    side_by_side(executor, commit, [1, 2, 3, 4])
    assert commit.submit(5) == 10
    assert executor.groups[-1] == [5]


def test_two_threads_that_lock_one_name_never_overlap():
    """Threads that lock several names in different order exclude each other too."""
    locks = StripedLocks(PATIENCE)
    inside: list[int] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait(PATIENCE)
        for _ in range(200):
            with locks.locked(*(["b", "a", str(number)] if number % 2 else [str(number), "a", "b"])):
                inside.append(number)
                assert inside == [number]
                inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, number) for number in range(8)]:
            done.result(PATIENCE)


def test_a_thread_that_waits_too_long_gives_up_and_locks_nothing():
    """The lock that was acquired is released again."""
    locks = StripedLocks(0.05)
    with locks.locked("a"), pytest.raises(Unavailable), locks.locked("a", "b", "c"):
        raise AssertionError
    with locks.locked("a", "b", "c"):
        pass


def test_no_names_lock_nothing():
    """Two threads without names do not wait for each other."""
    locks = StripedLocks(PATIENCE)
    with locks.locked(), locks.locked():
        pass
