# SPDX-License-Identifier: Apache-2.0
"""What a claim holds, put under it and given back. The caller holds the queue's lock."""

from zq.model import Claim, Lease
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.listing import Found
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState


def hold(
    change: Change, state: QueueState, found: Found, lease: Lease, wait: int, now: int, body: bytes | None = None
) -> None:
    """Put a message under a claim that starts now; when it lapses, the message stays away ``wait`` ms longer.

    ``body``: as for ``Change.rewrite``.
    """
    sequence, record = found
    place = record.place()
    record.claim = lease.claim
    record.claimed = now
    record.lease = lease.ttl
    record.ends = now + lease.ttl * 1000
    record.available = record.ends + wait
    record.ttl, record.expires = lease.life(record.ttl, record.expires, record.ends, 1000)
    change.rewrite(state, sequence, place, record, body)


def give_back(change: Change, state: QueueState, found: Found, delay: int | None, now: int) -> None:
    """End the hold on a message: ready again after ``delay`` s, after its redelivery delay, or in its former place."""
    sequence, record = found
    place = record.place()
    wait = record.available - record.ends
    if delay is not None:
        record.available = now + delay * 1000
    else:
        record.available = now + wait if wait else record.former
    record.claim, record.ends = "", 0
    change.rewrite(state, sequence, place, record)


def claim_of(store: Store, state: QueueState | None, claim: str, now: int) -> Claim | None:
    """The live claim of this id with all that it holds, or None."""
    held = held_by(store, state, claim, now)
    if state is None or not held:
        return None
    bodies = store.get_many("bodies", [layout.pair.pack(state.number, sequence) for sequence, _ in held])
    messages = [
        layout.message(sequence, record, layout.unsealed(body), now)
        for (sequence, record), body in zip(held, bodies, strict=True)
        if body is not None
    ]
    terms = held[0][1]
    return Claim(claim, terms.lease, terms.claimed / 1000, messages)


def held_by(store: Store, state: QueueState | None, claim: str, now: int) -> list[Found]:
    """All that a live claim holds, in sequence; nothing of a queue that is not there, nor what a commit has pinned."""
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
            sequence = layout.pair.unpack(key)[1]
            if record.claim == claim and record.held(now) and sequence not in state.pinned:
                held.append((sequence, record))
    return held


def sequences_of(store: Store, state: QueueState | None, claim: str, now: int) -> list[int]:
    """The sequences of what ``held_by`` finds, by the index alone."""
    if state is None:
        return []
    prefix = layout.claim_prefix(state.number, claim)
    entries = store.scan("claims", prefix, layout.after(prefix))
    live = (layout.number.unpack(key[-8:])[0] for key, ends in entries if layout.number.unpack(ends)[0] > now)
    return [sequence for sequence in live if sequence not in state.pinned]
