# SPDX-License-Identifier: Apache-2.0
"""How messages are found: by claims and pops in the order of availability, by observers in sequence, and by ids.

Ready means available <= now < expires. Nothing else decides: a claimed message stands further behind, at its claim's
end plus the redelivery wait, and so the messages of a claim that lapsed come into the scanned range by themselves.
Fresh messages are in no index: their sequences are in the order of availability, so that claims read their records
themselves, beside the index ``available`` of all others.
``take`` and ``locate`` need the queue's lock where messages are changed; observers take none and change only hints.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec import structs

from zq import prompt
from zq.errors import StoreDamaged
from zq.model import UNBOUNDED, ListFilter, Message
from zq.storage.ordered import layout
from zq.storage.ordered.changes import Change, bodies
from zq.storage.ordered.hints import BLOCK, NEVER
from zq.storage.ordered.layout import Found, StoredMessage
from zq.storage.ordered.registry import RESERVED, QueueState
from zq.storage.ordered.store import AHEAD, UNREADABLE, Store

# Entries that one claim may step over for each message that it wants.
STEPS_PER_MESSAGE = 4
# Entries that it may step over besides.
EXTRA_STEPS = 4096
# Entries after which it may take long.
SHORT_STEPS = 256
# Pages of messages none of which can be read that one claim steps over.
MAX_DAMAGED = 64


# Milliseconds ahead of now up to which a claim looks for what the index has, so that the next ones need not.
HORIZON: Final = 1000
# Sequences that are looked up one by one where a scan of fresh messages met damage.
PROBED: Final = 256


class Ready(NamedTuple):
    """A ready message."""

    sequence: int
    record: StoredMessage
    body: bytes


# A message in the order of claims: available-at, sequence, expires, whether it is indexed; and the record of a fresh
# one, None if it cannot be read.
Candidate = tuple[int, int, int, bool, StoredMessage | None]


def take(
    store: Store, state: QueueState, limit: int, now: int, change: Change, most_bytes: int = UNBOUNDED
) -> list[Ready]:
    """Up to ``limit`` ready messages, with up to ``most_bytes`` of bodies unless it is one message, in the order of
    (available, sequence), all of which ``change`` must deal with.

    Expired messages are stepped over, a bounded number of them (L10), and left to be removed. So are messages that
    cannot be read, as long as some can: a damaged block does not bring a queue to a stand.
    """
    damaged = False
    for _ in range(MAX_DAMAGED):
        scan = _Scan(store, state, limit, now)
        if scan.expired:
            state.context.lazy_queue.offer(scan.expired, now)
        ready, unread, read = _read(store, state, scan.live, most_bytes)
        scan.go_back(scan.live[read:])
        change.advance(state, scan.head, scan.fresh_head)
        if ready or not unread:
            break
        damaged = True
        # Nothing there can be taken, whatever becomes of the change.
        state.ready_cursor = state.ready_cursor.passed(scan.head)
        state.tally = structs.replace(state.tally, fresh_head=max(state.tally.fresh_head, scan.fresh_head))
    if damaged and not ready:
        raise StoreDamaged(UNREADABLE)
    return ready


def _read(
    store: Store, state: QueueState, candidates: Sequence[Candidate], most_bytes: int
) -> tuple[list[Ready], int, int]:
    """What can be read of these, how many cannot, and how many were read before the first one whose body is too
    much."""
    ready: list[Ready] = []
    unread, left = 0, most_bytes
    for at, (sequence, record, body) in enumerate(_contents(store, state.number, candidates)):
        if record is not None and body is not None:
            left -= len(body)
            if left < 0 and ready:
                return ready, unread, at
            ready.append(Ready(sequence, record, body))
        elif body is not None:
            unread += 1
    return ready, unread, len(candidates)


def _contents(
    store: Store, queue: int, candidates: Sequence[Candidate]
) -> Iterator[tuple[int, StoredMessage | None, bytes | None]]:
    """Sequence, record and body of each, a few read at a time. What is not there any more has no body, what cannot be
    read no record."""
    for start in range(0, len(candidates), AHEAD):
        some = candidates[start : start + AHEAD]
        unknown = [layout.pair.pack(queue, candidate[1]) for candidate in some if candidate[4] is None]
        values = iter(store.get_many("messages", unknown, spare=True))
        read: list[tuple[int, StoredMessage | None, bytes | None]] = []
        for _, sequence, _, _, record in some:
            value = next(values) if record is None else None
            read.append((sequence, layout.decode_record(value) if value else record, value))
        texts = iter(bodies(store, queue, [(item[0], item[1]) for item in read if item[1] is not None], spare=True))
        for sequence, record, value in read:
            body = value if record is None else next(texts)
            yield sequence, record if record is None or body or record.body is not None else None, body


class _Scan:
    """One scan of the order of claims: up to ``limit`` live messages, keys of the expired ones in front of them, and
    where to begin next time."""

    def __init__(self, store: Store, state: QueueState, limit: int, now: int) -> None:
        self._store, self._state, self._now = store, state, now
        self.live: list[Candidate] = []
        self.expired: list[bytes] = []
        self.head = state.ready_cursor.head
        self.fresh_head = state.tally.fresh_head
        self._horizon = layout.pair.pack(state.number, now + HORIZON)
        self._run(limit)

    def go_back(self, candidates: Sequence[Candidate]) -> None:
        """Begin next time at the first one of these, which were not taken."""
        for available, sequence, _, indexed, _ in reversed(candidates):
            if indexed:
                self.head = layout.triple.pack(self._state.number, available, sequence)
            else:
                self.fresh_head = sequence - 1

    def _run(self, limit: int) -> None:
        number, now, live, expired, steps = self._state.number, self._now, self.live, self.expired, 0
        patience = STEPS_PER_MESSAGE * limit + EXTRA_STEPS
        for candidate in self._candidates():
            available, sequence, expires, indexed, _ = candidate
            if available > now:  # so are all that follow
                self.head = max(self.head, layout.pair.pack(number, now + 1))
                return
            if indexed:
                self.head = layout.triple.pack(number, available, sequence) + b"\0"
            else:
                self.fresh_head = sequence
            if sequence in self._state.reserved:
                steps += 1
                continue
            if expires > now:
                live.append(candidate)
            else:
                expired.append(layout.pair.pack(number, sequence))
            if len(live) == limit or len(live) + len(expired) + steps >= patience:
                return
            if len(expired) + steps > SHORT_STEPS:
                prompt.may_take_long()
        # Nothing else has come yet: next time not over what is being removed, nor into the index for a while.
        self.head, self.fresh_head = max(self.head, self._horizon), max(self.fresh_head, self._state.tally.fresh_tail)

    def _candidates(self) -> Iterator[Candidate]:
        """Both kinds of messages in one order, up to the horizon."""
        indexed, tally = self._indexed(), self._state.tally
        if tally.fresh_head >= tally.fresh_tail:
            return indexed
        first = next(indexed, None)
        if first is None:
            return fresh(self._store, self._state)
        return heapq.merge(chain((first,), indexed), fresh(self._store, self._state), key=itemgetter(0, 1))

    def _indexed(self) -> Iterator[Candidate]:
        for key, value in self._state.ready_cursor.entries(self._store, self._horizon):
            _, available, sequence = layout.triple.unpack(key)
            yield available, sequence, layout.number.unpack(value)[0], True, None


def fresh(store: Store, state: QueueState) -> Iterator[Candidate]:
    """All fresh messages, in order."""
    tally, pack, decode, available = state.tally, layout.pair.pack, layout.decode_record, 0
    at, last = tally.fresh_head + 1, tally.fresh_tail
    while at <= last:
        try:
            for key, value in store.scan("messages", pack(state.number, at), pack(state.number, last + 1)):
                record = decode(value)
                at = int.from_bytes(key[8:]) + 1
                if not record.indexed:
                    available = record.available
                    yield available, at - 1, record.expires, False, record
            return
        except StoreDamaged:
            keys = [pack(state.number, place) for place in range(at, min(at + PROBED, last + 1))]
        for sequence, found in enumerate(store.get_many("messages", keys, spare=True), at):
            readable = decode(found) if found else None
            if readable is not None and not readable.indexed:
                available = readable.available
                yield available, sequence, readable.expires, False, readable
            elif found == b"":
                yield available, sequence, NEVER, False, None
        at += PROBED


def fresh_moments(store: Store, state: QueueState, now: int) -> Iterator[int]:
    """Since when, or from when on, fresh messages that have not expired are available, in order."""
    return (available for available, _, expires, _, record in fresh(store, state) if record and expires > now)


# Empty blocks in a row that a walk records.
MAX_EMPTY = 1 << 15
# Blocks that listings walk side by side before they go on one at a time.
SHORT = 16
# Blocks after which a walk records what it has learnt.
HANDFUL = 8


def page(
    store: Store, state: QueueState, marker: int, limit: int, list_filter: ListFilter, now: int, most_bytes: int
) -> list[Message]:
    """Up to ``limit`` messages above ``marker`` that the filter shows; fewer only if there are no more, or if the next
    body would make more than ``most_bytes``."""
    messages: list[Message] = []
    left = most_bytes
    while (want := limit - len(messages)) > 0:
        found = _visible(store, state, marker, want, list_filter, now)
        for (sequence, record), body in zip(found, _texts(store, state.number, found), strict=True):
            if body is not None:  # else it was removed, or expired, after the walk saw it
                left -= len(body)
                if left < 0 and messages:
                    return messages
                messages.append(layout.message(sequence, record, body, now))
        if len(found) < want:
            break
        marker = found[-1][0]
    return messages


def _texts(store: Store, queue: int, found: Sequence[Found]) -> Iterator[bytes | None]:
    """As ``bodies``, a few at a time."""
    for start in range(0, len(found), AHEAD):
        yield from bodies(store, queue, found[start : start + AHEAD])


def edge(store: Store, state: QueueState, now: int, newest: bool) -> Found | None:
    """The oldest or the newest unexpired message."""
    for key, value in store.scan("messages", *state.bounds(), backwards=newest, spare=True):
        record = layout.decode_record(value)
        if record.expires > now:
            return layout.pair.unpack(key)[1], record
    return None


def _visible(
    store: Store, state: QueueState, marker: int, limit: int, list_filter: ListFilter, now: int
) -> list[Found]:
    """Up to ``limit`` records above ``marker`` that the filter shows."""
    found: list[Found] = []
    position = _advance(store, state, marker + 1, limit, list_filter, now, found, SHORT)
    if position is not None:
        prompt.may_take_long()
        # A long way: one listing at a time, so that the others use what it records instead of walking beside it.
        with state.walking:
            _advance(store, state, position, limit, list_filter, now, found, NEVER)
    return found


def _advance(
    store: Store,
    state: QueueState,
    position: int,
    limit: int,
    list_filter: ListFilter,
    now: int,
    found: list[Found],
    blocks: int,
) -> int | None:
    """Add what the filter shows to ``found``, in as many walks as blocks with nothing to show interrupt.

    None when the limit or the end is reached; else, ``blocks`` being walked, where to go on.
    """
    while len(found) < limit:
        position = state.visibility.skip(list_filter, position, now)
        walk = _Walk(state, list_filter, now, blocks)
        for sequence, record in walk.records(store, position):
            if _hidden_until(record, list_filter, now) == 0 and not _own(record, list_filter):
                found.append((sequence, record))
                if len(found) == limit:
                    break
        walk.record_blocks()
        if walk.position is None or len(found) == limit:
            break
        position, blocks = walk.position, walk.blocks
        if not blocks:
            return position
    return None


def _hidden_until(record: StoredMessage, list_filter: ListFilter, now: int) -> int:
    """0 if the filter shows the record now, else the moment from which it may."""
    if record.expires <= now:
        return NEVER
    if record.ends > now and record.claim:
        if list_filter.claimed:
            return 0
        return record.ends if list_filter.delayed else max(record.ends, record.available)
    if record.available > now and not list_filter.delayed:
        return record.available
    return 0


def _own(record: StoredMessage, list_filter: ListFilter) -> bool:
    """Whether it is of the client whose messages the filter hides."""
    return bool(list_filter.without) and record.client == list_filter.without


class _Walk:
    """One scan until the next block that is known to have nothing to show; it learns of others."""

    def __init__(self, state: QueueState, list_filter: ListFilter, now: int, blocks: int) -> None:
        self._state, self._filter, self._now = state, list_filter, now
        self.blocks = blocks
        """How many more may be walked."""
        self._invalidations = state.visibility.invalidations
        self._open_block = state.tally.sequence // BLOCK
        """From this block on messages may still be added."""
        self._learnt: dict[int, int] = {}
        self._learnt_own: dict[int, int] = {}
        """Of blocks that have something to show to others than the client whose messages are hidden."""
        self._expired: list[bytes] = []
        self.position: int | None = None
        """Where to go on, behind a block with nothing to show or later; None at the end of the queue."""

    def records(self, store: Store, start: int) -> Iterator[Found]:
        """Every record from ``start`` on, up to the next block that is known to have nothing to show."""
        state, list_filter, now = self._state, self._filter, self._now
        block = start // BLOCK
        until = own = NEVER if start <= 1 or start % BLOCK == 0 else 0
        lower = layout.pair.pack(state.number, min(start, NEVER))
        for key, value in store.scan("messages", lower, state.bounds()[1]):
            sequence = layout.pair.unpack(key)[1]
            if sequence // BLOCK != block:
                self._note(block, until, own, sequence // BLOCK)
                self.blocks -= 1
                if not self.blocks or state.visibility.skip(list_filter, sequence, now) != sequence:
                    self.position = sequence
                    return
                block, until, own = sequence // BLOCK, NEVER, NEVER
            record = layout.decode_record(value)
            if sequence in state.reserved:
                record.ends = RESERVED
            hidden = _hidden_until(record, list_filter, now)
            until = min(until, hidden)
            if hidden < own and not _own(record, list_filter):
                own = hidden
            if record.expires <= now:
                self._expired.append(key)
            yield sequence, record
        self._note(block, until, own, self._open_block)

    def _note(self, block: int, until: int, own: int, next_block: int) -> None:
        """A block was walked to its end; the blocks between it and the next one are empty."""
        if until > self._now and block < self._open_block:
            self._learnt[block] = until
        elif own > self._now and block < self._open_block:
            self._learnt_own[block] = own
        for empty in range(block + 1, min(next_block, self._open_block, block + MAX_EMPTY)):
            self._learnt[empty] = NEVER
        if len(self._learnt) + len(self._learnt_own) >= HANDFUL:
            self.record_blocks()  # early: another walk over the same stretch need not go to its end

    def record_blocks(self) -> None:
        """Record what was learnt, unless a message was made visible earlier meanwhile; and what had expired."""
        if self._expired:
            self._state.context.lazy_queue.offer(self._expired, self._now)
            self._expired = []
        if self._learnt or self._learnt_own:
            with self._state.lock:
                if self._state.visibility.invalidations == self._invalidations:
                    self._state.visibility.record(self._filter, self._learnt, self._learnt_own)
            self._learnt, self._learnt_own = {}, {}


def locate(store: Store, state: QueueState, ids: Sequence[str], now: int) -> list[tuple[int, StoredMessage]]:
    """(sequence, record) of those ids that live in this queue, in the order asked for, each once."""
    places = store.get_many("ids", [layout.id_key(state.project, message) for message in dict.fromkeys(ids)])
    number = layout.number.pack(state.number)
    keys = [place for place in places if place is not None and place[:8] == number]
    found = []
    for key, value in zip(keys, store.get_many("messages", keys), strict=True):
        if value is not None:
            record, sequence = layout.decode_record(value), layout.pair.unpack(key)[1]
            if sequence in state.reserved:
                record.ends = RESERVED
            if record.expires > now:
                found.append((sequence, record))
            else:
                state.context.lazy_queue.offer([key], now)
    return found
