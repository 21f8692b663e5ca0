# SPDX-License-Identifier: Apache-2.0
"""Atomic changes to messages. All operations write messages through this module.

A ``Change`` collects writes. ``commit`` applies them in one batch and then updates the queue states in memory. The
caller must acquire the locks of all affected queues before its first read and release them after ``commit``.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from zq.errors import QueueNotFound
from zq.model import Draft, Grouping, IdempotencyKey, Move, Outcome, QueueRef
from zq.model.quotas import OVERHEAD
from zq.storage.api import FALSE_FUTURE
from zq.storage.ordered import due, layout
from zq.storage.ordered.entries import message_changes, message_entries, message_removal
from zq.storage.ordered.group_index import GroupIndexChanges
from zq.storage.ordered.idempotency import key_writes
from zq.storage.ordered.layout import Found, IndexFields, NewMessage, StoredEntry, StoredMessage, Tally
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store, Write

# Maximum number of other messages between two fresh messages. A claim reads and skips the messages in between.
MAX_GAP: Final = 16
# Maximum milliseconds by which the last fresh message's available-at may be in the future. A later one was caused by a
# wrong clock and is ignored.
MAX_AHEAD: Final = FALSE_FUTURE * 1000


class Completion(NamedTuple):
    """The outcome with which an operation finishes messages.

    ``history`` is the retention of history entries in seconds (0 = no entries). ``now`` is in Unix milliseconds.
    """

    outcome: Outcome
    history: int
    now: int


class ReadyMessage(NamedTuple):
    """A ready message with its body."""

    sequence: int
    record: StoredMessage
    body: bytes


class Change:
    """A batch of insertions, removals and rewrites of messages, which ``commit`` applies atomically.

    The change also updates the claim groups in the store. A claim group is a list of messages of one claim whose
    visibility timeouts end at the same time.
    """

    def __init__(self, store: Store, now: int) -> None:
        self._store = store
        self._now = now
        self._group_indexes: GroupIndexChanges | None = None
        self._writes: list[Write] = []
        self._tallies: dict[QueueState, Tally] = {}
        self._heads: dict[QueueState, bytes] = {}
        self._made_available: defaultdict[QueueState, list[bytes]] = defaultdict(list)
        self._lowered: dict[QueueState, set[int]] = {}
        self._claimed: dict[bytes, tuple[int, list[int]]] = {}
        """The end and the message sequences of each new claim group, by key in ``claims``."""
        self._groups: dict[tuple[QueueState, str, int], tuple[int, list[int]]] = {}
        """The number and the message sequences of the last claim group, by queue, claim and end."""
        self.holders: dict[bytes, bytes] = {}
        """The encoded holders of new claims, by key prefix of the claim; b"" if the holder is unknown."""
        self._left: defaultdict[tuple[int, str, int], set[int]] = defaultdict(set)
        """The sequences of messages that leave a claim group, by queue number, claim and group number."""

    @property
    def group_indexes(self) -> GroupIndexChanges:
        """The changes to the indexes of message groups, which exist only in grouped queues."""
        if self._group_indexes is None:
            self._group_indexes = GroupIndexChanges(self._store)
        return self._group_indexes

    def insert(self, state: QueueState, record: NewMessage, body: bytes, now: int, delay: int = 0) -> None:
        """Append a message to the queue. The message becomes available ``delay`` milliseconds after ``now``.

        Messages without a delay become available in the order of insertion (law L5 of the driver contract). The method
        adds the stored size of the body to ``record.size``.
        """
        tally, may_be_fresh = self._tally(state), not state.grouping
        size = record.size = record.size + len(body) + OVERHEAD
        sequence = tally.sequence = tally.sequence + 1
        tally.count += 1
        tally.bytes += size
        if delay:
            record.available, record.indexed = now + delay, may_be_fresh
            tally.fresh_gap += 1
        else:
            _set_available(tally, record, now, may_be_fresh)
        self._store_new(state, sequence, record, body)

    def adopt(self, state: QueueState, sequence: int, record: StoredMessage, body: bytes) -> None:
        """Insert a message from another store, and keep its sequence and available-at.

        The method adds the stored size of the body to ``record.size``.
        """
        tally = self._tally(state)
        record.size += len(body) + OVERHEAD
        record.indexed = not state.grouping
        tally.sequence = max(tally.sequence, sequence)
        tally.count += 1
        tally.bytes += record.size
        self._store_new(state, sequence, record, body)
        self.invalidate_visibility(state, sequence)

    def adopt_history(self, state: QueueState, position: int, kept: StoredEntry) -> None:
        """Insert a history entry from another store, with its position."""
        tally = self._tally(state)
        tally.position = max(tally.position, position)
        tally.finished = max(tally.finished, kept.finished)
        tally.kept += kept.size
        self._writes += due.history_writes(state.history, position, kept)

    def adopt_key(self, state: QueueState, writes: Sequence[Write], size: int) -> None:
        """Insert an idempotency key from another store. ``size`` is the size of its stored result in bytes."""
        self._tally(state).kept += size
        self._writes += writes

    def raise_counters(self, state: QueueState, lowest: Tally) -> None:
        """Raise each counter of the queue to at least its value in ``lowest``."""
        tally = self._tally(state)
        for field in ("sequence", "fresh", "position", "finished"):
            setattr(tally, field, max(getattr(tally, field), getattr(lowest, field)))
        self._writes.append(("numbers", layout.number.pack(state.number), state.key))  # as at creation

    def _store_new(self, state: QueueState, sequence: int, record: NewMessage, body: bytes) -> None:
        key = layout.pair.pack(state.number, sequence)
        if len(body) <= layout.SHORT:
            record.body = body
        else:
            self._writes.append(("bodies", key, self._seal(state, record, body)))
        self._writes.append(("messages", key, layout.encode(record)))
        self._writes += message_entries(state.project, key, record)
        if record.indexed:
            self._made_available[state].append(layout.triple.pack(state.number, record.available, sequence))
        elif state.grouping:
            assert isinstance(record, StoredMessage), "only stored messages have a group"
            self.group_indexes.join(state, sequence, record)

    def post(self, state: QueueState, draft: Draft, now: int) -> None:
        """Append a new message to the queue, and store the message's idempotency key if it has one."""
        attributes, group, ttl, expires = draft.attributes, draft.group, draft.ttl, now + draft.ttl * 1000
        if attributes or group or state.grouping:
            terms = draft.id, now, expires, now, ttl, draft.client, draft.checksum
            record: NewMessage = StoredMessage(*terms, size=len(attributes), attributes=attributes, message_group=group)
        else:
            record = NewMessage(draft.id, now, expires, now, ttl, draft.client, draft.checksum)
        self.insert(state, record, draft.body, now, draft.delay * 1000)
        if draft.once is not None:
            self.remember(state, draft.once, [draft.id], now, posted=True)

    def remove(self, state: QueueState, sequence: int, record: StoredMessage) -> None:
        tally = self._tally(state)
        tally.count -= 1
        tally.bytes -= record.size
        self._writes += message_removal(state.project, layout.pair.pack(state.number, sequence), record)
        if record.claim:
            self._left[state.number, record.claim, record.group].add(sequence)
        if state.grouping:
            self.group_indexes.leave(state, sequence, record.message_group, record.available)

    def finish(self, state: QueueState, sequence: int, record: StoredMessage, end: Completion) -> None:
        """Remove a message from the queue. If ``end.history`` is not 0, also add a history entry."""
        if end.history:
            self._add_history(state, sequence, record, end)
        self.remove(state, sequence, record)

    def rewrite(
        self, state: QueueState, sequence: int, old: IndexFields, new: StoredMessage, body: bytes | None = None
    ) -> None:
        """Replace the stored record of a message, and update its index entries.

        ``old`` has the index fields of the stored record. If the queue has no message groups, the message afterwards
        has an entry in the index ``available``.

        If the expiry has changed, the body is stored again with the new expiry. ``body`` is the message's body, or None
        if the caller has not read it.
        """
        number, key = state.number, layout.pair.pack(state.number, sequence)
        new.indexed = may_be_fresh = not state.grouping
        until = new.ends if new.ends < new.expires else new.expires
        if old.claim != new.claim or old.until != until:
            if old.claim:
                self._left[number, old.claim, old.group].add(sequence)
            new.group = self._add_to_group(state, sequence, new.claim, until) if new.claim else 0
        self._writes.append(("messages", key, layout.encode(new)))
        self._writes += message_changes(key, old, new)
        if (
            may_be_fresh
        ):  # even if the entry is unchanged: a claim of zero length has passed it, and the next claim must find it
            self._made_available[state].append(layout.triple.pack(number, new.available, sequence))
        else:
            self.group_indexes.shift(state, sequence, new, old.available)
        if old.expires != new.expires and new.body is None:
            self._rewrite_body(state, key, new, body)
        if new.available < old.available or until < old.until:
            self.invalidate_visibility(state, sequence)

    def invalidate_visibility(self, state: QueueState, sequence: int) -> None:
        """Discard the cached time until which listings skip the message.

        Call this method if the message may become visible earlier than before. The queue's ``VisibilityIndex`` caches
        the times.
        """
        self._lowered.setdefault(state, set()).add(sequence)

    def advance(self, state: QueueState, head: bytes, fresh_head: int) -> None:
        """Move the ready cursor to ``head`` and the fresh cursor to ``fresh_head`` when this change is committed.

        Claims begin their search at these cursors: at the ready cursor in the index ``available``, and at the fresh
        cursor among the messages that are not in this index. If this change adds an entry before ``head``, claims still
        find the entry.
        """
        self._heads[state] = head
        if fresh_head > state.tally.fresh_head:
            self._tally(state).fresh_head = fresh_head

    def keep_ready_cursor(self, state: QueueState) -> None:
        """Cancel the move of the ready cursor by ``advance``.

        Call this method if the claim has skipped ready messages, so that the next claim finds them.
        """
        self._heads.pop(state, None)

    def remember(self, state: QueueState, key: IdempotencyKey | None, answer: Any, now: int, posted: bool) -> None:
        """Store an idempotency key with ``answer``, the result of its request. Do nothing if ``key`` is None.

        ``posted`` is true if the request is a post.
        """
        if key is not None:
            last = self._tally(state).sequence if posted else 0
            writes, size = key_writes(state, key, answer, now, last=last)
            self._tally(state).kept += size
            self._writes += writes

    def add_writes(self, *writes: Write) -> None:
        self._writes += writes

    def commit(self) -> None:
        """Apply all writes in one batch, then update the queue states in memory.

        Afterwards, call the store's listener for each queue that has new messages, or messages that become available
        earlier than before.

        Raises ``Unavailable`` if the store cannot write. In this case, nothing has changed.
        """
        for state, writes, entry in self._group_indexes.writes(self._now) if self._group_indexes else ():
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
            if state.set_tally(tally):
                new.add(state)
        for state, keys in self._made_available.items():
            state.join_available(keys)
            if state.grouping == Grouping.ORDERED and any(layout.triple.unpack(key)[1] <= self._now for key in keys):
                new.add(state)  # a ready message is the new head of a group
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

    def _add_history(self, state: QueueState, sequence: int, record: StoredMessage, end: Completion) -> None:
        [body] = read_bodies(self._store, state.number, [(sequence, record)])
        if body is None:  # the message has just expired
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

    def _rewrite_body(self, state: QueueState, key: bytes, record: StoredMessage, body: bytes | None) -> None:
        """Store the body again with the record's new expiry, because the store drops expired bodies during compaction.

        ``body`` is None if the caller has not read it.
        """
        stored = None if body is not None else self._store.get("bodies", key)
        if stored is not None:
            body = layout.unseal_body(stored)
        if body is not None:
            self._writes.append(("bodies", key, self._seal(state, record, body)))

    def _seal(self, state: QueueState, record: NewMessage, body: bytes) -> bytes:
        return layout.seal_body(body, record.expires, state.context.expiry.compaction_filter_grace)

    def _add_to_group(self, state: QueueState, sequence: int, claim: str, until: int) -> int:
        """Add a message to a claim group that ends at ``until`` (Unix milliseconds), and return the group's number."""
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
        keys = [layout.claim_key(*place) for place in self._left]
        values = self._store.get_many("claims", keys, spare=True)
        former: dict[bytes, bytes] = {}
        for key, left, value in zip(keys, self._left.values(), values, strict=True):
            if value:
                ends, sequences = layout.decode_group(value)
                kept = [sequence for sequence in sequences if sequence not in left]
                holder = layout.decode_group_holder(value)
                self._writes.append(("claims", key, layout.encode_group(ends, kept, holder) if kept else None))
                former.setdefault(key[: -layout.number.size], holder)
        for key, (ends, sequences) in self._claimed.items():
            claim = key[: -layout.number.size]
            holder = self.holders.get(claim, former.get(claim, b""))
            self._writes.append(("claims", key, layout.encode_group(ends, sequences, holder)))


def _set_available(tally: Tally, record: NewMessage, now: int, may_be_fresh: bool) -> None:
    """Set the available-at of a message that was posted without a delay.

    If ``may_be_fresh`` is true, also decide whether the message needs an entry in the index ``available``. Claims find
    a message without an entry (a fresh message) by its sequence. The message needs an entry only if a claim would
    otherwise skip more than ``MAX_GAP`` other messages to reach it.

    ``may_be_fresh`` is false in queues with message groups.
    """
    fresh = tally.fresh
    if fresh > now + MAX_AHEAD:
        fresh, tally.fresh_gap = now, MAX_GAP + 1
    record.available = tally.fresh = fresh if fresh > now else now
    if not may_be_fresh:
        return
    sequence = tally.sequence
    if tally.fresh_head >= tally.fresh_tail:  # claims have passed all earlier fresh messages
        tally.fresh_head, tally.fresh_gap = sequence - 1, 0
    if tally.fresh_gap > MAX_GAP:
        record.indexed = True
    else:
        tally.fresh_tail, tally.fresh_gap = sequence, 0


def read_bodies(store: Store, queue: int, found: Sequence[Found], spare: bool = False) -> list[bytes | None]:
    """Return the bodies of messages. ``found`` has (sequence, record) of each message.

    A body is None if the message was removed or expired after the search. If a body is damaged and ``spare`` is true,
    the body is b"". If ``spare`` is false, the function raises ``StoreDamaged``.
    """
    apart = [layout.pair.pack(queue, sequence) for sequence, record in found if record.body is None]
    if not apart:
        return [record.body for _, record in found]
    values = iter(store.get_many("bodies", apart, spare))
    return [record.body if record.body is not None else _unseal(next(values)) for _, record in found]


def _unseal(value: bytes | None) -> bytes | None:
    return layout.unseal_body(value) if value else value


# Queue states by queue name, for queues of one project. A missing queue has the state ``None``.
Targets = dict[str, QueueState | None]


class Routes(NamedTuple):
    """The source queue and the target queues of moves. A missing target queue is None.

    ``history`` is the history retention of the source queue in seconds. ``now`` is in Unix milliseconds.
    """

    source: QueueState
    targets: Targets
    history: int
    now: int

    def missing(self, moves: Iterable[Move]) -> list[QueueRef]:
        """Return the missing target queues. Raises ``QueueNotFound`` if one of them must not be created."""
        missing = [move for move in moves if self.targets[move.to] is None]
        if not all(move.may_create for move in missing):
            raise QueueNotFound
        return target_queues(self.source.ref, missing)

    def move_all(self, store: Store, change: Change, found: Mapping[str, Found], moves: Sequence[Move]) -> list[Move]:
        """Execute the moves, and return the completed ones. Expired messages are not moved.

        ``found`` maps the id of each message to its sequence and record.
        """
        carried = []
        values = read_bodies(store, self.source.number, [found[move.id] for move in moves])
        for move, body in zip(moves, values, strict=True):
            if body is not None:
                self.move(change, *found[move.id], body, move)
                carried.append(move)
        return carried

    def move(self, change: Change, sequence: int, record: StoredMessage, body: bytes, move: Move) -> None:
        target = self.targets[move.to]
        assert target is not None, "the caller has created the missing queues"
        outcome = Outcome.DEAD_LETTERED if move.reason else Outcome.MOVED
        change.finish(self.source, sequence, record, Completion(outcome, self.history, self.now))
        moved = _build_moved(record, move, self.source.ref.name, self.now)
        change.insert(target, moved, body if move.body is None else move.body, self.now, move.delay * 1000)


def target_queues(queue: QueueRef, moves: Iterable[Move]) -> list[QueueRef]:
    return [QueueRef(queue.project, name) for name in dict.fromkeys(move.to for move in moves)]


def map_states(refs: Sequence[QueueRef], states: Sequence[QueueState | None]) -> Targets:
    return {ref.name: state for ref, state in zip(refs, states, strict=True)}


def _build_moved(record: StoredMessage, move: Move, origin: str, now: int) -> StoredMessage:
    """Build the record of a moved message for its target queue, without available-at and index fields."""
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
        message_group=record.message_group,
    )
