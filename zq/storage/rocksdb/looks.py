# SPDX-License-Identifier: Apache-2.0
"""Claims from the front of a queue, and buries there what was handed out too often."""

from typing import NamedTuple

from zq.model import Claim, DeadLetters, Lease, Message, Move, QueueRef, Redelivery
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.holding import claim_of, hold
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.moves import Routes
from zq.storage.rocksdb.ready import Ready, take
from zq.storage.rocksdb.registry import QueueState

MAX_LOOKS = 64
"""How often one claim looks again because all that it met were dead letters."""


class Terms(NamedTuple):
    """What a claim is to be; ``named``: unless it is there already."""

    lease: Lease
    limit: int
    now: int
    dead_letters: DeadLetters | None
    redelivery: Redelivery
    most_bytes: int
    named: bool = False


class Look:
    """One claim in the making."""

    def __init__(self, opened: Opened, queue: QueueRef, terms: Terms) -> None:
        self._opened = opened
        self._queue = queue
        self._terms = terms
        self._messages: list[Message] = []
        self._lapsed = 0
        self._buried = 0
        self.found: Claim | None = None
        """The live claim of the name, if there was one."""

    def run(self) -> Claim | None:
        """The claim, made or found, or None; each look is one change."""
        for _ in range(MAX_LOOKS):
            if not self._in_vain():
                break
        if self.found is not None or not self._messages:
            return self.found
        lease = self._terms.lease
        return Claim(lease.claim, lease.ttl, self._terms.now / 1000, self._messages, self._lapsed)

    def settle(self) -> None:
        """Return when all that was done, or found done, is safe."""
        if self._messages or self._buried or self.found is not None:
            self._opened.store.settle()

    def _in_vain(self) -> bool:
        """Hold up to the limit, bury the rest; whether another look may find messages where this one found none."""
        store, registry = self._opened
        letters, now = self._terms.dead_letters, self._terms.now
        target_ref = letters.queue if letters is not None else self._queue
        with registry.held(self._queue, target_ref) as (state, target):
            if state is None:
                return False
            if self._terms.named:
                self.found = claim_of(store, state, self._terms.lease.claim, now)
                if self.found is not None:
                    return False
            change = Change(store)
            items = take(store, state, self._terms.limit, now, change, self._terms.most_bytes)
            spent = [item for item in items if self._is_spent(item)]
            if not spent or target is not None:
                for item in items:
                    if not self._is_spent(item):
                        self._hold(change, state, item)
                self._bury(change, state, target, spent)
                change.commit()
                return bool(spent) and not self._messages
        # The first dead letter creates its queue; nothing is done yet, so look again with both locked.
        registry.ensure(target_ref)
        return True

    def _is_spent(self, item: Ready) -> bool:
        letters = self._terms.dead_letters
        return letters is not None and item.record.count >= letters.max_claims

    def _hold(self, change: Change, state: QueueState, item: Ready) -> None:
        sequence, record, body = item
        self._lapsed += record.claim != ""
        record.former = record.available
        record.count += 1
        wait = self._terms.redelivery.wait(record.count) * 1000
        hold(change, state, (sequence, record), self._terms.lease, wait, self._terms.now, body)
        self._messages.append(layout.message(sequence, record, body, self._terms.now))

    def _bury(self, change: Change, state: QueueState, target: QueueState | None, spent: list[Ready]) -> None:
        letters = self._terms.dead_letters
        if letters is not None:
            routes = Routes(state, {letters.queue.name: target}, letters.history, self._terms.now)
            for sequence, record, body in spent:
                move = Move(record.id, letters.queue.name, letters.ttl, reason="max_claim_count")
                routes.carry(change, sequence, record, body, move)
            self._buried += len(spent)
