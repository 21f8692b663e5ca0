# SPDX-License-Identifier: Apache-2.0
"""Mutants of the engine in memory: controllers with one fault each, which the history checker must find.

Each fault is realistic for a driver: two steps instead of one atomic step, a missing check, a success response without
an effect. Mutants that need a race make it likely by a short sleep between the two steps.
"""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import structs

from zq.errors import ClaimNotFound, Unavailable
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimResult,
    Draft,
    HandleOutcome,
    Lease,
    ListFilter,
    Message,
    MessageHandle,
    Messages,
    Outcome,
    Page,
    QueueRef,
    Seconds,
)
from zq.model.expiry import Expiry
from zq.storage.memory import MemoryStore
from zq.storage.ordered import layout
from zq.storage.ordered.changes import Change, Completion, ReadyMessage
from zq.storage.ordered.claims import ClaimController, claim_message, find_held, release_message
from zq.storage.ordered.handle import StoreHandle
from zq.storage.ordered.messages import MessageController
from zq.storage.ordered.ready import take
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.scans import locate
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.ordered.store import Store

# Seconds between two steps that should be one.
RACE = 0.003
# Number of calls between two faults that need no race.
EVERY = 15
# More messages than a queue of a test has.
MANY = 100_000

PROJECTS = {"acme": "umbrella", "umbrella": "acme"}

Mutant = type[MessageController] | type[ClaimController]


class EngineInMemory(OrderedStorage):
    """The engine in memory with a ``mutant`` instead of the correct controller."""

    def __init__(self, mutant: Mutant | None = None, expiry: Expiry | None = None) -> None:
        store = MemoryStore()
        super().__init__(lambda: store, expiry, store)
        if mutant is not None and issubclass(mutant, MessageController):
            self.messages = mutant(self._handle)
        elif mutant is not None:
            self.claims = mutant(self._handle, self._stripes)


class NowAndThen:
    """A counter of calls, of which one in ``EVERY`` has a fault. Concurrent calls may be counted as one."""

    _calls = 0

    def now_and_then(self) -> bool:
        """Count the call and return whether it has a fault."""
        self._calls += 1
        return self._calls % EVERY == 0


@contextmanager
def changing(handle: StoreHandle, queue: QueueRef) -> Iterator[tuple[Store, QueueState, Change]]:
    """Yield a change to an existing queue without groups, under its lock; commit it at the end."""
    with handle as (store, registry), registry.locked(queue) as (state,):
        assert state is not None
        change = Change(store, 0)
        yield store, state, change
        change.commit()


def ready_of(handle: StoreHandle, queue: QueueRef, limit: int, now: Seconds) -> list[ReadyMessage]:
    """Return the ready messages without changing them."""
    with handle as (store, registry), registry.locked(queue) as (state,):
        return take(store, state, limit, layout.ms(now), Change(store, layout.ms(now))) if state is not None else []


def hold_all(
    handle: StoreHandle, queue: QueueRef, lease: Lease, taken: Sequence[ReadyMessage], now: Seconds
) -> ClaimResult:
    """Claim these messages, even if another consumer has claimed them since they were read."""
    moment = layout.ms(now)
    with changing(handle, queue) as (store, state, change):
        for sequence, record in locate(store, state, [record.id for _, record, _ in taken], moment):
            record.former, record.count = record.available, record.count + 1
            claim_message(change, state, (sequence, record), lease, 0, moment)
    messages = [layout.build_message(sequence, record, body, moment) for sequence, record, body in taken]
    return ClaimResult(Claim(lease.claim, lease.ttl, now, messages) if taken else None)


class NonAtomicClaim(ClaimController):
    """A claim that reads ready messages and marks them without a second check (L2)."""

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        taken = ready_of(self._handle, queue, request.limit, now)
        time.sleep(RACE)
        return hold_all(self._handle, queue, request.lease, taken, now)


class NonAtomicPop(MessageController):
    """A pop that reads messages before it removes them: two pops may return the same messages (L3)."""

    def pop(self, queue: QueueRef, limit: int, now: Seconds, *_: object) -> Messages:
        taken, moment = ready_of(self._handle, queue, limit, now), layout.ms(now)
        time.sleep(RACE)
        with changing(self._handle, queue) as (_store, state, change):
            for sequence, record, _body in taken:
                change.remove(state, sequence, record)
        return [layout.build_message(sequence, record, body, moment) for sequence, record, body in taken]


class LatePost(MessageController):
    """A post with a sequence that an earlier step has read."""

    def post_from(self, queue: QueueRef, sequence: int, drafts: Sequence[Draft], now: Seconds) -> None:
        """Store the drafts with the sequences after `sequence`, and ignore the queue's counter."""
        with changing(self._handle, queue) as (_, state, change):
            tally = change._tallies[state] = structs.replace(state.tally, sequence=sequence)
            for draft in drafts:
                change.post(state, draft, layout.ms(now))
            tally.sequence = max(state.tally.sequence, tally.sequence)


class CounterRace(LatePost):
    """A post that reserves sequences and stores messages later: a higher sequence may be visible before (L6)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        with changing(self._handle, queue) as (_store, state, _change):
            former = state.tally.sequence
            state.tally = structs.replace(state.tally, sequence=former + len(drafts))
        time.sleep(RACE)
        self.post_from(queue, former, drafts, now)


class SharedCounter(LatePost):
    """Two posts that read the same counter: one overwrites the messages of the other (L6)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        with changing(self._handle, queue) as (_store, state, _change):
            former = state.tally.sequence
        time.sleep(RACE)
        self.post_from(queue, former, drafts, now)


class DeafDelete(NowAndThen, MessageController):
    """A deletion that reports success without an effect (L3)."""

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, *_: object
    ) -> None:
        if not self.now_and_then():
            super().delete(queue, ids, now, claims)


class Undead(MessageController):
    """A listing that shows expired messages until they are removed (L3)."""

    def list(
        self, queue: QueueRef, marker: int, limit: int, list_filter: ListFilter, now: Seconds, *_: object
    ) -> Page[Message]:
        return super().list(queue, marker, limit, list_filter, now - 10)


class Impatient(ClaimController):
    """A claim that ignores delays (L4)."""

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for key, value in store.scan("messages", *state.bounds()):
                record = layout.decode_record(value)
                if not record.count and moment < record.available < record.expires:
                    place = record.index_fields()
                    record.available = moment
                    change.rewrite(state, layout.pair.unpack(key)[1], place, record)
        return super().create(queue, request, now)


class TornPost(NowAndThen, MessageController):
    """A post that fails half-way and leaves its stored messages (L7)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        if len(drafts) > 1 and self.now_and_then():
            super().post(queue, drafts[: len(drafts) // 2], now)
            raise Unavailable("planted")
        super().post(queue, drafts, now)


class RefusedPost(NowAndThen, MessageController):
    """A post that is rejected but leaves messages (L7)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        super().post(queue, drafts, now)
        if self.now_and_then():
            raise ClaimNotFound("planted: any refusal will do")


class LostPost(NowAndThen, MessageController):
    """A post that reports success and stores nothing (L1)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        if not self.now_and_then():
            super().post(queue, drafts, now)


class LostRelease(NowAndThen, ClaimController):
    """A release after which messages are not claimed, but never ready again (L1)."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        super().release(queue, claim, now, 36_000 if self.now_and_then() else delay)


class RememberedClaims(ClaimController):
    """A controller that remembers the messages of each claim."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        self.given: dict[str, list[str]] = {}

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        claimed = super().create(queue, request, now)
        messages = claimed.claim.messages if claimed.claim else []
        self.given[request.lease.claim] = [message.id for message in messages]
        return claimed


class LateRelease(RememberedClaims):
    """A release that takes its former messages away from their current consumer (L2)."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, self.given[claim], moment):
                release_message(change, state, found, delay, moment)


class LateDelete(MessageController):
    """A deletion by id that ignores claims (L2)."""

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, *_: object
    ) -> None:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, ids, moment):
                change.finish(state, *found, Completion(Outcome.DELETED, 0, moment))


class LateRenewal(RememberedClaims):
    """A renewal that revives an expired claim, although others have claimed its messages (L2)."""

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, *_: object) -> None:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, self.given[lease.claim], moment):
                claim_message(change, state, found, lease, 0, moment)


class LateHandle(ClaimController):
    """A handle that stays valid after the message was claimed again (L2)."""

    def handle(
        self, queue: QueueRef, handles: Sequence[MessageHandle], now: Seconds, *_: object
    ) -> Sequence[HandleOutcome]:
        moment, handled = layout.ms(now), HandleOutcome.GONE
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, [handle.id for handle in handles if handle.hold is None], moment):
                change.finish(state, *found, Completion(Outcome.DELETED, 0, moment))
                handled = HandleOutcome.DONE
        return [handled] * len(handles)


class DeafHandle(NowAndThen, ClaimController):
    """A handle operation that sometimes reports a deletion without an effect (L3)."""

    def handle(
        self, queue: QueueRef, handles: Sequence[MessageHandle], now: Seconds, *_: object
    ) -> Sequence[HandleOutcome]:
        return [HandleOutcome.DONE] * len(handles) if self.now_and_then() else super().handle(queue, handles, now)


class Backwards(MessageController):
    """A post that stores its messages in reverse order (L5)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        super().post(queue, drafts[::-1], now)


class PieceByPiece(MessageController):
    """A post that is interrupted by other posts (L7)."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        for draft in drafts:
            super().post(queue, [draft], now)
            time.sleep(RACE / 3)


class LastInFirstOut(ClaimController):
    """A claim that begins with the last message (L5)."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        self._lock = threading.Lock()

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        with self._lock:
            taken = ready_of(self._handle, queue, MANY, now)[-request.limit :][::-1]
            return hold_all(self._handle, queue, request.lease, taken, now)


class LeakyTenants(MessageController):
    """A pop that takes messages of another project if its queue is empty (L8)."""

    def pop(self, queue: QueueRef, limit: int, now: Seconds, *_: object) -> Messages:
        other = queue._replace(project=PROJECTS[queue.project])
        return super().pop(queue, limit, now) or super().pop(other, limit, now)


class CarelessId(MessageController):
    """A deletion that finds a message by id in any project, which appears as a loss (L8)."""

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, *_: object
    ) -> None:
        for project, name in itertools.product(PROJECTS, ("work", "log")):
            super().delete(QueueRef(project, name), ids, now, claims)


class DoubleCount(ClaimController):
    """A renewal that increases the claim count."""

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, *_: object) -> None:
        super().renew(queue, lease, now)
        with changing(self._handle, queue) as (store, state, change):
            for sequence, record in find_held(store, state, lease.claim, layout.ms(now)):
                record.count += 1
                change.rewrite(state, sequence, record.index_fields(), record)
