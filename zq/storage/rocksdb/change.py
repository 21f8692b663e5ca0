# SPDX-License-Identifier: Apache-2.0
"""One atomic change to messages: the only place that writes a message and all its index entries.

A change collects writes; ``commit`` applies them in one batch and only then touches what memory knows of the queues.
The caller holds the locks of all queues concerned from before the first read until after ``commit``.
"""

from collections import defaultdict
from typing import NamedTuple

from msgspec import structs

from zq.model import Draft, Outcome
from zq.storage.rocksdb import layout, past
from zq.storage.rocksdb.layout import Past, Place, Record, Tally, Trace
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.registry import QueueState

FALSE_FUTURE = 60_000
"""Milliseconds ahead of now at which a queue's last moment must stem from a clock that was wrong: see ``guard``."""


class End(NamedTuple):
    """How and when messages finish, and for how many seconds a record is kept of them; 0 = none."""

    outcome: Outcome
    history: int
    now: int


class Change:
    """Messages inserted, removed and rewritten together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writes: list[Write] = []
        self._tallies: dict[QueueState, Tally] = {}
        self._heads: dict[QueueState, bytes] = {}
        self._made_available: defaultdict[QueueState, list[bytes]] = defaultdict(list)
        self._lowered: dict[QueueState, set[int]] = {}

    def insert(self, state: QueueState, record: Record, body: bytes, now: int, delay: int = 0) -> None:
        """Add a message behind all others of the queue; without delay available not before the last such one (L5)."""
        tally = self._tally(state)
        tally.sequence += 1
        tally.count += 1
        if delay:
            record.available = now + delay
        else:
            record.available = tally.fresh = now if tally.fresh > now + FALSE_FUTURE else max(now, tally.fresh)
        key = layout.pair.pack(state.number, tally.sequence)
        self._writes += (
            ("messages", key, layout.encode(record)),
            ("bodies", key, self._sealed(state, record, body)),
            ("expiry", layout.number.pack(record.expires) + key, b""),
            ("ids", layout.id_key(state.project, record.id), key),
        )
        self._put_available(state, tally.sequence, record)

    def post(self, state: QueueState, draft: Draft, now: int) -> None:
        """Add a new message."""
        record = Record(
            id=draft.id,
            created=now,
            expires=now + draft.ttl * 1000,
            available=now,
            ttl=draft.ttl,
            client=draft.client,
            checksum=draft.checksum,
        )
        self.insert(state, record, draft.body, now, draft.delay * 1000)

    def remove(self, state: QueueState, sequence: int, record: Trace) -> None:
        """Take a message away for good."""
        self._tally(state).count -= 1
        self._writes += traces(state.number, state.project, sequence, record)

    def finish(self, state: QueueState, sequence: int, record: Record, end: End) -> None:
        """Take a message away and, where history is kept, leave a record of it."""
        if end.history:
            self._record(state, sequence, record, end)
        self.remove(state, sequence, record)

    def rewrite(self, state: QueueState, sequence: int, old: Place, new: Record, body: bytes | None = None) -> None:
        """Replace a message's record, and the index entries that differ from those of its old place.

        ``body``: where the caller has read it, for a message that lives longer from now on.
        """
        number, key = state.number, layout.pair.pack(state.number, sequence)
        self._writes.append(("messages", key, layout.encode(new)))
        if old.available != new.available or old.expires != new.expires:
            self._writes.append(("available", layout.triple.pack(number, old.available, sequence), None))
            self._put_available(state, sequence, new)
        if old.expires != new.expires:
            self._writes.append(("expiry", layout.number.pack(old.expires) + key, None))
            self._writes.append(("expiry", layout.number.pack(new.expires) + key, b""))
            self._prolong(state, key, new, body)
        if old.claim and old.claim != new.claim:
            self._writes.append(("claims", layout.claim_prefix(number, old.claim) + key[8:], None))
        if new.claim:
            self._writes.append(
                ("claims", layout.claim_prefix(number, new.claim) + key[8:], layout.number.pack(new.ends))
            )
        if new.available < old.available or new.ends < old.ends:
            self._lowered.setdefault(state, set()).add(sequence)

    def advance(self, state: QueueState, head: bytes) -> None:
        """Once this is committed, claims go on at ``head``, but for entries made by this change."""
        self._heads[state] = head

    def also(self, *writes: Write) -> None:
        """Write more in the same step: what is not a message."""
        self._writes += writes

    def commit(self) -> None:
        """Apply everything in one step. Raises ``Unavailable``; then nothing has changed, in memory neither."""
        for state, tally in self._tallies.items():
            self._writes.append(("tallies", layout.number.pack(state.number), layout.encode(tally)))
        if self._writes:
            self._store.write(self._writes)
        for state, head in self._heads.items():
            state.front = state.front.passed(head)
        told = set(self._lowered)
        for state, tally in self._tallies.items():
            if tally.sequence > state.tally.sequence:
                told.add(state)
            state.tally = tally
        for state, keys in self._made_available.items():
            state.front = state.front.joined(keys)
        for state, sequences in self._lowered.items():
            state.quiet.wake(sequences)
        for state in told:
            if state.around.listener is not None:
                state.around.listener(state.ref)

    def _tally(self, state: QueueState) -> Tally:
        tally = self._tallies.get(state)
        if tally is None:
            tally = self._tallies[state] = structs.replace(state.tally)
        return tally

    def _record(self, state: QueueState, sequence: int, record: Record, end: End) -> None:
        value = self._store.get("bodies", layout.pair.pack(state.number, sequence))
        if value is None:  # it expired while this verb was under way
            return
        tally = self._tally(state)
        tally.position += 1
        tally.finished = max(end.now, tally.finished)
        expires = tally.finished + end.history * 1000
        kept = Past(
            structs.replace(record, claim=""), layout.unsealed(value), sequence, end.outcome, tally.finished, expires
        )
        self._writes += past.writes(state.history, tally.position, kept)

    def _prolong(self, state: QueueState, key: bytes, record: Record, body: bytes | None) -> None:
        """Stamp the body anew, or the compaction filter would take it at its former end."""
        stored = None if body is not None else self._store.get("bodies", key)
        if stored is not None:
            body = layout.unsealed(stored)
        if body is not None:
            self._writes.append(("bodies", key, self._sealed(state, record, body)))

    def _sealed(self, state: QueueState, record: Record, body: bytes) -> bytes:
        return layout.sealed(body, record.expires, state.around.expiry.compaction_filter_grace)

    def _put_available(self, state: QueueState, sequence: int, record: Record) -> None:
        key = layout.triple.pack(state.number, record.available, sequence)
        self._writes.append(("available", key, layout.number.pack(record.expires)))
        self._made_available[state].append(key)


def traces(queue: int, project: bytes, sequence: int, record: Trace) -> list[Write]:
    """The deletion of all that a message has in the store, index entries first."""
    key = layout.pair.pack(queue, sequence)
    writes: list[Write] = [
        ("available", layout.triple.pack(queue, record.available, sequence), None),
        ("expiry", layout.number.pack(record.expires) + key, None),
        ("ids", layout.id_key(project, record.id), None),
    ]
    if record.claim:
        writes.append(("claims", layout.claim_prefix(queue, record.claim) + key[8:], None))
    writes += (("bodies", key, None), ("messages", key, None))
    return writes
