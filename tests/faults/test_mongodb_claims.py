# SPDX-License-Identifier: Apache-2.0
"""Claims and pops on MongoDB while another server changes the messages that they have found."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace

from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, Scene, drafts, ids_of
from zq.model import UNBOUNDED, ClaimRequest, HandleOutcome, Lease, MessageHandle, Move, QueueRef, Settlement
from zq.storage.mongodb import connect, layout
from zq.storage.mongodb.queue_claimer import QueueClaimer

# The parameter of mongod with the number of index entries after which a search yields.
YIELD = "internalQueryExecYieldIterations"


@pytest.fixture
def servers(mongodb: MongoServer, request: pytest.FixtureRequest) -> Iterator[list[Scene]]:
    """Return two servers on a store, with the same queue."""
    storages = [connect(mongodb.uri_of("claims"), timeout=DEADLINE) for _ in range(2)]
    clock = ManualClock(storages[0].now())
    yield [Scene(storage, clock, QueueRef("acme", f"q{crc32(request.node.name.encode())}")) for storage in storages]
    for storage in storages:
        storage.close()


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function that runs another one after the next search for ready messages."""

    def plan(action: Callable[[], object]) -> None:
        search = QueueClaimer.search_messages

        def interrupted(self: QueueClaimer, *arguments: Any, **terms: Any) -> object:
            found = search(self, *arguments, **terms)
            monkeypatch.setattr(QueueClaimer, "search_messages", search)
            action()
            return found

        monkeypatch.setattr(QueueClaimer, "search_messages", interrupted)

    return plan


def claimed_and_released(scene: Scene) -> None:
    """Claim every ready message and release it at once."""
    scene.take(10, name="other", ttl=60)
    scene.release("other")


def moved_in_place(scene: Scene) -> None:
    """Claim every ready message and replace its body in the same queue."""
    claim = scene.take(10, name="other", ttl=60)
    moves = [Move(id, scene.queue.name, body=b'"new"', reason="retry") for id in ids_of(claim.messages)]
    scene.storage.claims.settle(scene.queue, "other", Settlement(move=moves), scene.now)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("action", [claimed_and_released, moved_in_place])
def test_a_claim_of_messages_that_changed_meanwhile_returns_them_as_they_are(
    servers: list[Scene], meanwhile: Callable, action: Callable[[Scene], None], named: bool
) -> None:
    """The holder gets the present body, and may delete with the claim count of its response."""
    here, there = servers
    here.post(2)
    meanwhile(lambda: action(there))
    request = ClaimRequest(Lease("mine", 60, 60), 2, named=named)
    claim = here.storage.claims.create(here.queue, request, here.now).claim
    assert claim is not None
    stored = here.walk()
    assert [(one.id, one.body, one.claim_count) for one in claim.messages] == [
        (one.id, one.body, one.claim_count) for one in stored
    ]
    handles = [MessageHandle(one.id, "mine", one.claim_count) for one in claim.messages]
    assert here.storage.claims.handle(here.queue, handles, here.now) == [HandleOutcome.DONE] * 2


def test_a_pop_of_messages_that_changed_meanwhile_returns_them_as_they_are(
    servers: list[Scene], meanwhile: Callable
) -> None:
    """A popped message has the body that it had at its removal."""
    here, there = servers
    here.post(2)
    meanwhile(lambda: moved_in_place(there))
    popped = here.storage.messages.pop(here.queue, 2, here.now)
    assert [one.body for one in popped] == [b'"new"'] * 2


def test_messages_larger_than_one_reply_are_read_completely(servers: list[Scene]) -> None:
    """MongoDB divides the result of one search among two replies, each of at most 16 MB."""
    here, _ = servers
    posted = [replace(draft, body=b'"' + b"x" * 9_000_000 + b'"') for draft in drafts(2, here.now)]
    for draft in posted:
        here.storage.messages.post(here.queue, [draft], here.now)
    assert ids_of(here.walk()) == ids_of(posted)
    assert ids_of(here.take(2).messages) == ids_of(posted)


def test_search_beside_changes_of_available_at_finds_each_message_once(mongodb: MongoServer):
    """MongoDB yields after every index entry, so a change moves the entry past the search within milliseconds."""
    storage = connect(mongodb.uri_of("moving"))
    scene = Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
    scene.post(10)
    scene.tick(600)
    claimer, over = storage.messages._claimers.get(layout.key(scene.queue)), threading.Event()
    with mongodb.client() as client, ThreadPoolExecutor(1) as pool:
        messages = client["moving"]["messages"]

        def move() -> None:
            while not over.is_set():
                messages.update_many({"q": {"$regex": "^m"}}, {"$inc": {"d": 1}})

        usual = client.admin.command({"setParameter": 1, YIELD: 1})["was"]
        try:
            moving = pool.submit(move)
            for _ in range(100):
                listed = scene.page()
                assert len(listed) == len(set(listed))
                found = claimer.search_messages(20, layout.ms(scene.now), UNBOUNDED).ready
                assert len(found) == len({one["_id"] for one in found})
        finally:
            over.set()
            client.admin.command({"setParameter": 1, YIELD: usual})
        moving.result(10)
    storage.close()
