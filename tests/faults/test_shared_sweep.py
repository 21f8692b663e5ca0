# SPDX-License-Identifier: Apache-2.0
"""Sweeps by servers that share a store: no work is done twice, and dead servers do not block others.

A server that died or hangs within its round is simulated by a pace that does not return.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.servers import wait_for
from zq.clock import ManualClock
from zq.conformance.builders import Scene, run_together
from zq.model import QueueRef
from zq.model.expiry import Steps
from zq.storage.api import Storage
from zq.storage.mongodb import expiry as mongodb_expiry
from zq.storage.redis import maintenance as redis_maintenance

SIZE, COUNT = 10, 40
LEASE = 4.0


class Looks(Steps):
    """A counter of the queries of a round and of its steps that removed nothing."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(size)
        self.asked = 0
        self.useful = 0

    def step(self) -> int:
        self.asked += 1
        return super().step()

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        super().removed(count, queue)
        self.useful += 1


class Stopped(Looks):
    """A pace that blocks before its second step until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def step(self) -> int:
        if self.asked == 1:
            self.reached.set()
            assert self.go_on.wait(120)
        return super().step()


class Servers:
    """Two servers on a store, with a queue of expired messages."""

    def __init__(self, open_one: Callable[[], Storage]) -> None:
        self.open_one = open_one
        self.first, self.second = open_one(), open_one()
        self.scene = Scene(self.first, ManualClock(self.first.now()), QueueRef("acme", "jobs"))
        self.scene.post(COUNT, ttl=60)
        self.scene.tick(60)

    @contextlib.contextmanager
    def stopped(self, storage: Storage) -> Iterator[tuple[Stopped, list[int]]]:
        """Run a round of this server that stops after its first step and continues at the end.

        Yield the removed counts.
        """
        pace, removed = Stopped(), []
        thread = threading.Thread(target=lambda: removed.append(storage.maintain(self.scene.now, None, pace)))
        thread.start()
        try:
            assert pace.reached.wait(60)
            yield pace, removed
        finally:
            pace.go_on.set()
            thread.join(60)


pytestmark = pytest.mark.shared


@pytest.fixture
def servers(open_store: Callable[[], Storage]) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(lambda: stack.enter_context(contextlib.closing(open_store())))


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_maintenance, "LEASE", LEASE)
    monkeypatch.setattr(mongodb_expiry, "LEASE", LEASE)


def test_what_one_server_sweeps_is_left_to_it(servers: Servers):
    """A round of another server ends at once, and the first server removes everything."""
    with servers.stopped(servers.first) as (pace, removed):
        looks = Looks()
        assert servers.second.maintain(servers.scene.now, None, looks) == 0
        assert looks.asked <= 1
    assert removed == [COUNT]
    assert pace.useful == COUNT / SIZE


def test_when_a_round_is_over_others_need_not_wait(servers: Servers):
    """The lease is released, even by a round that its pace ended."""
    assert servers.first.maintain(servers.scene.now, None, Steps(SIZE, SIZE)) == SIZE
    assert servers.second.maintain(servers.scene.now, None, Steps(SIZE, SIZE)) == SIZE
    assert servers.first.maintain(servers.scene.now) == COUNT - 2 * SIZE


def test_servers_at_once_look_at_each_queue_once(servers: Servers):
    """Four concurrent rounds remove everything in about as many steps as one round."""
    rooms = [servers.scene.at(f"q{at}", project=f"p{at % 3}") for at in range(20)]
    for room in rooms:
        room.post(5, ttl=60)
    servers.scene.tick(60)
    paces = [Looks(1000) for _ in range(4)]
    storages = [servers.first, servers.second, servers.open_one(), servers.open_one()]
    rounds = [
        lambda storage=storage, pace=pace: storage.maintain(servers.scene.now, None, pace)
        for storage, pace in zip(storages, paces, strict=True)
    ]
    assert sum(run_together(*rounds)) == COUNT + 5 * len(rooms)
    assert sum(pace.asked for pace in paces) <= 1 + len(rooms) + len(paces)


@pytest.mark.usefixtures("short_leases")
def test_a_server_that_died_in_its_round_is_not_waited_for_long(servers: Servers):
    """The dead server's lease expires. A server that was alive continues, and no message is counted twice."""
    with servers.stopped(servers.first) as (_, removed):
        looks: list[int] = []

        def swept() -> int:
            looks.append(servers.second.maintain(servers.scene.now))
            return looks[-1]

        assert wait_for(swept, 5 * LEASE, "the other server sweeps") == COUNT - SIZE
        assert looks[0] == 0, "the first one had its turn"
    assert removed == [SIZE]


@pytest.mark.usefixtures("short_leases")
def test_a_server_that_slept_through_its_turn_leaves_the_queue_to_its_successor(servers: Servers):
    """The server checks its lease before it continues, and removes nothing while the other server sweeps."""
    with servers.stopped(servers.first) as (slept, removed):

        def taken_over() -> bool:
            pace = Looks()
            pace.left = SIZE
            return servers.second.maintain(servers.scene.now, None, pace) == SIZE

        wait_for(taken_over, 5 * LEASE, "the turn is over")
        with servers.stopped(servers.second):
            slept.go_on.set()
            wait_for(lambda: removed, 60, "the first round is over")
            assert removed == [SIZE]
    assert servers.first.maintain(servers.scene.now) == 0
