# SPDX-License-Identifier: Apache-2.0
"""Short verbs for tests of storage drivers, so that a test reads like a specification."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeVar

import pytest
from msgspec import structs

from zq.clock import ManualClock
from zq.core import redelivery
from zq.core.commit_executor import CommitExecutor
from zq.core.redelivery import AT_ONCE, DeadLetters, Redelivery
from zq.model import (
    Bounds,
    Claim,
    ClaimRef,
    ClaimRequest,
    Commit,
    CommitResult,
    Draft,
    Fence,
    HandleOutcome,
    HistoryEntry,
    IdempotencyKey,
    Lease,
    ListFilter,
    Message,
    MessageHandle,
    Move,
    QueueRef,
    Release,
    Settlement,
    SettleResult,
    Span,
    Stats,
    new_ids,
)
from zq.model.expiry import Expiry, Steps
from zq.model.stats import Depth
from zq.storage.api import Storage
from zq.storage.capabilities import BOUNDS

EVERYTHING = ListFilter(claimed=True, delayed=True)
FAR = 9_999_999_999.0
"""A time that no test reaches."""
DEADLINE = 120
"""Seconds after which a test with threads fails instead of hanging."""

T = TypeVar("T")
OpenStore = Callable[[], Storage]
"""Opens the store of a test, which is empty at first; each call opens a further connection."""


def drafts(count: int, now: float, *, ttl: int = 3600, delay: int = 0, client: str = "alice") -> list[Draft]:
    """Return drafts with the bodies 0, 1, 2 and so on."""
    return [Draft(id, b"%d" % at, ttl, delay, client) for at, id in enumerate(new_ids(count, now))]


def ids_of(messages: Iterable[Message | Draft]) -> list[str]:
    return [message.id for message in messages]


def near(moment: float):
    """Return a value that equals all times within a millisecond."""
    return pytest.approx(moment, abs=0.0005)


def make_key(key: str = "post:k", digest: bytes = b"digest", window: int = 3600) -> IdempotencyKey:
    return IdempotencyKey(key, digest, window)


def run_together(*works: Callable[[], T]) -> list[T]:
    """Run each function in a thread, all at the same time. Return the results in order, or raise the first error."""
    start = threading.Barrier(len(works))

    def started(work: Callable[[], T]) -> T:
        start.wait(DEADLINE)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(started, work) for work in works]
        return [future.result(DEADLINE) for future in running]


class RunningWorkers:
    """A counter of running workers. Observers run until the last worker has finished."""

    def __init__(self, workers: int) -> None:
        self._lock = threading.Lock()
        self._workers = workers

    @contextmanager
    def at_work(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._workers -= 1

    def is_over(self) -> bool:
        return self._workers == 0


def configure(storage: Storage, expiry: Expiry) -> None:
    """Apply the expiry settings by a maintenance round that removes nothing."""
    storage.maintain(storage.now(), expiry, Steps(max_items=0))


class Scene:
    """A queue of the store under test, with a clock."""

    def __init__(self, storage: Storage, clock: ManualClock, queue: QueueRef) -> None:
        self.storage = storage
        self.clock = clock
        self.queue = queue

    @property
    def now(self) -> float:
        return self.clock.now()

    def tick(self, seconds: float) -> float:
        return self.clock.advance(seconds)

    def at(self, name: str, project: str = "") -> "Scene":
        """Return a queue of the same store, with the same clock."""
        return Scene(self.storage, self.clock, QueueRef(project or self.queue.project, name))

    @property
    def rival(self) -> "Scene":
        """Return the queue with the same name in a project that no other test uses."""
        return self.at(self.queue.name, f"{self.queue.project}.rival")

    def post(
        self,
        count: int = 1,
        *,
        ttl: int = 3600,
        delay: int = 0,
        client: str = "alice",
        once: IdempotencyKey | None = None,
    ) -> list[str]:
        """Post ``count`` messages and return their ids."""
        new = drafts(count, self.now, ttl=ttl, delay=delay, client=client)
        self.storage.messages.post(self.queue, new, self.now, idempotency_key=once)
        return ids_of(new)

    def request(
        self,
        limit: int = 10,
        *,
        ttl: int = 300,
        grace: int = 60,
        name: str = "",
        redelivery: Redelivery = AT_ONCE,
        **terms: object,
    ) -> ClaimRequest:
        """Return a claim request. ``terms`` are further fields of the request."""
        return ClaimRequest(Lease(name or new_ids(1, self.now)[0], ttl, grace), limit, redelivery.delays(), **terms)

    def claim(self, limit: int = 10, *, dead_letters: DeadLetters | None = None, **terms: object) -> Claim | None:
        """Claim messages. Like a server, bury used-up messages. ``terms`` are further fields of the request."""
        request = self.request(limit, max_claims=dead_letters and dead_letters.max_claims, **terms)
        return redelivery.claim(self.storage, self.queue, request, dead_letters, self.now).claim

    def take(self, limit: int = 10, **terms: object) -> Claim:
        """Claim messages, and fail the test if there are none. ``terms`` are fields of the request."""
        claim = self.claim(limit, **terms)
        assert claim is not None
        return claim

    def named(self, name: str, limit: int = 10, **terms: object) -> tuple[list[str], bool]:
        """Claim under a name. Return the ids that the claim holds, and whether the claim existed before."""
        made = self.storage.claims.create(self.queue, self.request(limit, name=name, named=True, **terms), self.now)
        return [] if made.claim is None else ids_of(made.claim.messages), made.existing

    def claim_named(self, name: str, limit: int = 10, **terms: object) -> Claim | None:
        """Claim under a name, and return the new or existing claim."""
        return self.claim(limit, name=name, named=True, **terms)

    def claimable(self, limit: int = 1000) -> list[str]:
        """Claim messages and return their ids in the claim's order."""
        claim = self.claim(limit)
        return [] if claim is None else ids_of(claim.messages)

    def held(self, claim: str) -> list[str]:
        """Return the sorted ids that the claim holds. Raises ``ClaimNotFound``."""
        return sorted(ids_of(self.storage.claims.get(self.queue, claim, self.now).messages))

    def renew(self, claim: str, *, ttl: int = 300, grace: int = 60, fence: Fence | None = None) -> None:
        self.storage.claims.renew(self.queue, Lease(claim, ttl, grace), self.now, fence)

    def release(self, claim: str, delay: int | None = None) -> None:
        self.storage.claims.release(self.queue, claim, self.now, delay)

    def settle(
        self,
        claim: str,
        *,
        delete: Sequence[str] = (),
        rest: bool = False,
        release: Sequence[Release] = (),
        move: Sequence[Move] = (),
        history: int = 0,
        once: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        settlement = Settlement(delete, rest, release, move, history)
        return self.storage.claims.settle(self.queue, claim, settlement, self.now, once, fence)

    def handle(
        self, messages: Iterable[Message], hold: int | None = None, *, late: bool = False, history: int = 0
    ) -> list[HandleOutcome]:
        """Delete or hide messages by their receipts. ``hold`` is the time in seconds to hide them; None = delete."""
        handles = [MessageHandle(message.id, message.claim, message.claim_count, hold) for message in messages]
        return list(self.storage.claims.handle(self.queue, handles, self.now, late, history))

    def move(self, ids: Sequence[str], to: str, *, history: int = 0, **terms: object) -> list[str]:
        """Move messages and return the ids of those that were moved. ``terms`` are further fields of each ``Move``."""
        moves = [Move(id, to, **terms) for id in ids]
        return list(self.storage.messages.move(self.queue, moves, self.now, history))

    def page(self, view: ListFilter = ListFilter(), limit: int = 1000, marker: int = 0) -> list[str]:  # noqa: B008
        return ids_of(self.storage.messages.list(self.queue, marker, limit, view, self.now).items)

    def walk(self, view: ListFilter = EVERYTHING, limit: int = 1000) -> list[Message]:
        """Return all messages that the view shows, read page by page."""
        seen: list[Message] = []
        marker = 0
        while True:
            page = self.storage.messages.list(self.queue, marker, limit, view, self.now)
            if page.next is None:
                assert page.items == []
                return seen
            assert len(page.items) <= limit
            seen += page.items
            marker = int(page.next)

    def get(self, ids: Sequence[str]) -> list[Message]:
        return self.storage.messages.get(self.queue, ids, self.now)

    def one(self, message: str) -> Message:
        [found] = self.get([message])
        return found

    def pop(self, limit: int = 1000, history: int = 0) -> list[str]:
        return ids_of(self.storage.messages.pop(self.queue, limit, self.now, history))

    def delete(self, message: str, claim: str = "", history: int = 0) -> None:
        self.storage.messages.delete(self.queue, [message], self.now, [claim] if claim else [], history)

    def delete_many(self, ids: Sequence[str], claims: Sequence[str] | None = None, history: int = 0) -> None:
        self.storage.messages.delete(self.queue, ids, self.now, claims, history)

    def history(self, marker: int = 0, limit: int = 1000, since: float = 0.0, until: float = FAR) -> list[HistoryEntry]:
        """Return one page of history entries."""
        return self.storage.history.list(self.queue, marker, limit, Span(since, until), self.now).items

    def finished(self) -> list[tuple[str, str | None]]:
        """Return the id and outcome of each history entry, in the order in which the messages were finished."""
        return [(record.message.id, record.outcome) for record in self.history()]

    def tail(self, limit: int = 1000) -> list[HistoryEntry]:
        """Return living messages and history entries, read page by page."""
        seen: list[HistoryEntry] = []
        while True:
            marker = seen[-1].message.sequence if seen else 0
            page = self.storage.history.list(self.queue, marker, limit, None, self.now)
            assert page.next == (str(page.items[-1].message.sequence) if page.items else None)
            if not page.items:
                return seen
            seen += page.items

    def ready(self, most: int = 1000) -> int:
        return self.storage.queues.ready(self.queue, most, self.now).count

    def due(self) -> float | None:
        return self.storage.queues.ready(self.queue, 0, self.now).next

    def fence(self, name: str = "job") -> Fence:
        """Advance the fence and return it with its new epoch."""
        return Fence(name, self.storage.transactions.advance_fence(self.queue.project, name, self.now))

    def stage(
        self,
        stage: str,
        count: int = 1,
        *,
        delay: int = 0,
        lives: int = 3600,
        max_bytes: int = 1_000_000,
        max_messages: int = 100_000,
        once: IdempotencyKey | None = None,
    ) -> list[str]:
        """Stage ``count`` messages in a stage that lives for ``lives`` seconds; return their ids."""
        new = drafts(count, self.now, delay=delay)
        project = self.queue.project
        self.storage.transactions.stage(project, stage, self.queue, new, self.now, lives, max_bytes, once, max_messages)
        return ids_of(new)

    def drop_stage(self, stage: str) -> None:
        self.storage.transactions.drop_stage(self.queue.project, stage)

    def commit(
        self,
        batch: int,
        publish: Sequence[str] = (),
        settle: Sequence[ClaimRef] = (),
        *,
        producer: str = "etl",
        ttl: int = 86400,
        fence: Fence | None = None,
        expected: Mapping[str, int] = MappingProxyType({}),
        bounds: Bounds = BOUNDS,
        beside: Sequence[str] = (),
    ) -> CommitResult:
        """Decide a commit and execute all its slices, like a server."""
        commit = Commit(self.queue.project, producer, batch, publish, settle, ttl, fence, expected, beside)
        return CommitExecutor(self.storage.transactions, self.clock, bounds, DEADLINE).commit(commit)

    def decide(
        self, batch: int, publish: Sequence[str] = (), settle: Sequence[ClaimRef] = (), *, producer: str = "etl"
    ) -> CommitResult:
        """Decide a commit without executing it, as if the server had crashed after the decision."""
        commit = Commit(self.queue.project, producer, batch, publish, settle, 86400)
        return self.storage.transactions.commit(commit, self.now, Bounds(1, 1_000_000))

    def continue_commit(self, max_messages: int = 2, *, producer: str = "etl") -> bool:
        """Execute one slice of an open commit."""
        return self.storage.transactions.continue_commit(self.queue.project, producer, max_messages, self.now)

    def last(self, producer: str = "etl") -> CommitResult:
        return self.storage.transactions.last(self.queue.project, producer, self.now)

    def stats(self) -> Stats:
        """Return the queue's statistics without the count of messages that entered it."""
        return structs.replace(self.storage.queues.stats(self.queue, self.now), entered=None)

    def entered(self) -> int | None:
        return self.storage.queues.stats(self.queue, self.now).entered

    def counts(self) -> tuple[int, int]:
        """Return the numbers of claimed and of unclaimed messages."""
        stats = self.stats()
        return stats.claimed, stats.free

    def depth(self, most: int = 10_000) -> Depth | None:
        """Return the queue's depth, checked against the listing; ``None`` if the store does not list the queue."""
        found = dict(self.storage.depths(self.now, 1000, most)).get(self.queue)
        alone = self.storage.depth(self.queue, self.now, most)
        told = found or Depth()
        if max(told.ready, told.delayed, told.claimed, told.expired) < most:
            assert structs.replace(alone, expired=0) == structs.replace(told, expired=0)
        return found

    def expired(self) -> int:
        """Return the number of expired messages that are not removed yet."""
        depth = self.depth()
        return 0 if depth is None else depth.expired

    def exists(self) -> bool:
        return self.storage.queues.get(self.queue) is not None

    def is_empty(self) -> bool:
        """Return whether the queue is empty according to every verb that reads messages."""
        return self.walk() == [] and self.counts() == (0, 0) and self.stats().oldest is None

    def reclaimed(self) -> int:
        """Run maintenance until it finds nothing more; return the number of removed messages."""
        total = 0
        for _ in range(1000):
            gone = self.storage.maintain(self.now)
            total += gone
            if gone == 0:
                return total
        raise AssertionError("Maintenance finds something to reclaim forever.")
