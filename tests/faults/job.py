# SPDX-License-Identifier: Apache-2.0
"""A job on MongoDB that commits its claims and stages, while servers die or are overtaken.

A dying server is simulated by a watcher that raises: no later step of it runs. Other servers use the same database.
"""

import time
from collections.abc import Callable

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, Scene, drafts, ids_of
from zq.core.commit_executor import CommitExecutor
from zq.errors import ProducerNotFound
from zq.model import Bounds, ClaimRef, Commit, CommitResult, Fence, Outcome, QueueRef
from zq.storage.api import Storage
from zq.storage.mongodb import MongoStorage
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.producers import CommitEvents

# Number of messages that a transaction changes in these tests.
PART = 50
HELD, STAGED = 120, 130
TIMEOUT = 5.0
# Seconds after which other servers abort an undecided commit, however long its earlier steps took.
PATIENCE = 2 * TIMEOUT + 20
ALL = CommitResult(1, STAGED, HELD)
REPLAYED = CommitResult(1, STAGED, HELD, replayed=True)


class Dead(BaseException):
    """The death of the process."""


class At(CommitEvents):
    """A watcher that calls a function when a step is reached for the nth time."""

    def __init__(self, step: str, nth: int, then: Callable[[], None]) -> None:
        self._step, self._left, self._then = step, nth, then

    def reached(self, step: str) -> None:
        self._left -= step == self._step
        if step == self._step and self._left == 0:
            self._then()


def die() -> None:
    raise Dead


class Job:
    """A job that has claimed messages of ``in`` and staged its results, and commits both."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self.step = PART
        """Number of messages in a step of the store."""
        self.messages = client.messages
        self._servers: list[MongoStorage] = []
        store = self.server()
        clock = ManualClock(store.now())
        self.input = Scene(store, clock, QueueRef("acme", "in"))
        self.taken = self.input.post(HELD)
        self.claims = [self.input.take(40, name=f"job.{number}").id for number in range(3)]
        self.staged: dict[str, list[str]] = {"left": [], "right": []}
        for number in range(13):
            name = "left" if number % 3 else "right"
            new = drafts(10, clock.now(), delay=60 if number == 12 else 0)
            self.staged[name] += ids_of(new)
            out = QueueRef("acme", name)
            store.transactions.stage("acme", f"stage.{number // 5}", out, new, clock.now(), 600, 1 << 20)

    def server(self, events: CommitEvents | None = None) -> MongoStorage:
        """Return another server on the same database, which shares only the connections."""
        self._servers.append(MongoStorage(self._client, events))
        return self._servers[-1]

    def close(self) -> None:
        for storage in self._servers:
            storage._feed.close()

    def order(self, batch: int = 1, fence: Fence | None = None) -> Commit:
        settle = [ClaimRef(self.input.queue, claim, history=3600 if claim == "job.2" else 0) for claim in self.claims]
        return Commit("acme", "etl", batch, [f"stage.{number}" for number in range(3)], settle, 3600, fence)

    def commit(self, store: Storage, order: Commit | None = None) -> CommitResult:
        return self.carrier(store).commit(order or self.order())

    def carrier(self, store: Storage) -> CommitExecutor:
        """Return an executor of commits on this store."""
        return CommitExecutor(store.transactions, self.input.clock, Bounds(self.step, 10**6), 30)

    def upkeep(self, store: Storage) -> None:
        """Run a server's maintenance until it has seen abandoned commits twice and has completed them."""
        store.maintain(self.input.now)
        carrier = self.carrier(store)
        for _ in range(2):
            carrier.resume()
        deadline = time.monotonic() + DEADLINE
        while store.transactions.find_unfinished_commits(self.input.now) and time.monotonic() < deadline:
            carrier.resume()

    def dies(self, step: str, nth: int = 1, store: Storage | None = None) -> None:
        """Let a committing server die at this step."""
        with pytest.raises(Dead):
            self.commit(store or self.server(At(step, nth, die)))

    def assert_done(self) -> None:
        self.input.tick(60)
        assert self.published == self.staged
        assert self.input.walk() == []
        assert self.input.storage.queues.stats(self.input.queue, self.input.now).claimed == 0
        assert [one.message.id for one in self.input.history()] == self.taken[80:]
        assert {one.outcome for one in self.input.history()} == {Outcome.DELETED}
        assert self.commit(self.input.storage) == REPLAYED
        assert self.leftovers() == ["p4:acme/etl"]

    def assert_undone(self) -> None:
        assert self.published == {"left": [], "right": []}
        held = [self.input.storage.claims.get(self.input.queue, claim, self.input.now) for claim in self.claims]
        assert [ids_of(claim.messages) for claim in held] == [self.taken[:40], self.taken[40:80], self.taken[80:]]
        with pytest.raises(ProducerNotFound):
            self.input.storage.transactions.last("acme", "etl", self.input.now)
        self.input.renew("job.0")
        assert self.commit(self.input.storage) == ALL
        self.assert_done()

    @property
    def published(self) -> dict[str, list[str]]:
        return {name: ids_of(self.input.at(name).walk()) for name in self.staged}

    def leftovers(self) -> list[str]:
        """Return the ids of documents of stages, drafts and producers."""
        found = self._client.messages.find({"_id": {"$regex": "^[sdp]"}}, {"_id": 1})
        return [str(one["_id"]) for one in found]
