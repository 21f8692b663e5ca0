# SPDX-License-Identifier: Apache-2.0
"""The reference model: a queue service in plain lists, slow and obviously correct; it contains only the laws.

Times are rounded to the millisecond. Sequences and positions count from 1 in each queue; a store's may have gaps.
"""

from collections.abc import Sequence
from operator import attrgetter

from msgspec import structs

from tests.model.entry import Entry
from tests.model.ledger import Ledger
from zq.errors import ClaimLapsed, ClaimNotFound, ClaimNotHeld, MessageClaimed
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimResult,
    Commit,
    CommitResult,
    Draft,
    EndMessage,
    Fence,
    HandleOutcome,
    HistoryEntry,
    IdempotencyKey,
    Lease,
    ListFilter,
    Message,
    MessageHandle,
    Messages,
    Move,
    Outcome,
    Page,
    QueueRef,
    Settlement,
    SettleResult,
    Stats,
)
from zq.model.stats import Depth


class Oracle(Ledger):
    """The model of a store: each verb has the arguments and results of the storage's verb."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[QueueRef, list[Entry]] = {}
        self.sequences: dict[QueueRef, int] = {}

    def living(self, queue: QueueRef, now: float) -> list[Entry]:
        return [entry for entry in self.queues.get(queue, []) if entry.expires > now]

    def ready(self, queue: QueueRef, now: float) -> list[Entry]:
        free = [entry for entry in self.living(queue, now) if not entry.held(now) and entry.available <= now]
        return sorted(free, key=lambda entry: (entry.available, entry.sequence))

    def held(self, queue: QueueRef, claim: str, now: float) -> list[Entry]:
        held = [entry for entry in self.living(queue, now) if entry.held(now) and entry.claim == claim]
        if not held:
            raise ClaimNotFound
        return held

    def insert(self, queue: QueueRef, draft: Draft, created: float, ttl: int, delay: int, now: float) -> Entry:
        self.sequences[queue] = sequence = self.sequences.get(queue, 0) + 1
        entry = Entry(draft, sequence, ttl, created, round(now + ttl, 3), round(now + delay, 3))
        self.queues.setdefault(queue, []).append(entry)
        return entry

    def remove(self, queue: QueueRef, gone: list[Entry]) -> None:
        self.queues[queue] = [entry for entry in self.queues.get(queue, []) if entry not in gone]

    def finish(self, queue: QueueRef, gone: list[Entry], outcome: Outcome, now: float, history: int) -> None:
        """Remove the messages of one step, and keep a history entry of each."""
        if gone:
            self.remove(queue, gone)
            if history:
                self.keep(queue, [entry.message(now) for entry in gone], outcome, now, history)

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: float,
        expected: bytes | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> None:
        """Post the drafts; the model ignores the queue's metadata."""
        self.recall(queue, idempotency_key, now)
        self.recall_each(queue, drafts, now)
        for draft in drafts:
            self.insert(queue, draft, now, draft.ttl, draft.delay, now)
            self.remember(queue, draft.once, [draft.id], now)
        self.remember(queue, idempotency_key, [draft.id for draft in drafts], now)

    def get(self, queue: QueueRef, ids: Sequence[str], now: float) -> Messages:
        return [entry.message(now) for entry in self.named(queue, ids, now)]

    def named(self, queue: QueueRef, ids: Sequence[str], now: float) -> list[Entry]:
        living = {entry.draft.id: entry for entry in self.living(queue, now)}
        return [living[id] for id in dict.fromkeys(ids) if id in living]

    def list(self, queue: QueueRef, marker: int, limit: int, view: ListFilter, now: float) -> Page[Message]:
        page: Messages = []
        for entry in self.living(queue, now):
            shown = view.claimed if entry.held(now) else view.delayed or entry.available <= now
            own = view.without != "" and entry.draft.client == view.without
            if entry.sequence > marker and shown and not own and len(page) < limit:
                page.append(entry.message(now))
        return Page(page, str(page[-1].sequence) if page else None)

    def list_all(self, queue: QueueRef, marker: int, limit: int, now: float) -> Page[HistoryEntry]:
        records = [record.told for record in self.records_of(queue, now)]
        both = records + [HistoryEntry(entry.message(now)) for entry in self.living(queue, now)]
        both = sorted((one for one in both if one.message.sequence > marker), key=attrgetter("message.sequence"))
        return Page(both[:limit], str(both[:limit][-1].message.sequence) if both else None)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: float, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        found = self.named(queue, ids, now)
        for entry in found if claims is not None else ():
            if entry.held(now) and entry.claim not in (claims or ()):
                raise MessageClaimed
            if claims and not entry.held(now):
                raise ClaimNotHeld
        self.finish(queue, found, Outcome.DELETED, now, history)

    def pop(self, queue: QueueRef, limit: int, now: float, history: int = 0) -> Messages:
        popped = self.ready(queue, now)[:limit]
        self.finish(queue, popped, Outcome.POPPED, now, history)
        return [entry.message(now) for entry in popped]

    def move(self, queue: QueueRef, moves: Sequence[Move], now: float, history: int = 0) -> Sequence[str]:
        ready = {entry.draft.id: entry for entry in self.ready(queue, now)}
        return [move.id for move in moves if move.id in ready and self.carry(queue, ready[move.id], move, now, history)]

    def carry(self, queue: QueueRef, entry: Entry, move: Move, now: float, history: int) -> Entry:
        """Move a message into another queue, or to a new position in its own."""
        self.finish(queue, [entry], Outcome.DEAD_LETTERED if move.reason else Outcome.MOVED, now, history)
        draft = structs.replace(entry.draft, delay=move.delay)
        if move.body is not None:
            draft = structs.replace(draft, body=move.body, checksum=move.checksum)
        created = entry.created if move.reason or move.keeps_age else now
        ttl = entry.ttl if move.ttl is None else move.ttl
        moved = self.insert(QueueRef(queue.project, move.to), draft, created, ttl, move.delay, now)
        if move.reason:
            moved.origin, moved.origin_count, moved.reason = queue.name, entry.count, move.reason
            moved.first = entry.first
        return moved

    def claim(self, queue: QueueRef, request: ClaimRequest, now: float) -> ClaimResult:
        self.guard(queue.project, request.fence)
        if request.named:
            try:
                return ClaimResult(self.claim_get(queue, request.lease.claim, now), existing=True)
            except ClaimNotFound:
                pass
        met = self.ready(queue, now)[: request.limit]
        spent = [entry for entry in met if request.max_claims is not None and entry.count >= request.max_claims]
        taken = [entry for entry in met if entry not in spent]
        lapsed = sum(entry.claim != "" for entry in taken)
        for entry in taken:
            entry.former, entry.count, entry.first = entry.available, entry.count + 1, entry.first or now
            entry.wait = request.redelivery_delay(entry.count)
            self.put_under(request.lease, entry, now)
        lease, messages = request.lease, [entry.message(now) for entry in taken]
        claim = Claim(lease.claim, lease.ttl, now, messages, lapsed) if taken else None
        return ClaimResult(claim, spent=[entry.draft.id for entry in spent])

    def put_under(self, lease: Lease, entry: Entry, now: float) -> None:
        entry.claim, entry.claimed, entry.lease = lease.claim, now, lease.ttl
        entry.ends, entry.available = round(now + lease.ttl, 3), round(now + lease.ttl + entry.wait, 3)
        if entry.expires < entry.ends and lease.prolong:
            entry.ttl, entry.expires = lease.ttl + lease.grace, round(now + lease.ttl + lease.grace, 3)

    def claim_get(self, queue: QueueRef, claim: str, now: float) -> Claim:
        held = self.held(queue, claim, now)
        return Claim(claim, held[0].lease, held[0].claimed, [entry.message(now) for entry in held])

    def renew(self, queue: QueueRef, lease: Lease, now: float, fence: Fence | None = None) -> None:
        self.guard(queue.project, fence)
        for entry in self.held(queue, lease.claim, now):
            self.put_under(lease, entry, now)

    def release(self, queue: QueueRef, claim: str, now: float, delay: int | None = None) -> None:
        for entry in self.living(queue, now):
            if entry.held(now) and entry.claim == claim:
                entry.give_back(now, delay)

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: float,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        self.recall(queue, idempotency_key, now)
        self.guard(queue.project, fence)
        held = {entry.draft.id: entry for entry in self.held(queue, claim, now)}
        named = [*settlement.delete, *(back.id for back in settlement.release), *(move.id for move in settlement.move)]
        lost = [id for id in named if id not in held]
        rest = [id for id in held if settlement.rest and id not in named]
        gone = [held[id] for id in [*settlement.delete, *rest] if id in held]
        self.finish(queue, gone, Outcome.DELETED, now, settlement.history)
        released = [back for back in settlement.release if back.id in held]
        for back in released:
            held[back.id].give_back(now, back.delay)
        moved = [move for move in settlement.move if move.id in held]
        for move in moved:
            self.carry(queue, held[move.id], move, now, settlement.history)
        buried = sum(move.reason != "" for move in moved)
        settled = SettleResult(len(gone), len(released), len(moved) - buried, buried, lost)
        self.remember(queue, idempotency_key, settled, now)
        return settled

    def handle(
        self, queue: QueueRef, handles: Sequence[MessageHandle], now: float, late: bool, history: int
    ) -> Sequence[HandleOutcome]:
        return [self.handle_one(queue, handle, now, late, history) for handle in handles]

    def handle_one(self, queue: QueueRef, handle: MessageHandle, now: float, late: bool, history: int) -> HandleOutcome:
        for entry in self.named(queue, [handle.id], now):
            if entry.claim == "" or entry.claim != handle.claim or entry.count != handle.count:
                return HandleOutcome.LOST
            if not late and not entry.held(now):
                return HandleOutcome.EXPIRED
            if handle.hold is None:
                self.finish(queue, [entry], Outcome.DELETED, now, history)
            else:
                entry.ends = round(now + handle.hold, 3)
                entry.available = round(entry.ends + entry.wait, 3)
            return HandleOutcome.DONE
        return HandleOutcome.GONE

    def commit(self, commit: Commit, now: float) -> CommitResult:
        known = self.replay(commit, now)
        if known:
            return known
        self.guard(commit.project, commit.fence)
        stages = [self.staged(commit.project, name, now) for name in commit.publish]
        settled = []
        for held in commit.settle:
            try:
                settled.append((held, self.held(held.queue, held.claim, now)))
            except ClaimNotFound:
                raise ClaimLapsed.of(held.claim) from None
        for stage in stages:
            for queue, draft in stage.drafts:
                self.insert(queue, draft, now, draft.ttl, draft.delay, now)
        first = self.steps + 1
        for held, entries in settled:
            self.finish(held.queue, entries, Outcome.DELETED, now, held.history)
            self.join_step(held.queue, first)
        return self.decide(commit, sum(len(stage.drafts) for stage in stages), sum(len(s[1]) for s in settled), now)

    def purge(self, queue: QueueRef) -> None:
        if queue in self.queues:
            self.queues[queue] = []

    def drop(self, queue: QueueRef) -> None:
        self.queues.pop(queue, None)
        self.forget(queue)

    def stats(self, queue: QueueRef, now: float) -> Stats:
        living = self.living(queue, now)
        claimed = sum(entry.held(now) for entry in living)
        ends = [EndMessage(entry.draft.id, entry.created, entry.sequence) for entry in living[:1] + living[-1:]]
        ends = ends or [None, None]
        return Stats(claimed, len(living) - claimed, ends[0], ends[-1])

    def depth(self, queue: QueueRef, now: float) -> Depth:
        """Return the depth without expired messages, which the store removes at any time."""
        living, ready = self.living(queue, now), self.ready(queue, now)
        claimed = sum(entry.held(now) for entry in living)
        first = ready[0].available if ready else None
        return Depth(len(ready), len(living) - len(ready) - claimed, claimed, oldest_ready=first)

    def due(self, queue: QueueRef, now: float) -> float | None:
        """Return the next time at which a message becomes available that has not expired by then."""
        ahead = (entry for entry in self.living(queue, now) if now < entry.available < entry.expires)
        return min((entry.available for entry in ahead), default=None)
