# SPDX-License-Identifier: Apache-2.0
"""Purges and deletions of a queue on MongoDB by one server while another server executes a verb."""

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pytest

from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, Scene
from zq.conformance.test_claim_lists import claims
from zq.errors import ClaimLapsed, ClaimNotFound
from zq.model import ClaimRef, Move, QueueRef
from zq.storage.mongodb import changes, commits, connect
from zq.storage.mongodb.client import StoreClient

WAYS = pytest.mark.parametrize("way", ["purge", "delete"])


@pytest.fixture
def servers(mongodb: MongoServer, request: pytest.FixtureRequest) -> Iterator[list[Scene]]:
    """Return two servers on a store with the same queue, in a project that no other test uses."""
    storages = [connect(mongodb.uri_of("removals"), timeout=DEADLINE) for _ in range(2)]
    clock = ManualClock(storages[0].now())
    project = f"p{crc32(request.node.name.encode())}"
    yield [Scene(storage, clock, QueueRef(project, "jobs")) for storage in storages]
    for storage in storages:
        storage.close()


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Return a function that runs another one before the next call of a function of ``changes``."""

    def plan(name: str, action: Callable[[], object]) -> None:
        original = getattr(changes, name)

        def interrupted(*arguments: Any) -> object:
            monkeypatch.setattr(changes, name, original)
            action()
            return original(*arguments)

        monkeypatch.setattr(changes, name, interrupted)

    return plan


def remove(scene: Scene, way: str) -> Callable[[], None]:
    return lambda: getattr(scene.storage.queues, way)(scene.queue)


@WAYS
@pytest.mark.parametrize("history", [0, 60])
def test_a_move_that_found_messages_before_a_removal_moves_none_of_them(
    servers: list[Scene], meanwhile: Callable, way: str, history: int
) -> None:
    """A message that a purge or deletion has removed appears in no queue after the removal's response."""
    here, there = servers
    posted = here.post(3)
    meanwhile("advance", remove(there, way))
    assert here.move(posted, "other", history=history) == []
    assert here.at("other").is_empty()
    assert here.history() == []


@WAYS
def test_a_settlement_that_found_messages_before_a_removal_moves_none_of_them(
    servers: list[Scene], meanwhile: Callable, way: str
) -> None:
    """The claim is removed with its messages."""
    here, there = servers
    here.post(3)
    claim = here.take(3)
    meanwhile("advance", remove(there, way))
    with pytest.raises(ClaimNotFound):
        here.settle(claim.id, move=[Move(one.id, "other") for one in claim.messages])
    assert here.at("other").is_empty()


@pytest.mark.parametrize("verb", ["pop", "delete", "settle"])
def test_a_verb_that_found_messages_before_a_purge_leaves_no_history_of_them(
    servers: list[Scene], meanwhile: Callable, verb: str
) -> None:
    """No history entry appears after the purge's response."""
    here, there = servers
    posted = here.post(2)
    claim = here.take(2) if verb == "settle" else None
    meanwhile("_position", remove(there, "purge"))
    if verb == "pop":
        assert here.pop(2, history=60) == []
    elif verb == "delete":
        here.delete_many(posted, history=60)
    elif claim:
        with pytest.raises(ClaimNotFound):
            here.settle(claim.id, rest=True, history=60)
    assert here.history() == []


@WAYS
@pytest.mark.parametrize("history", [0, 60])
def test_a_commit_that_found_messages_before_a_removal_publishes_nothing(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch, way: str, history: int
) -> None:
    """A commit whose claims lost their messages by a purge or deletion is refused after the removal's response."""
    here, there = servers
    here.post(2)
    claim = here.take(2)
    here.at("other").stage("s1", 2)
    original = commits.publish

    def interrupted(*arguments: Any) -> object:
        monkeypatch.setattr(commits, "publish", original)
        remove(there, way)()
        return original(*arguments)

    monkeypatch.setattr(commits, "publish", interrupted)
    with pytest.raises(ClaimLapsed):
        here.commit(1, ["s1"], [ClaimRef(here.queue, claim.id, history)])
    assert here.at("other").is_empty()
    assert here.history() == []


@pytest.mark.parametrize("whole_project", [True, False])
def test_a_listing_of_claims_reads_once_while_a_purged_queue_takes_posts(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch, whole_project: bool
) -> None:
    """Posts change the queue's document, but not the position of its purge."""
    here, there = servers
    purged = there.at("purged")
    for scene in (here, purged):
        scene.post(2)
        scene.take(1)
    remove(purged, "purge")()
    aggregate, reads = StoreClient.aggregate, []

    def counted(self: StoreClient, *arguments: Any) -> object:
        reads.append(self)
        assert len(reads) < 10
        found = aggregate(self, *arguments)
        purged.post(1)
        return found

    monkeypatch.setattr(StoreClient, "aggregate", counted)
    [listed] = claims(here, 10, whole_project=whole_project)
    assert (listed.queue, listed.messages) == ("jobs", 1)
    assert len(reads) <= 2


@WAYS
def test_a_listing_of_claims_shows_a_removal_that_came_while_it_was_read(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A listing has either all messages of a claim or none."""
    here, there = servers
    here.post(4)
    here.take(4)
    aggregate = StoreClient.aggregate

    def interrupted(self: StoreClient, *arguments: Any) -> object:
        monkeypatch.setattr(StoreClient, "aggregate", aggregate)
        found = aggregate(self, *arguments)
        remove(there, way)()
        there.storage.maintain(there.now)
        return found

    monkeypatch.setattr(StoreClient, "aggregate", interrupted)
    assert claims(here, 10) == []
