# SPDX-License-Identifier: Apache-2.0
"""Mutants of the engine over a store in memory: controllers with one fault each, which the history checker must find.

Each fault is one that a driver could really have: two steps where one is needed, a check that was forgotten, an answer
that comes without the deed. Those that need a race make it likely by a short sleep between the two steps.
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
# A fault that needs no race happens once in so many calls.
EVERY = 15
# More messages than a queue of a test has.
MANY = 100_000

PROJECTS = {"acme": "umbrella", "umbrella": "acme"}

Mutant = type[MessageController] | type[ClaimController]


class EngineInMemory(OrderedStorage):
    """The engine over a store in memory; ``mutant`` is the controller that takes the place of a sound one."""

    def __init__(self, mutant: Mutant | None = None, expiry: Expiry | None = None) -> None:
        store = MemoryStore()
        super().__init__(lambda: store, expiry, store)
        if mutant is not None and issubclass(mutant, MessageController):
            self.messages = mutant(self._handle)
        elif mutant is not None:
            self.claims = mutant(self._handle, self._stripes)


class NowAndThen:
    """Counts calls, each once in ``EVERY`` of which goes wrong. Calls of several threads may be counted as one."""

    _calls = 0

    def now_and_then(self) -> bool:
        """Whether this call is one of those that go wrong."""
        self._calls += 1
        return self._calls % EVERY == 0


@contextmanager
def changing(handle: StoreHandle, queue: QueueRef) -> Iterator[tuple[Store, QueueState, Change]]:
    """A change to a queue that exists and has no groups, under its lock; committed in the end."""
    with handle as (store, registry), registry.locked(queue) as (state,):
        assert state is not None
        change = Change(store, 0)
        yield store, state, change
        change.commit()


def ready_of(handle: StoreHandle, queue: QueueRef, limit: int, now: Seconds) -> list[ReadyMessage]:
    """What is ready, without doing anything with it."""
    with handle as (store, registry), registry.locked(queue) as (state,):
        return take(store, state, limit, layout.ms(now), Change(store, layout.ms(now))) if state is not None else []


def hold_all(
    handle: StoreHandle, queue: QueueRef, lease: Lease, taken: Sequence[ReadyMessage], now: Seconds
) -> ClaimResult:
    """Claim these messages, whoever has claimed them since they were read."""
    moment = layout.ms(now)
    with changing(handle, queue) as (store, state, change):
        for sequence, record in locate(store, state, [record.id for _, record, _ in taken], moment):
            record.former, record.count = record.available, record.count + 1
            claim_message(change, state, (sequence, record), lease, 0, moment)
    messages = [layout.build_message(sequence, record, body, moment) for sequence, record, body in taken]
    return ClaimResult(Claim(lease.claim, lease.ttl, now, messages) if taken else None)


class NonAtomicClaim(ClaimController):
    """L2: reads what is ready, then marks it, and does not look again in between."""

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        taken = ready_of(self._handle, queue, request.limit, now)
        time.sleep(RACE)
        return hold_all(self._handle, queue, request.lease, taken, now)


class NonAtomicPop(MessageController):
    """L3: two poppers read the same messages before either removes them; claimers may come between."""

    def pop(self, queue: QueueRef, limit: int, now: Seconds, *_: object) -> Messages:
        taken, moment = ready_of(self._handle, queue, limit, now), layout.ms(now)
        time.sleep(RACE)
        with changing(self._handle, queue) as (_store, state, change):
            for sequence, record, _body in taken:
                change.remove(state, sequence, record)
        return [layout.build_message(sequence, record, body, moment) for sequence, record, body in taken]


class LatePost(MessageController):
    """Posts under a counter that was read in a step before."""

    def post_from(self, queue: QueueRef, sequence: int, drafts: Sequence[Draft], now: Seconds) -> None:
        """Store them with the sequences that follow this one, whatever the queue's counter says."""
        with changing(self._handle, queue) as (_, state, change):
            tally = change._tallies[state] = structs.replace(state.tally, sequence=sequence)
            for draft in drafts:
                change.post(state, draft, layout.ms(now))
            tally.sequence = max(state.tally.sequence, tally.sequence)


class CounterRace(LatePost):
    """L6: takes sequences from a counter, and shows the messages only later: a higher sequence may be there before."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        with changing(self._handle, queue) as (_store, state, _change):
            former = state.tally.sequence
            state.tally = structs.replace(state.tally, sequence=former + len(drafts))
        time.sleep(RACE)
        self.post_from(queue, former, drafts, now)


class SharedCounter(LatePost):
    """L6: two posts read the same counter, and one of them overwrites the messages of the other."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        with changing(self._handle, queue) as (_store, state, _change):
            former = state.tally.sequence
        time.sleep(RACE)
        self.post_from(queue, former, drafts, now)


class DeafDelete(NowAndThen, MessageController):
    """L3: a delete that answers ok and does nothing."""

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, *_: object
    ) -> None:
        if not self.now_and_then():
            super().delete(queue, ids, now, claims)


class Undead(MessageController):
    """L3: listings show what has expired, until it is removed."""

    def list(
        self, queue: QueueRef, marker: int, limit: int, list_filter: ListFilter, now: Seconds, *_: object
    ) -> Page[Message]:
        return super().list(queue, marker, limit, list_filter, now - 10)


class Impatient(ClaimController):
    """L4: claims do not look at the delay."""

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
    """L7: a post that fails half-way and leaves what it had stored."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        if len(drafts) > 1 and self.now_and_then():
            super().post(queue, drafts[: len(drafts) // 2], now)
            raise Unavailable("planted")
        super().post(queue, drafts, now)


class RefusedPost(NowAndThen, MessageController):
    """L7: a post that is surely refused and leaves messages nevertheless."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        super().post(queue, drafts, now)
        if self.now_and_then():
            raise ClaimNotFound("planted: any refusal will do")


class LostPost(NowAndThen, MessageController):
    """L1: a post that answers ok and stores nothing."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        if not self.now_and_then():
            super().post(queue, drafts, now)


class LostRelease(NowAndThen, ClaimController):
    """L1: what is released is nobody's, and is never ready again."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        super().release(queue, claim, now, 36_000 if self.now_and_then() else delay)


class RememberedClaims(ClaimController):
    """Remembers which messages each claim was given."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        self.given: dict[str, list[str]] = {}

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        claimed = super().create(queue, request, now)
        messages = claimed.claim.messages if claimed.claim else []
        self.given[request.lease.claim] = [message.id for message in messages]
        return claimed


class LateRelease(RememberedClaims):
    """L2: a release takes its former messages away from whoever holds them now."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, self.given[claim], moment):
                release_message(change, state, found, delay, moment)


class LateDelete(MessageController):
    """L2: whoever knows the id deletes, whatever claim holds the message."""

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, *_: object
    ) -> None:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, ids, moment):
                change.finish(state, *found, Completion(Outcome.DELETED, 0, moment))


class LateRenewal(RememberedClaims):
    """L2: a renewal brings a claim back that had ended, whoever took its messages meanwhile."""

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, *_: object) -> None:
        moment = layout.ms(now)
        with changing(self._handle, queue) as (store, state, change):
            for found in locate(store, state, self.given[lease.claim], moment):
                claim_message(change, state, found, lease, 0, moment)


class LateHandle(ClaimController):
    """L2: a handle is good for ever, whoever was handed the message since."""

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
    """L3: now and then a message is said to be deleted, and is not."""

    def handle(
        self, queue: QueueRef, handles: Sequence[MessageHandle], now: Seconds, *_: object
    ) -> Sequence[HandleOutcome]:
        return [HandleOutcome.DONE] * len(handles) if self.now_and_then() else super().handle(queue, handles, now)


class Backwards(MessageController):
    """L5: stores the messages of a post in reverse."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        super().post(queue, drafts[::-1], now)


class PieceByPiece(MessageController):
    """L7: other posts come between the messages of one."""

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, *_: object) -> None:
        for draft in drafts:
            super().post(queue, [draft], now)
            time.sleep(RACE / 3)


class LastInFirstOut(ClaimController):
    """L5: claims begin at the wrong end."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        self._lock = threading.Lock()

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        with self._lock:
            taken = ready_of(self._handle, queue, MANY, now)[-request.limit :][::-1]
            return hold_all(self._handle, queue, request.lease, taken, now)


class LeakyTenants(MessageController):
    """L8: a pop that finds nothing takes from another project."""

    def pop(self, queue: QueueRef, limit: int, now: Seconds, *_: object) -> Messages:
        other = queue._replace(project=PROJECTS[queue.project])
        return super().pop(queue, limit, now) or super().pop(other, limit, now)


class CarelessId(MessageController):
    """L8, seen as a loss: a delete finds a message by its id in any project."""

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, *_: object
    ) -> None:
        for project, name in itertools.product(PROJECTS, ("work", "log")):
            super().delete(QueueRef(project, name), ids, now, claims)


class DoubleCount(ClaimController):
    """A renewal counts as a hand-out."""

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, *_: object) -> None:
        super().renew(queue, lease, now)
        with changing(self._handle, queue) as (store, state, change):
            for sequence, record in find_held(store, state, lease.claim, layout.ms(now)):
                record.count += 1
                change.rewrite(state, sequence, record.index_fields(), record)
