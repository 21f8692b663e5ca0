# SPDX-License-Identifier: Apache-2.0
"""Moves of queues between pools on real stores: what moves, what is refused meanwhile, and who continues after a crash.

Each deployment has one catalogue; each of its servers is a ``PooledStorage`` with a mover of its own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.abilities import need
from tests.servers import wait_for
from tests.stores import Stores
from tests.tables import every_row
from zq.clock import StoreClock
from zq.core.redelivery import Redelivery
from zq.conformance.builders import Scene, make_key
from zq.errors import ClaimNotFound, MoveNotFound, MoveRefused, PoolNotFound, QueueMoving, QueueNotFound, Unavailable
from zq.model import Draft, Fence, QueueRef
from zq.model.hidden import Owner
from zq.model.limits import Limits
from zq.model.parcels import facts
from zq.model.pools import Pool, PoolProcess, flavor_ref, pool_ref
from zq.pools import mover as mover_module
from zq.pools.mover import Lease, Mover, Server
from zq.pools.moves import Move, Moves
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.pooling import PooledStorage, freezes

QUEUE = QueueRef("acme", "jobs")
DEAD = QueueRef("acme", "dead")


class Member:
    """One server of the deployment: its pooled store, and its mover, which runs only when a test says so."""

    def __init__(self, deployment: "Deployment") -> None:
        self.storage = PooledStorage(deployment.catalogue, deployment.open, virtual=True)
        self.storage.follow_moves(is_shared=True)
        clock = StoreClock(deployment.catalogue.now)
        relocation = self.storage.relocation
        self.mover = Mover(
            relocation,
            deployment.catalogue,
            clock,
            lambda wake: Moves(relocation, deployment.catalogue, clock, Limits(), wake),
            lambda: deployment.servers,
        )
        self.moves = self.mover.moves

    def scene(self, name: str = "jobs") -> Scene:
        return Scene(self.storage, SimpleNamespace(now=self.storage.now), QueueRef("acme", name))

    def request(self, pool: str, queue: str = "jobs") -> Move:
        return self.moves.start(pool, "acme", msgspec.json.encode({"queue": queue}))

    def move(self, pool: str, queue: str = "jobs") -> Move:
        """Request a move, run it, and return it."""
        requested = self.request(pool, queue)
        self.mover.run_round()
        return self.moves.get(pool, requested.id)

    def contents(self, *queues: QueueRef) -> list[str]:
        """Return everything that the stores of the queues keep of them, as text."""
        now, found = self.storage.now(), []
        for queue in queues:
            binding = self.storage.relocation.binding(queue)
            store: Any = self.storage.relocation.store(binding.pool if binding else "")
            after = ""
            while (page := store.parcels.export_queue(queue, after, 3, now)).next is not None:
                found += [repr(fact) for parcel in page.items for fact in facts(parcel, now)]
                after = page.next
        return sorted(found)


class Deployment:
    """A catalogue in memory and the stores of pools."""

    def __init__(self, opened: ExitStack, uris: dict[str, str]) -> None:
        self.catalogue = connect("memory:")
        self.uris = uris
        self.servers: list[Server] = []
        self.stores: dict[str, Storage] = {}
        self._opened = opened
        opened.callback(self.catalogue.close)
        for name, uri in uris.items():
            self.add_pool(name, uri)

    def add_pool(self, name: str, uri: str, flavor: str | None = None) -> None:
        value = msgspec.json.encode(Pool(uri, 0, flavor))
        self.catalogue.documents.put(pool_ref(name), value, self.catalogue.now())

    def open(self, uri: str, _expiry: object) -> Storage:
        if uri not in self.stores:
            self.stores[uri] = connect("memory:" if uri.startswith("memory:") else uri)
            self._opened.callback(self.stores[uri].close)
        return self.stores[uri]

    def member(self) -> Member:
        member = Member(self)
        self._opened.callback(member.storage.relocation._freezes.stop)
        return member


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """Pools ``a`` and ``b`` in memory."""
    with ExitStack() as opened:
        yield Deployment(opened, {"a": "memory:a", "b": "memory:b"})


@pytest.fixture
def member(deployment: Deployment) -> Member:
    return deployment.member()


def fill(member: Member) -> list[str]:
    """Store messages in all states, history, keys and dead letters in the queues, and return the names of the queues."""
    member.storage.queues.create(QUEUE, b'{"_dead_letter_queue": "dead", "_max_claim_count": 3}')
    scene = member.scene()
    scene.post(5, once=make_key("post:1"))
    scene.post(1, delay=600)
    scene.take(1, ttl=300, redelivery=Redelivery(delay=30))
    scene.release(scene.take(1).id, 0)
    scene.settle(scene.take(1).id, rest=True, history=600, once=make_key("settle:1"))
    scene.move(scene.post(1), "dead", history=900, reason="poison")
    return ["dead", "jobs"]


# What moves ----------------------------------------------------------------------------------------------------------


def test_a_queue_moves_with_everything_and_its_dead_letter_queue(member: Member) -> None:
    """Ids, sequences, times, history, keys, claim counts; and the former pool keeps nothing."""
    names = fill(member)
    before = member.contents(QUEUE, DEAD)
    done = member.move("a")
    assert (done.phase, done.error, done.queues, done.source) == ("done", "", names, "")
    assert member.contents(QUEUE, DEAD) == before
    assert member.storage.catalogue.queues.list("acme", "", 9).items == []
    assert {queue.ref.name for queue in member.storage.queues.list("acme", "", 9).items} == {"dead", "jobs"}
