# SPDX-License-Identifier: Apache-2.0
"""Claims of the embedded store. A claim is nothing but what its messages' records say of it."""

from msgspec import structs

from zq.errors import ClaimNotFound
from zq.model import Claim, DeadLetters, Lease, Message, QueueRef, Seconds
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.keeper import Keeper, Opened
from zq.storage.rocksdb.layout import Record
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.ready import Ready, take
from zq.storage.rocksdb.registry import QueueState

MAX_LOOKS = 64
"""How often one claim looks again because all that it met were dead letters."""


class ClaimController:
    """``zq.storage.api.ClaimController`` on RocksDB."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: Seconds, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        with self._keeper as opened:
            look = _Look(opened, queue, lease, now, dead_letters)
            for _ in range(MAX_LOOKS):
                look.run(limit)
                if not look.in_vain:
                    break
            if look.messages or look.buried:
                opened.store.settle()
        return Claim(lease.claim, lease.ttl, now, look.messages) if look.messages else None

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment = layout.ms(now)
        with self._keeper as (store, registry), registry.held(queue) as (state,):
            held = _held(store, state, claim, moment)
            if state is None or not held:
                raise ClaimNotFound("There is no live claim of this id in the queue.")
            bodies = store.get_many("bodies", [layout.pair.pack(state.number, sequence) for sequence, _ in held])
        messages = [
            layout.message(sequence, record, body, moment)
            for (sequence, record), body in zip(held, bodies, strict=True)
            if body is not None
        ]
        terms = held[0][1]
        return Claim(claim, terms.lease, terms.claimed / 1000, messages)

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds) -> None:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                held = _held(store, state, lease.claim, moment)
                if state is None or not held:
                    raise ClaimNotFound("There is no live claim of this id in the queue.")
                change = Change(store)
                for sequence, record in held:
                    place = record.place()
                    _put_under(lease, record, moment)
                    change.rewrite(state, sequence, place, record)
                change.commit()
            store.settle()

    def release(self, queue: QueueRef, claim: str, now: Seconds) -> None:
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                held = _held(store, state, claim, layout.ms(now))
                if state is None or not held:
                    return
                change = Change(store)
                for sequence, record in held:
                    place = record.place()
                    record.claim, record.ends, record.available = "", 0, record.former
                    change.rewrite(state, sequence, place, record)
                change.commit()
            store.settle()


class _Look:
    """Claims from the front of a queue, each ``run`` in one change."""

    def __init__(
        self, opened: Opened, queue: QueueRef, lease: Lease, now: Seconds, dead_letters: DeadLetters | None
    ) -> None:
        self._opened = opened
        self._queue = queue
        self._lease = lease
        self._now = layout.ms(now)
        self._dead_letters = dead_letters
        self.messages: list[Message] = []
        self.buried = 0
        self.in_vain = False
        """All that the last run met were dead letters, so another one may find messages."""

    def run(self, limit: int) -> None:
        """Hold up to ``limit`` messages, bury those that were handed out too often."""
        store, registry = self._opened
        buried = self.buried
        target_ref = self._dead_letters.queue if self._dead_letters is not None else self._queue
        with registry.held(self._queue, target_ref) as (state, target):
            if state is None:
                return
            change = Change(store)
            for item in take(store, state, limit, self._now, change):
                if self._dead_letters is None or item.record.count < self._dead_letters.max_claims:
                    self._hold(change, state, item)
                elif target is None:
                    break
                else:
                    self._bury(change, state, target, item, self._dead_letters)
            else:
                change.commit()
                self.in_vain = self.buried > buried and not self.messages
                return
        # The first dead letter creates its queue; nothing is done yet, so look again with both locked.
        self.messages, self.buried, self.in_vain = [], buried, True
        registry.ensure(target_ref)

    def _hold(self, change: Change, state: QueueState, item: Ready) -> None:
        sequence, record, body = item
        place = record.place()
        record.former = record.available
        record.count += 1
        _put_under(self._lease, record, self._now)
        change.rewrite(state, sequence, place, record)
        self.messages.append(layout.message(sequence, record, body, self._now))

    def _bury(self, change: Change, state: QueueState, target: QueueState, item: Ready, terms: DeadLetters) -> None:
        ttl = terms.ttl if terms.ttl is not None else item.record.ttl
        letter = structs.replace(
            item.record,
            ttl=ttl,
            expires=self._now + ttl * 1000,
            claim="",
            ends=0,
            count=0,
            origin=state.ref.name,
            origin_count=item.record.count,
            reason="max_claim_count",
        )
        change.remove(state, item.sequence, item.record)
        change.insert(target, letter, item.body, self._now)
        self.buried += 1


def _put_under(lease: Lease, record: Record, now: int) -> None:
    """Put the record under a claim that starts now."""
    record.claim = lease.claim
    record.claimed = now
    record.lease = lease.ttl
    record.ends = record.available = now + lease.ttl * 1000
    record.ttl, record.expires = lease.life(record.ttl, record.expires, record.ends, 1000)


def _held(store: Store, state: QueueState | None, claim: str, now: int) -> list[tuple[int, Record]]:
    """(sequence, record) of all that a live claim holds, in sequence."""
    if state is None:
        return []
    prefix = layout.claim_prefix(state.number, claim)
    keys = [
        layout.number.pack(state.number) + key[-8:] for key, _ in store.scan("claims", prefix, layout.after(prefix))
    ]
    held = []
    for key, value in zip(keys, store.get_many("messages", keys), strict=True):
        if value is not None:
            record = layout.decode_record(value)
            if record.claim == claim and record.held(now):
                held.append((layout.pair.unpack(key)[1], record))
    return held
