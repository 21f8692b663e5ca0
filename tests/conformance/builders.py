# SPDX-License-Identifier: Apache-2.0
"""Short words for the verbs, so that a test reads as the sentence that it proves."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from zq.clock import ManualClock
from zq.model import Claim, DeadLetters, Draft, Lease, Message, QueueRef, Stats, View, new_ids
from zq.storage.api import Storage

EVERYTHING = View(claimed=True, delayed=True)
DEADLINE = 30
"""Seconds after which a test with threads fails instead of hanging."""

T = TypeVar("T")


def drafts(count: int, now: float, *, ttl: int = 3600, delay: int = 0, client: str = "alice") -> list[Draft]:
    """Messages on their way in, with bodies 0, 1, 2 and so on."""
    return [Draft(id, b"%d" % at, ttl, delay, client) for at, id in enumerate(new_ids(count, now))]


def ids_of(messages: Iterable[Message | Draft]) -> list[str]:
    return [message.id for message in messages]


def together(*works: Callable[[], T]) -> list[T]:
    """Run all at once, each in its thread, from one starting shot; their results in order, or the first failure."""
    start = threading.Barrier(len(works))

    def started(work: Callable[[], T]) -> T:
        start.wait(DEADLINE)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(started, work) for work in works]
        return [future.result(DEADLINE) for future in running]


class Scene:
    """One queue of one store, at one clock."""

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
        """The same store and clock, another queue."""
        return Scene(self.storage, self.clock, QueueRef(project or self.queue.project, name))

    def post(self, count: int = 1, *, ttl: int = 3600, delay: int = 0, client: str = "alice") -> list[str]:
        """One post of ``count`` messages; their ids."""
        new = drafts(count, self.now, ttl=ttl, delay=delay, client=client)
        self.storage.messages.post(self.queue, new, self.now)
        return ids_of(new)

    def claim(
        self,
        limit: int = 10,
        *,
        ttl: int = 300,
        grace: int = 60,
        name: str = "",
        dead_letters: DeadLetters | None = None,
    ) -> Claim | None:
        lease = Lease(name or new_ids(1, self.now)[0], ttl, grace)
        return self.storage.claims.create(self.queue, lease, limit, self.now, dead_letters)

    def take(self, limit: int = 10, *, ttl: int = 300, grace: int = 60, name: str = "") -> Claim:
        """A claim that must not come back empty."""
        claim = self.claim(limit, ttl=ttl, grace=grace, name=name)
        assert claim is not None
        return claim

    def claimable(self, limit: int = 1000) -> list[str]:
        """Ids of a new claim's messages, in its order."""
        claim = self.claim(limit)
        return [] if claim is None else ids_of(claim.messages)

    def held(self, claim: str) -> list[str]:
        """Ids that the claim holds, sorted; raises ``ClaimNotFound``."""
        return sorted(ids_of(self.storage.claims.get(self.queue, claim, self.now).messages))

    def renew(self, claim: str, *, ttl: int = 300, grace: int = 60) -> None:
        self.storage.claims.renew(self.queue, Lease(claim, ttl, grace), self.now)

    def release(self, claim: str) -> None:
        self.storage.claims.release(self.queue, claim, self.now)

    def page(self, view: View = View(), limit: int = 1000, marker: int = 0) -> list[str]:  # noqa: B008
        return ids_of(self.storage.messages.list(self.queue, marker, limit, view, self.now).items)

    def walk(self, view: View = EVERYTHING, limit: int = 1000) -> list[Message]:
        """All messages that the view shows, page by page."""
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

    def pop(self, limit: int = 1000) -> list[str]:
        return ids_of(self.storage.messages.pop(self.queue, limit, self.now))

    def delete(self, message: str, claim: str = "") -> None:
        self.storage.messages.delete(self.queue, message, self.now, claim)

    def delete_many(self, ids: Sequence[str], claims: Sequence[str] | None = None) -> None:
        self.storage.messages.delete_many(self.queue, ids, self.now, claims)

    def stats(self) -> Stats:
        return self.storage.queues.stats(self.queue, self.now)

    def counts(self) -> tuple[int, int]:
        """(claimed, free)."""
        stats = self.stats()
        return stats.claimed, stats.free

    def exists(self) -> bool:
        return self.storage.queues.get(self.queue) is not None

    def is_empty(self) -> bool:
        """Nothing to be seen by any reading verb."""
        return self.walk() == [] and self.counts() == (0, 0) and self.stats().oldest is None

    def reclaimed(self) -> int:
        """Run maintenance until it finds nothing more; how many messages went."""
        total = 0
        for _ in range(1000):
            gone = self.storage.maintain(self.now)
            total += gone
            if gone == 0:
                return total
        raise AssertionError("Maintenance finds something to reclaim forever.")
