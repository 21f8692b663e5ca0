# SPDX-License-Identifier: Apache-2.0
"""One atomic change to messages: the only place that writes a message and all its index entries; and moves.

A change collects writes; ``commit`` applies them in one batch and only then touches what memory knows of the queues.
The caller holds the locks of all queues concerned from before the first read until after ``commit``.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from zq.model import Draft, Grouping, IdempotencyKey, Move, Outcome, QueueRef
from zq.model.moments import FALSE_FUTURE
from zq.model.quotas import OVERHEAD
from zq.storage.ordered import due, layout
from zq.storage.ordered.idempotency import key_writes
from zq.storage.ordered.layout import Found, IndexPlace, NewMessage, StoredEntry, StoredMessage, Tally
from zq.storage.ordered.lines import Lines
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store, Write

# Messages between two fresh ones: what a claim may have to step over for each message that it takes.
MAX_GAP: Final = 16
# Milliseconds ahead of now up to which a last moment is believed.
BELIEVED: Final = FALSE_FUTURE * 1000


class End(NamedTuple):
    """How and when messages finish, and for how many seconds a record is kept of them; 0 = none."""

    outcome: Outcome
    history: int
    now: int


class Taken(NamedTuple):
    """A message that is ready, with its body."""

    sequence: int
    record: StoredMessage
    body: bytes


class Change:
    """Messages inserted, removed and rewritten together."""

    def __init__(self, store: Store, now: int) -> None:
        self._store = store
        self._now = now
        self._lines: Lines | None = None
        self._writes: list[Write] = []
        self._tallies: dict[QueueState, Tally] = {}
        self._heads: dict[QueueState, bytes] = {}
        self._made_available: defaultdict[QueueState, list[bytes]] = defaultdict(list)
        self._lowered: dict[QueueState, set[int]] = {}
        self._claimed: dict[bytes, tuple[int, list[int]]] = {}
        """(end, sequences) of each new group, by its key."""
        self._groups: dict[tuple[QueueState, str, int], tuple[int, list[int]]] = {}
        """(number, sequences) of the last one, by queue, claim and end."""
        self.holders: dict[bytes, bytes] = {}
        """Who holds what is put under a claim, by ``layout.claim_prefix``, b"" = not known; of others, as it was."""
        self._left: defaultdict[tuple[int, str, int], set[int]] = defaultdict(set)
        """Sequences that leave a group, by the queue's number, claim and group."""

    @property
    def lines(self) -> Lines:
        """What it does to lines: only grouped queues have any."""
        if self._lines is None:
            self._lines = Lines(self._store)
        return self._lines

    def insert(self, state: QueueState, record: NewMessage, body: bytes, now: int, delay: int = 0) -> None:
        """Add a message behind all others of the queue; without delay available not before the last such one (L5).
        Its ``size`` is that of what it has besides the body."""
        tally, lane = self._tally(state), not state.grouping
        size = record.size = record.size + len(body) + OVERHEAD
        sequence = tally.sequence = tally.sequence + 1
        tally.count += 1
        tally.bytes += size
        if delay:
            record.available, record.indexed = now + delay, lane
            tally.fresh_gap += 1
        else:
            _join(tally, record, now, lane)
        key = layout.pair.pack(state.number, sequence)
        if len(body) <= layout.SHORT:
            record.body = body
        else:
            self._writes.append(("bodies", key, self._sealed(state, record, body)))
        self._writes += (
            ("messages", key, layout.encode(record)),
            ("expiry", layout.number.pack(record.expires) + key, b""),
            ("ids", layout.id_key(state.project, record.id), key),
        )
        if record.indexed:
            self._put_available(state, sequence, record)
        elif not lane:
            assert isinstance(record, StoredMessage), "only those know their group"
            self.lines.join(state, sequence, record)

    def post(self, state: QueueState, draft: Draft, now: int) -> None:
        """Add a new message, whose key is known from now on, if it has one."""
        attributes, group, ttl, expires = draft.attributes, draft.group, draft.ttl, now + draft.ttl * 1000
        if attributes or group or state.grouping:
            terms = draft.id, now, expires, now, ttl, draft.client, draft.checksum
            record: NewMessage = StoredMessage(*terms, size=len(attributes), attributes=attributes, line=group)
        else:
            record = NewMessage(draft.id, now, expires, now, ttl, draft.client, draft.checksum)
        self.insert(state, record, draft.body, now, draft.delay * 1000)
        if draft.once is not None:
            self.remember(state, draft.once, [draft.id], now, posted=True)

    def remove(self, state: QueueState, sequence: int, record: StoredMessage) -> None:
        """Take a message away for good."""
        tally = self._tally(state)
        tally.count -= 1
        tally.bytes -= record.size
        self._writes += traces(state.number, state.project, sequence, record)
        if record.claim:
            self._left[state.number, record.claim, record.group].add(sequence)
        if state.grouping:
            self.lines.leave(state, sequence, record.line, record.available)

    def finish(self, state: QueueState, sequence: int, record: StoredMessage, end: End) -> None:
        """Take a message away and, where history is kept, leave a record of it."""
        if end.history:
            self._record(state, sequence, record, end)
        self.remove(state, sequence, record)

    def rewrite(
        self, state: QueueState, sequence: int, old: IndexPlace, new: StoredMessage, body: bytes | None = None
    ) -> None:
        """Replace a message's record, and the index entries that differ from those of its old place; not fresh now.

        ``body``: where the caller has read it, for a message that lives longer from now on.
        """
        number, key = state.number, layout.pair.pack(state.number, sequence)
        new.indexed = lane = not state.grouping
        until = new.ends if new.ends < new.expires else new.expires
        if old.claim != new.claim or old.until != until:
            if old.claim:
                self._left[number, old.claim, old.group].add(sequence)
            new.group = self._join_group(state, sequence, new.claim, until) if new.claim else 0
        self._writes.append(("messages", key, layout.encode(new)))
        if not lane:
            self.lines.shift(state, sequence, new, old.available)
        elif not old.indexed or old.available != new.available or old.expires != new.expires:
            if old.indexed:
                self._writes.append(("available", layout.triple.pack(number, old.available, sequence), None))
            self._put_available(state, sequence, new)
        else:  # where it was: a claim that lasts no time has passed it, and the next one is to meet it again
            self._made_available[state].append(layout.triple.pack(number, new.available, sequence))
        if old.expires != new.expires:
            self._writes.append(("expiry", layout.number.pack(old.expires) + key, None))
            self._writes.append(("expiry", layout.number.pack(new.expires) + key, b""))
            if new.body is None:
                self._prolong(state, key, new, body)
        if new.available < old.available or until < old.until:
            self.show(state, sequence)

    def show(self, state: QueueState, sequence: int) -> None:
        """Have listings look at a message that some of them may show earlier than its former record says."""
        self._lowered.setdefault(state, set()).add(sequence)

    def advance(self, state: QueueState, head: bytes, fresh_head: int) -> None:
        """Once this is committed, claims go on at ``head``, but for entries made by this change; and above
        ``fresh_head``, which only memory knows if nothing else is changed."""
        self._heads[state] = head
        if fresh_head > state.tally.fresh_head:
            self._tally(state).fresh_head = fresh_head

    def stay(self, state: QueueState) -> None:
        """Claims go on in the index where they did: some of what they walked over is still ready. None of it is fresh:
        what claims meet is rewritten."""
        self._heads.pop(state, None)

    def remember(self, state: QueueState, key: IdempotencyKey | None, answer: Any, now: int, posted: bool) -> None:
        """Let the queue know the key, and its answer; None = nothing. ``posted``: for what this change added last."""
        if key is not None:
            last = self._tally(state).sequence if posted else 0
            writes, size = key_writes(state, key, answer, now, last=last)
            self._tally(state).kept += size
            self._writes += writes

    def also(self, *writes: Write) -> None:
        """Write more in the same step: what is not a message."""
        self._writes += writes

    def commit(self) -> None:
        """Apply everything in one step. Raises ``Unavailable``; then nothing has changed, in memory neither."""
        for state, writes, entry in self._lines.writes(self._now) if self._lines else ():
            self._writes += writes
            if entry:
                self._made_available[state].append(entry)
        if self._left or self._claimed:
            self._write_groups()
        if self._writes:
            for state, tally in self._tallies.items():
                self._writes.append(("tallies", layout.number.pack(state.number), layout.encode(tally)))
            self._store.write(self._writes)
        for state, head in self._heads.items():
            state.advance(head)
        new = set(self._lowered)
        for state, tally in self._tallies.items():
            if state.apply(tally):
                new.add(state)
        for state, keys in self._made_available.items():
            state.join_available(keys)
            if state.grouping == Grouping.ORDERED and any(layout.triple.unpack(key)[1] <= self._now for key in keys):
                new.add(state)  # a group has another head, which is ready
        for state, sequences in self._lowered.items():
            state.visibility.invalidate(sequences)
        for state in new:
            if state.context.listener is not None:
                state.context.listener(state.ref)

    def _tally(self, state: QueueState) -> Tally:
        tally = self._tallies.get(state)
        if tally is None:
            tally = self._tallies[state] = structs.replace(state.tally)
        return tally

    def _record(self, state: QueueState, sequence: int, record: StoredMessage, end: End) -> None:
        [body] = bodies(self._store, state.number, [(sequence, record)])
        if body is None:  # it expired while this verb was under way
            return
        tally = self._tally(state)
        tally.position += 1
        tally.finished = max(end.now, tally.finished)
        expires = tally.finished + end.history * 1000
        size = len(body) + len(record.attributes) + OVERHEAD
        tally.kept += size
        kept = StoredEntry(
            structs.replace(record, claim="", body=None), body, sequence, end.outcome, tally.finished, expires, size
        )
        self._writes += due.history_writes(state.history, tally.position, kept)

    def _prolong(self, state: QueueState, key: bytes, record: StoredMessage, body: bytes | None) -> None:
        """Stamp the body anew, or the compaction filter would take it at its former end."""
        stored = None if body is not None else self._store.get("bodies", key)
        if stored is not None:
            body = layout.unsealed(stored)
        if body is not None:
            self._writes.append(("bodies", key, self._sealed(state, record, body)))

    def _sealed(self, state: QueueState, record: NewMessage, body: bytes) -> bytes:
        return layout.sealed(body, record.expires, state.context.expiry.compaction_filter_grace)

    def _join_group(self, state: QueueState, sequence: int, claim: str, until: int) -> int:
        """The group in which a message is listed that a claim holds until then."""
        place = state, claim, until
        group, sequences = self._groups.get(place, (0, []))
        if not sequences or len(sequences) == layout.GROUP:
            tally = self._tally(state)
            tally.group += 1
            group, sequences = self._groups[place] = tally.group, []
            self._claimed[layout.claim_key(state.number, claim, group)] = until, sequences
        sequences.append(sequence)
        return group

    def _write_groups(self) -> None:
        """New groups, and those that messages left; one that cannot be read stays as it is."""
        keys = [layout.claim_key(*place) for place in self._left]
        values = self._store.get_many("claims", keys, spare=True)
        former: dict[bytes, bytes] = {}
        for key, left, value in zip(keys, self._left.values(), values, strict=True):
            if value:
                ends, sequences = layout.group_of(value)
                kept = [sequence for sequence in sequences if sequence not in left]
                holder = layout.holder_of(value)
                self._writes.append(("claims", key, layout.group_value(ends, kept, holder) if kept else None))
                former.setdefault(key[: -layout.number.size], holder)
        for key, (ends, sequences) in self._claimed.items():
            claim = key[: -layout.number.size]
            holder = self.holders.get(claim, former.get(claim, b""))
            self._writes.append(("claims", key, layout.group_value(ends, sequences, holder)))

    def _put_available(self, state: QueueState, sequence: int, record: NewMessage) -> None:
        key = layout.triple.pack(state.number, record.available, sequence)
        self._writes.append(("available", key, layout.number.pack(record.expires)))
        self._made_available[state].append(key)


def _join(tally: Tally, record: NewMessage, now: int, lane: bool) -> None:
    """Make a message the last fresh one, in the ``lane`` of such if the queue has one; or index it, if claims that look
    for fresh ones would step over too much before they came to it, or if it is available before others."""
    fresh = tally.fresh
    if fresh > now + BELIEVED:
        fresh, tally.fresh_gap = now, MAX_GAP + 1
    record.available = tally.fresh = fresh if fresh > now else now
    if not lane:
        return
    sequence = tally.sequence
    if tally.fresh_head >= tally.fresh_tail:  # no other one is left
        tally.fresh_head, tally.fresh_gap = sequence - 1, 0
    if tally.fresh_gap > MAX_GAP:
        record.indexed = True
    else:
        tally.fresh_tail, tally.fresh_gap = sequence, 0


def traces(queue: int, project: bytes, sequence: int, record: StoredMessage) -> list[Write]:
    """The deletion of all that a message has in the store for itself, index entries first."""
    key = layout.pair.pack(queue, sequence)
    writes: list[Write] = [
        ("expiry", layout.number.pack(record.expires) + key, None),
        ("ids", layout.id_key(project, record.id), None),
    ]
    if record.indexed:
        writes.append(("available", layout.triple.pack(queue, record.available, sequence), None))
    if record.body is None:
        writes.append(("bodies", key, None))
    writes.append(("messages", key, None))
    return writes


def bodies(store: Store, queue: int, found: Sequence[Found], spare: bool = False) -> list[bytes | None]:
    """The bodies of messages; None for one that was removed, or expired, after its record was read. ``spare``: ``b""``
    for a damaged one instead of an error."""
    apart = [layout.pair.pack(queue, sequence) for sequence, record in found if record.body is None]
    if not apart:
        return [record.body for _, record in found]
    values = iter(store.get_many("bodies", apart, spare))
    return [record.body if record.body is not None else _unsealed(next(values)) for _, record in found]


def _unsealed(value: bytes | None) -> bytes | None:
    return layout.unsealed(value) if value else value


# Queues of the project by name; None for one that does not exist.
Targets = dict[str, QueueState | None]


class Routes(NamedTuple):
    """Where messages come from, where they may go, for how long a record is kept where they were."""

    source: QueueState
    targets: Targets
    history: int
    now: int

    def missing(self, moves: Iterable[Move]) -> list[QueueRef]:
        """Queues that the moves need and that do not exist."""
        return [ref for ref in targets(self.source.ref, moves) if self.targets[ref.name] is None]

    def carry_all(self, store: Store, change: Change, found: Mapping[str, Found], moves: Sequence[Move]) -> list[Move]:
        """Take messages, by id, to the ends of other queues, in the order of the moves; which of them went.

        One whose body has gone had expired while the verb was under way.
        """
        carried = []
        values = bodies(store, self.source.number, [found[move.id] for move in moves])
        for move, body in zip(moves, values, strict=True):
            if body is not None:
                self.carry(change, *found[move.id], body, move)
                carried.append(move)
        return carried

    def carry(self, change: Change, sequence: int, record: StoredMessage, body: bytes, move: Move) -> None:
        """Take a message from its queue to the other one's end."""
        target = self.targets[move.to]
        assert target is not None, "the caller has created what was missing"
        outcome = Outcome.DEAD_LETTERED if move.reason else Outcome.MOVED
        change.finish(self.source, sequence, record, End(outcome, self.history, self.now))
        moved = _moved(record, move, self.source.ref.name, self.now)
        change.insert(target, moved, body if move.body is None else move.body, self.now, move.delay * 1000)


def targets(queue: QueueRef, moves: Iterable[Move]) -> list[QueueRef]:
    """The queues that the moves name, each once."""
    return [QueueRef(queue.project, name) for name in dict.fromkeys(move.to for move in moves)]


def by_name(refs: Sequence[QueueRef], states: Sequence[QueueState | None]) -> Targets:
    """Queues that were locked together."""
    return {ref.name: state for ref, state in zip(refs, states, strict=True)}


def _moved(record: StoredMessage, move: Move, origin: str, now: int) -> StoredMessage:
    """The record that a message has after the move; its place is given where it joins."""
    ttl = record.ttl if move.ttl is None else move.ttl
    return StoredMessage(
        id=record.id,
        created=record.created if move.reason or move.keeps_age else now,
        expires=now + ttl * 1000,
        available=now,
        ttl=ttl,
        client=record.client,
        checksum=record.checksum if move.body is None else move.checksum,
        origin=origin if move.reason else "",
        origin_count=record.count if move.reason else 0,
        reason=move.reason,
        size=len(record.attributes),
        first=record.first if move.reason else 0,
        attributes=record.attributes,
        line=record.line,
    )
