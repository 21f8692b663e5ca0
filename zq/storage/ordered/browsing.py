# SPDX-License-Identifier: Apache-2.0
"""Pages of messages in one state, read without locks.

Ready and delayed messages are listed in claim order: by available-at (the time from which a message can be claimed),
then by sequence. Claimed messages are listed by sequence. A ``Position`` is the cursor of a listing in either order.

A listing in claim order merges two sources: the index ``available``, and the fresh messages, which are not in this
index. A message is fresh if it was posted without a delay and is not yet claimed.
"""

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from zq.model import BrowsePage, Message, Position, State
from zq.storage.ordered import layout
from zq.storage.ordered.changes import read_bodies
from zq.storage.ordered.layout import StoredMessage
from zq.storage.ordered.ready import scan_fresh
from zq.storage.ordered.registry import RESERVED, QueueState
from zq.storage.ordered.store import Store

# Number of records in the first read; each further read doubles it, up to ``MAX_RECORDS``.
FIRST_RECORDS: Final = 16
MAX_RECORDS: Final = 512


# (available-at, sequence, record)
Candidate = tuple[int, int, StoredMessage]


class Match(NamedTuple):
    """A message in the requested state, and its position. The next page begins after this position."""

    position: Position
    record: StoredMessage


def page(
    store: Store, state: QueueState, message_state: State, after: Position, limit: int, now: int, max_bytes: int
) -> BrowsePage:
    """Return at most ``limit`` messages in the state ``message_state`` after the position ``after``.

    The page is empty only if no such message exists. It ends early if the next message would make it larger than
    ``max_bytes``. ``now`` is in Unix milliseconds.
    """
    matches = (
        _claimed(store, state, after, now)
        if message_state is State.CLAIMED
        else _unclaimed(store, state, message_state, after, now)
    )
    items: list[Message] = []
    position: Position | None = None
    while len(items) < limit and (some := list(islice(matches, min(FIRST_RECORDS, limit - len(items))))):
        texts = read_bodies(store, state.number, [(one.position.sequence, one.record) for one in some], spare=True)
        for one, body in zip(some, texts, strict=True):
            if not body:  # the message was removed or has expired in the meantime, or its body is unreadable
                continue
            max_bytes -= len(body) + len(one.record.attributes)
            if max_bytes < 0 and items:
                return BrowsePage(items, position)
            items.append(layout.build_message(one.position.sequence, one.record, body, now))
            position = one.position
    return BrowsePage(items, position)


def _claimed(store: Store, state: QueueState, after: Position, now: int) -> Iterator[Match]:
    held = {sequence for sequence in state.reserved if sequence > after.sequence}
    for _, value in store.scan("claims", *state.bounds(), spare=True):
        ends, sequences = layout.decode_group(value)
        if ends > now:
            held.update(sequence for sequence in sequences if sequence > after.sequence)
    for _, sequence, record in _records(store, state, ((0, sequence) for sequence in sorted(held)), now):
        if record.is_held(now):
            yield Match(Position(0, sequence), record)


def _unclaimed(store: Store, state: QueueState, message_state: State, after: Position, now: int) -> Iterator[Match]:
    lane = after.lane
    both = merge(
        _indexed(store, state, message_state, after, now),
        _fresh(store, state, message_state, after, now),
        key=itemgetter(0, 1),
    )
    for available, sequence, record in both:
        if not record.indexed:
            lane = sequence
        yield Match(Position(available, sequence, lane), record)


def _indexed(store: Store, state: QueueState, message_state: State, after: Position, now: int) -> Iterator[Candidate]:
    number, is_ready = state.number, message_state is State.READY
    present = layout.pair.pack(number, now + 1)
    lower = max(layout.triple.pack(number, after.available, after.sequence) + b"\0", state.bounds()[0])
    lower = max(lower, state.ready_cursor.head) if is_ready else max(lower, present)
    entries = store.scan("available", lower, present if is_ready else state.bounds()[1], spare=True)
    positions = (layout.triple.unpack(key)[1:] for key, _ in entries)
    for available, sequence, record in _records(store, state, positions, now):
        if record.indexed and record.available == available and not record.is_held(now):
            yield available, sequence, record


def _fresh(store: Store, state: QueueState, message_state: State, after: Position, now: int) -> Iterator[Candidate]:
    if message_state is State.READY:
        for available, sequence, expires, _, record in scan_fresh(store, state, after.lane):
            if available > now:  # so are all later ones, because the available-at increases with the sequence
                return
            if record is not None and expires > now:
                yield available, sequence, record
    else:
        yield from _fresh_later(store, state, after, now)


def _fresh_later(store: Store, state: QueueState, after: Position, now: int) -> list[Candidate]:
    """Return the delayed messages after a position that have no entry in the index ``available``.

    A message without an entry was posted without a delay. It is delayed only if the clock has been set back since.
    """
    first, last = max(state.tally.fresh_head, after.lane) + 1, state.tally.fresh_tail + 1
    found: list[Candidate] = []
    if first < last:
        bounds = layout.pair.pack(state.number, first), layout.pair.pack(state.number, last)
        for key, value in store.scan("messages", *bounds, backwards=True, spare=True):
            record = layout.decode_record(value)
            if record.indexed:
                continue
            if record.available <= now:
                break
            if record.expires > now:
                found.append((record.available, layout.pair.unpack(key)[1], record))
    return found[::-1]


def _records(store: Store, state: QueueState, positions: Iterator[tuple[int, ...]], now: int) -> Iterator[Candidate]:
    """Yield (available-at, sequence, record) of each unexpired message in ``positions``, in the same order.

    ``positions`` has (available-at, sequence) of the messages. A message appears as claimed if a transaction commit in
    progress will delete it.
    """
    count = FIRST_RECORDS
    while some := list(islice(positions, count)):
        values = store.get_many(
            "messages", [layout.pair.pack(state.number, position[1]) for position in some], spare=True
        )
        for (available, sequence), value in zip(some, values, strict=True):
            record = layout.decode_record(value) if value else None
            if record is not None and record.expires > now:
                if sequence in state.reserved:
                    record.ends = RESERVED
                yield available, sequence, record
        count = min(2 * count, MAX_RECORDS)
