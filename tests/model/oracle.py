# SPDX-License-Identifier: Apache-2.0
"""The reference model: a queue service in plain lists, slow and obviously right. The laws, and nothing else.

Moments are rounded to the millisecond. Sequences count from 1 in each queue; a store's may have gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zq.errors import ClaimNotFound, ClaimNotHeld, MessageClaimed
from zq.model import Claim, DeadLetters, Draft, Landmark, Lease, Message, Messages, Page, QueueRef, Stats, View


@dataclass
class Entry:
    """A message; ``claim`` lives while ``ends`` is to come, ``former`` is its available moment before that claim."""

    draft: Draft
    sequence: int
    ttl: int
    created: float
    expires: float
    available: float
    former: float = 0
    claim: str = ""
    claimed: float = 0
    lease: int = 0
    ends: float = 0
    count: int = 0

    def held(self, now: float) -> bool:
        return self.claim != "" and self.ends > now

    def message(self, now: float) -> Message:
        draft, claim = self.draft, self.claim if self.held(now) else ""
        seen = (self.created, self.expires, self.available, self.sequence, draft.client, claim, self.count)
        return Message(draft.id, draft.body, self.ttl, *seen, draft.checksum)


class Oracle:
    """Every verb takes what the storage's verb takes and answers what it must answer."""

    def __init__(self) -> None:
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

    def insert(self, queue: QueueRef, draft: Draft, created: float, ttl: int, delay: int, now: float) -> None:
        self.sequences[queue] = sequence = self.sequences.get(queue, 0) + 1
        moments = (round(now + ttl, 3), round(now + delay, 3))
        self.queues.setdefault(queue, []).append(Entry(draft, sequence, ttl, created, *moments))

    def remove(self, queue: QueueRef, gone: list[Entry]) -> None:
        self.queues[queue] = [entry for entry in self.queues.get(queue, []) if entry not in gone]

    def post(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        for draft in drafts:
            self.insert(queue, draft, now, draft.ttl, draft.delay, now)

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

    def delete(self, queue: QueueRef, message: str, now: float, claim: str = "") -> None:
        for entry in self.named(queue, [message], now):
            if entry.held(now) and entry.claim != claim:
                raise MessageClaimed
            if claim and not entry.held(now):
                raise ClaimNotHeld
            self.remove(queue, [entry])

    def delete_many(self, queue: QueueRef, ids: Sequence[str], now: float, claims: Sequence[str] | None = None) -> None:
        found = self.named(queue, ids, now)
        if claims is not None and any(not entry.held(now) or entry.claim not in claims for entry in found):
            raise ClaimNotHeld
        if found:
            self.remove(queue, found)

    def pop(self, queue: QueueRef, limit: int, now: float) -> Messages:
        popped = self.ready(queue, now)[:limit]
        if popped:
            self.remove(queue, popped)
        return [entry.message(now) for entry in popped]

    def claim(self, queue: QueueRef, lease: Lease, limit: int, now: float, dead: DeadLetters | None) -> Claim | None:
        while True:
            met = self.ready(queue, now)[:limit]
            taken = [entry for entry in met if dead is None or entry.count < dead.max_claims]
            for entry in met:
                if entry not in taken:
                    self.remove(queue, [entry])
                    ttl = entry.ttl if dead.ttl is None else dead.ttl
                    self.insert(dead.queue, entry.draft, entry.created, ttl, 0, now)
            if taken or not met:
                break
        for entry in taken:
            entry.former, entry.count = entry.available, entry.count + 1
            self.put_under(lease, entry, now)
        return Claim(lease.claim, lease.ttl, now, [entry.message(now) for entry in taken]) if taken else None

    def put_under(self, lease: Lease, entry: Entry, now: float) -> None:
        entry.claim, entry.claimed, entry.lease = lease.claim, now, lease.ttl
        entry.ends = entry.available = round(now + lease.ttl, 3)
        if entry.expires < entry.ends:
            entry.ttl, entry.expires = lease.ttl + lease.grace, round(now + lease.ttl + lease.grace, 3)

    def claim_get(self, queue: QueueRef, claim: str, now: float) -> Claim:
        held = self.held(queue, claim, now)
        return Claim(claim, held[0].lease, held[0].claimed, [entry.message(now) for entry in held])

    def renew(self, queue: QueueRef, lease: Lease, now: float) -> None:
        for entry in self.held(queue, lease.claim, now):
            self.put_under(lease, entry, now)

    def release(self, queue: QueueRef, claim: str, now: float) -> None:
        for entry in self.living(queue, now):
            if entry.held(now) and entry.claim == claim:
                entry.claim, entry.available = "", entry.former

    def purge(self, queue: QueueRef) -> None:
        if queue in self.queues:
            self.queues[queue] = []

    def drop(self, queue: QueueRef) -> None:
        self.queues.pop(queue, None)

    def stats(self, queue: QueueRef, now: float) -> Stats:
        living = self.living(queue, now)
        claimed = sum(entry.held(now) for entry in living)
        ends = [Landmark(entry.draft.id, entry.created) for entry in living[:1] + living[-1:]] or [None, None]
        return Stats(claimed, len(living) - claimed, ends[0], ends[-1])
