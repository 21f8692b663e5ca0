# SPDX-License-Identifier: Apache-2.0
"""The reference model: a queue service in plain lists, slow and obviously right. The laws, and nothing else.

Moments are rounded to the millisecond. Sequences and positions count from 1 in each queue; a store's may have gaps.
"""

from collections.abc import Sequence
from operator import attrgetter

from msgspec import structs

from tests.model.entry import Entry
from tests.model.ledger import Ledger
from zq.errors import ClaimLapsed, ClaimNotFound, ClaimNotHeld, MessageClaimed
from zq.measures import Depth
from zq.model import (
    AT_ONCE,
    Claim,
    Commit,
    Committed,
    DeadLetters,
    Draft,
    Fence,
    Finished,
    Landmark,
    Lease,
    Message,
    Messages,
    Move,
    Once,
    Outcome,
    Page,
    QueueRef,
    Redelivery,
    Settled,
    Settlement,
    Stats,
    View,
)


class Oracle(Ledger):
    """Every verb takes what the storage's verb takes and answers what it must answer."""

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
        """Remove the messages of one step, and keep a record of each."""
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
        once: Once | None = None,
    ) -> None:
        """Metadata are none of its business."""
        self.recall(queue, once, now)
        for draft in drafts:
            self.insert(queue, draft, now, draft.ttl, draft.delay, now)
        self.remember(queue, once, [draft.id for draft in drafts], now)

    def get(self, queue: QueueRef, ids: Sequence[str], now: float) -> Messages:
        return [entry.message(now) for entry in self.named(queue, ids, now)]

    def named(self, queue: QueueRef, ids: Sequence[str], now: float) -> list[Entry]:
        living = {entry.draft.id: entry for entry in self.living(queue, now)}
        return [living[id] for id in dict.fromkeys(ids) if id in living]

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: float) -> Page[Message]:
        page: Messages = []
        for entry in self.living(queue, now):
            shown = view.claimed if entry.held(now) else view.delayed or entry.available <= now
            own = view.without != "" and entry.draft.client == view.without
            if entry.sequence > marker and shown and not own and len(page) < limit:
                page.append(entry.message(now))
        return Page(page, str(page[-1].sequence) if page else None)

    def list_all(self, queue: QueueRef, marker: int, limit: int, now: float) -> Page[Finished]:
        records = [record.told for record in self.records_of(queue, now)]
        both = records + [Finished(entry.message(now)) for entry in self.living(queue, now)]
        both = sorted((one for one in both if one.message.sequence > marker), key=attrgetter("message.sequence"))
        return Page(both[:limit], str(both[:limit][-1].message.sequence) if both else None)

    def delete(self, queue: QueueRef, message: str, now: float, claim: str = "", history: int = 0) -> None:
        for entry in self.named(queue, [message], now):
            if entry.held(now) and entry.claim != claim:
                raise MessageClaimed
            if claim and not entry.held(now):
                raise ClaimNotHeld
            self.finish(queue, [entry], Outcome.DELETED, now, history)

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: float, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        found = self.named(queue, ids, now)
        if claims is not None and any(not entry.held(now) or entry.claim not in claims for entry in found):
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
        """One message into another queue, or to a new place in its own."""
        self.finish(queue, [entry], Outcome.DEAD_LETTERED if move.reason else Outcome.MOVED, now, history)
        draft = structs.replace(entry.draft, delay=move.delay)
        if move.body is not None:
            draft = structs.replace(draft, body=move.body, checksum=move.checksum)
        created = entry.created if move.reason else now
        ttl = entry.ttl if move.ttl is None else move.ttl
        moved = self.insert(QueueRef(queue.project, move.to), draft, created, ttl, move.delay, now)
        if move.reason:
            moved.origin, moved.origin_count, moved.reason = queue.name, entry.count, move.reason
        return moved

    def claim(
        self,
        queue: QueueRef,
        lease: Lease,
        limit: int,
        now: float,
        dead: DeadLetters | None = None,
        redelivery: Redelivery = AT_ONCE,
    ) -> Claim | None:
        while True:
            met = self.ready(queue, now)[:limit]
            used = [entry for entry in met if dead is not None and entry.count >= dead.max_claims]
            for entry in used:
                move = Move(entry.draft.id, dead.queue.name, dead.ttl, reason="max_claim_count")
                self.carry(queue, entry, move, now, dead.history)
            taken = [entry for entry in met if entry not in used]
            if taken or not met:
                break
        lapsed = sum(entry.claim != "" for entry in taken)
        for entry in taken:
            entry.former, entry.count = entry.available, entry.count + 1
            entry.wait = redelivery.wait(entry.count)
            self.put_under(lease, entry, now)
        messages = [entry.message(now) for entry in taken]
        return Claim(lease.claim, lease.ttl, now, messages, lapsed) if taken else None

    def put_under(self, lease: Lease, entry: Entry, now: float) -> None:
        entry.claim, entry.claimed, entry.lease = lease.claim, now, lease.ttl
        entry.ends, entry.available = round(now + lease.ttl, 3), round(now + lease.ttl + entry.wait, 3)
        if entry.expires < entry.ends:
            entry.ttl, entry.expires = lease.ttl + lease.grace, round(now + lease.ttl + lease.grace, 3)

    def claim_named(
        self,
        queue: QueueRef,
        lease: Lease,
        limit: int,
        now: float,
        dead: DeadLetters | None = None,
        redelivery: Redelivery = AT_ONCE,
        fence: Fence | None = None,
    ) -> tuple[Claim | None, bool]:
        self.guard(queue.project, fence)
        try:
            return self.claim_get(queue, lease.claim, now), True
        except ClaimNotFound:
            return self.claim(queue, lease, limit, now, dead, redelivery), False

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
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        self.recall(queue, once, now)
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
        settled = Settled(len(gone), len(released), len(moved) - buried, buried, lost)
        self.remember(queue, once, settled, now)
        return settled

    def commit(self, commit: Commit, now: float) -> Committed:
        known = self.replay(commit, now)
        if known:
            return known
        self.guard(commit.project, commit.fence)
        stages = [self.staged(commit.project, name, now) for name in commit.publish]
        try:
            settled = [(held, self.held(held.queue, held.claim, now)) for held in commit.settle]
        except ClaimNotFound:
            raise ClaimLapsed from None
        for stage in stages:
            for queue, draft in stage.drafts:
                self.insert(queue, draft, now, draft.ttl, draft.delay, now)
        for held, entries in settled:
            self.finish(held.queue, entries, Outcome.DELETED, now, held.history)
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
        ends = [Landmark(entry.draft.id, entry.created, entry.sequence) for entry in living[:1] + living[-1:]]
        ends = ends or [None, None]
        return Stats(claimed, len(living) - claimed, ends[0], ends[-1])

    def depth(self, queue: QueueRef, now: float) -> Depth:
        """All but the expired ones: those are the store's to remove, whenever it likes."""
        living, ready = self.living(queue, now), self.ready(queue, now)
        claimed = sum(entry.held(now) for entry in living)
        first = ready[0].available if ready else None
        return Depth(len(ready), len(living) - len(ready) - claimed, claimed, oldest_ready=first)

    def due(self, queue: QueueRef, now: float) -> float | None:
        """The strict answer: nothing that expires before its moment counts."""
        ahead = (entry for entry in self.living(queue, now) if now < entry.available < entry.expires)
        return min((entry.available for entry in ahead), default=None)
