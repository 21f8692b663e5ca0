# SPDX-License-Identifier: Apache-2.0
"""A store in memory, sound by one lock, and the same store with one fault each, which the judge must find.

Each fault is one that a driver could really have: two steps where one is needed, a check that was forgotten, an answer
that comes without the deed. Those that need a race make it likely by a short sleep between the two steps.
"""

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace

from tests.model.entry import Entry
from tests.model.oracle import Oracle
from zq.errors import ClaimNotFound, Unavailable
from zq.model import Claim, DeadLetters, Draft, Lease, Message, Messages, Page, QueueRef, View

RACE = 0.003
"""Seconds between two steps that should be one."""
EVERY = 15
"""A fault that needs no race happens once in so many calls."""


class OrderedOracle(Oracle):
    """Threads bring their moments in any order; L5 wants those of a queue's undelayed messages to rise."""

    def insert(self, queue: QueueRef, draft: Draft, created: float, ttl: int, delay: int, now: float) -> Entry:
        entry = super().insert(queue, draft, created, ttl, delay, now)
        if not delay:
            former = [entry for entry in self.queues[queue][-2::-1] if not entry.draft.delay][:1]
            entry.former = entry.available = max([now, *(entry.former for entry in former)])
        return entry


class MemoryStorage:
    """Every verb is the oracle's, under one lock. It is its own controller of messages and claims."""

    def __init__(self) -> None:
        self.messages = self.claims = self
        self.queues = SimpleNamespace(create=lambda queue, metadata: True)
        self.oracle = OrderedOracle()
        self.lock = threading.Lock()
        self.calls = 0

    def now(self) -> float:
        return time.time()

    def maintain(self, now: float, pace: object = None) -> int:
        return 0

    def close(self) -> None:
        pass

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        with self.lock:
            self.oracle.post(queue, drafts, now)

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: float) -> Page[Message]:
        with self.lock:
            return self.oracle.list(queue, marker, limit, view, now)

    def delete(self, queue: QueueRef, message: str, now: float, claim: str = "") -> None:
        with self.lock:
            self.oracle.delete(queue, message, now, claim)

    def pop(self, queue: QueueRef, limit: int, now: float) -> Messages:
        with self.lock:
            return self.oracle.pop(queue, limit, now)

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: float, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        with self.lock:
            return self.oracle.claim(queue, lease, limit, now, dead_letters)

    def renew(self, queue: QueueRef, lease: Lease, now: float) -> None:
        with self.lock:
            self.oracle.renew(queue, lease, now)

    def release(self, queue: QueueRef, claim: str, now: float) -> None:
        with self.lock:
            self.oracle.release(queue, claim, now)

    def now_and_then(self) -> bool:
        """Whether this call is one of those that go wrong."""
        self.calls += 1
        return self.calls % EVERY == 0


class NonAtomicClaim(MemoryStorage):
    """L2: reads what is ready, then marks it, and does not look again in between."""

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: float, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        with self.lock:
            taken = self.oracle.ready(queue, now)[:limit]
        time.sleep(RACE)
        with self.lock:
            for entry in taken:
                entry.former, entry.count = entry.available, entry.count + 1
                self.oracle.put_under(lease, entry, now)
            return Claim(lease.claim, lease.ttl, now, [entry.message(now) for entry in taken]) if taken else None


class NonAtomicPop(MemoryStorage):
    """L3: two poppers read the same messages before either removes them; claimers may come between."""

    def pop(self, queue: QueueRef, limit: int, now: float) -> Messages:
        with self.lock:
            taken = self.oracle.ready(queue, now)[:limit]
        time.sleep(RACE)
        with self.lock:
            self.oracle.remove(queue, taken)
            return [entry.message(now) for entry in taken]


class CounterRace(MemoryStorage):
    """L6: takes sequences from a counter, and shows the messages only later: a higher sequence may be there before."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        with self.lock:
            self.oracle.post(queue, drafts, now)
            reserved = self.oracle.queues[queue][-len(drafts) :]
            del self.oracle.queues[queue][-len(drafts) :]
        time.sleep(RACE)
        with self.lock:
            self.oracle.queues[queue].extend(reserved)
            self.oracle.queues[queue].sort(key=lambda entry: entry.sequence)


class SharedCounter(MemoryStorage):
    """L6: two posts read the same counter, so that a reader's marker passes both with one of them."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        with self.lock:
            counter = self.oracle.sequences.get(queue, 0)
        time.sleep(RACE)
        with self.lock:
            self.oracle.sequences[queue] = counter
            self.oracle.post(queue, drafts, now)
            self.oracle.queues[queue].sort(key=lambda entry: entry.sequence)


class DeafDelete(MemoryStorage):
    """L3: a delete that answers ok and does nothing."""

    def delete(self, queue: QueueRef, message: str, now: float, claim: str = "") -> None:
        if not self.now_and_then():
            super().delete(queue, message, now, claim)


class Undead(MemoryStorage):
    """L3: listings show what has expired, until it is swept."""

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: float) -> Page[Message]:
        return super().list(queue, marker, limit, view, now - 1)


class Impatient(MemoryStorage):
    """L4: claims do not look at the delay."""

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: float, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        with self.lock:
            for entry in self.oracle.living(queue, now):
                entry.available = min(entry.available, now) if not entry.count else entry.available
            return self.oracle.claim(queue, lease, limit, now, dead_letters)


class TornPost(MemoryStorage):
    """L7: a post that fails half-way and leaves what it had stored."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        if len(drafts) > 1 and self.now_and_then():
            super().post(queue, drafts[: len(drafts) // 2], now)
            raise Unavailable("planted")
        super().post(queue, drafts, now)


class RefusedPost(MemoryStorage):
    """L7: a post that is surely refused and leaves messages nevertheless."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        super().post(queue, drafts, now)
        if self.now_and_then():
            raise ClaimNotFound("planted: any refusal will do")


class LostPost(MemoryStorage):
    """L1: a post that answers ok and stores nothing."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        if not self.now_and_then():
            super().post(queue, drafts, now)


class LostRelease(MemoryStorage):
    """L1: what is released is nobody's, and is never ready again."""

    def release(self, queue: QueueRef, claim: str, now: float) -> None:
        with self.lock:
            held = [entry for entry in self.oracle.living(queue, now) if entry.held(now) and entry.claim == claim]
            self.oracle.release(queue, claim, now)
            for entry in held if self.now_and_then() else ():
                entry.available = now + 3600


class LateRelease(MemoryStorage):
    """L2: a release takes its former messages away from whoever holds them now."""

    def __init__(self) -> None:
        super().__init__()
        self.once: dict[str, set[str]] = {}

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: float, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        claim = super().create(queue, lease, limit, now, dead_letters)
        self.once[lease.claim] = {message.id for message in claim.messages} if claim else set()
        return claim

    def release(self, queue: QueueRef, claim: str, now: float) -> None:
        with self.lock:
            for entry in self.oracle.named(queue, list(self.once[claim]), now):
                entry.claim, entry.available = "", entry.former


class LateDelete(MemoryStorage):
    """L2: whoever knows the id deletes, whatever claim holds the message."""

    def delete(self, queue: QueueRef, message: str, now: float, claim: str = "") -> None:
        with self.lock:
            self.oracle.remove(queue, self.oracle.named(queue, [message], now))


class LateRenewal(LateRelease):
    """L2: a renewal brings a claim back that had ended, whoever took its messages meanwhile."""

    def renew(self, queue: QueueRef, lease: Lease, now: float) -> None:
        with self.lock:
            for entry in self.oracle.named(queue, list(self.once[lease.claim]), now):
                self.oracle.put_under(lease, entry, now)

    def release(self, queue: QueueRef, claim: str, now: float) -> None:
        MemoryStorage.release(self, queue, claim, now)


class Backwards(MemoryStorage):
    """L5: stores the messages of a post in reverse."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        super().post(queue, drafts[::-1], now)


class PieceByPiece(MemoryStorage):
    """L7: other posts come between the messages of one."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        for draft in drafts:
            super().post(queue, [draft], now)
            time.sleep(RACE / 3)


class LastInFirstOut(MemoryStorage):
    """L5: claims begin at the wrong end."""

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: float, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        with self.lock:
            taken: list[Entry] = self.oracle.ready(queue, now)[-limit:][::-1]
            for entry in taken:
                entry.former, entry.count = entry.available, entry.count + 1
                self.oracle.put_under(lease, entry, now)
            return Claim(lease.claim, lease.ttl, now, [entry.message(now) for entry in taken]) if taken else None


class LeakyTenants(MemoryStorage):
    """L8: a pop that finds nothing takes from another project."""

    def pop(self, queue: QueueRef, limit: int, now: float) -> Messages:
        other = queue._replace(project={"acme": "umbrella", "umbrella": "acme"}[queue.project])
        return super().pop(queue, limit, now) or super().pop(other, limit, now)


class CarelessId(MemoryStorage):
    """L8, seen as a loss: a delete finds a message by its id in any project."""

    def delete(self, queue: QueueRef, message: str, now: float, claim: str = "") -> None:
        for ref in list(self.oracle.queues):
            super().delete(ref, message, now, claim)


class DoubleCount(MemoryStorage):
    """A renewal counts as a hand-out."""

    def renew(self, queue: QueueRef, lease: Lease, now: float) -> None:
        with self.lock:
            self.oracle.renew(queue, lease, now)
            for entry in self.oracle.held(queue, lease.claim, now):
                entry.count += 1
