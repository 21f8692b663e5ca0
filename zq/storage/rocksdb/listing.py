# SPDX-License-Identifier: Apache-2.0
"""Walks over a queue in sequence, for observers: no locks, nothing changed but hints."""

from collections.abc import Iterator

from zq.model import Message, View
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.layout import Record
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.quiet import BLOCK, NEVER
from zq.storage.rocksdb.registry import PINNED, QueueState

Found = tuple[int, Record]
"""(sequence, record)"""
MAX_EMPTY = 1 << 15
SHORT = 16
"""Blocks that listings walk side by side before they go on one at a time."""
HANDFUL = 8
"""Blocks after which a walk hands on its marks."""


def page(
    store: Store, state: QueueState, marker: int, limit: int, view: View, now: int, most_bytes: int
) -> list[Message]:
    """Up to ``limit`` messages above ``marker`` that the view shows; fewer only if there are no more, or if the next
    body would make more than ``most_bytes``."""
    messages: list[Message] = []
    left = most_bytes
    while (want := limit - len(messages)) > 0:
        found = _visible(store, state, marker, want, view, now)
        keys = [layout.pair.pack(state.number, sequence) for sequence, _ in found]
        for (sequence, record), stored in zip(found, store.each("bodies", keys), strict=True):
            if stored is not None:  # else it was removed, or expired, after the walk saw it
                body = layout.unsealed(stored)
                left -= len(body)
                if left < 0 and messages:
                    return messages
                messages.append(layout.message(sequence, record, body, now))
        if len(found) < want:
            break
        marker = found[-1][0]
    return messages


def edge(store: Store, state: QueueState, now: int, newest: bool) -> Found | None:
    """The oldest or the newest unexpired message."""
    for key, value in store.scan("messages", *state.bounds(), backwards=newest, spare=True):
        record = layout.decode_record(value)
        if record.expires > now:
            return layout.pair.unpack(key)[1], record
    return None


def _visible(store: Store, state: QueueState, marker: int, limit: int, view: View, now: int) -> list[Found]:
    """Up to ``limit`` records above ``marker`` that the view shows."""
    found: list[Found] = []
    position = _advance(store, state, marker + 1, limit, view, now, found, SHORT)
    if position is not None:
        # A long way: one listing at a time, so that the others find its marks instead of walking beside it.
        with state.walking:
            _advance(store, state, position, limit, view, now, found, NEVER)
    return found


def _advance(
    store: Store, state: QueueState, position: int, limit: int, view: View, now: int, found: list[Found], blocks: int
) -> int | None:
    """Add what the view shows to ``found``, in as many walks as quiet blocks interrupt.

    None when the limit or the end is reached; else, ``blocks`` being walked, where to go on.
    """
    while len(found) < limit:
        position = state.quiet.skip(view, position, now)
        walk = _Walk(state, view, now, blocks)
        for sequence, record in walk.records(store, position):
            if _hidden_until(record, view, now) == 0:
                if record.client != view.without or not view.without:
                    found.append((sequence, record))
                if len(found) == limit:
                    break
        walk.leave_marks()
        if walk.position is None or len(found) == limit:
            break
        position, blocks = walk.position, walk.blocks
        if not blocks:
            return position
    return None


def _hidden_until(record: Record, view: View, now: int) -> int:
    """0 if the view shows the record now, else the moment from which it may."""
    if record.expires <= now:
        return NEVER
    if record.ends > now and record.claim:
        if view.claimed:
            return 0
        return record.ends if view.delayed else max(record.ends, record.available)
    if record.available > now and not view.delayed:
        return record.available
    return 0


class _Walk:
    """One scan until the next quiet block; remembers which blocks it found to have nothing to show."""

    def __init__(self, state: QueueState, view: View, now: int, blocks: int) -> None:
        self._state, self._view, self._now = state, view, now
        self.blocks = blocks
        """How many more may be walked."""
        self._wakings = state.quiet.wakings
        self._open_block = state.tally.sequence // BLOCK
        """From this block on messages may still be added."""
        self._marks: dict[int, int] = {}
        self._expired: list[bytes] = []
        self.position: int | None = None
        """Where to go on, behind a quiet block or later; None at the end of the queue."""

    def records(self, store: Store, start: int) -> Iterator[Found]:
        """Every record from ``start`` on, up to the next block that is known to be quiet."""
        state, view, now = self._state, self._view, self._now
        block = start // BLOCK
        until = NEVER if start <= 1 or start % BLOCK == 0 else 0
        lower = layout.pair.pack(state.number, min(start, NEVER))
        for key, value in store.scan("messages", lower, state.bounds()[1]):
            sequence = layout.pair.unpack(key)[1]
            if sequence // BLOCK != block:
                self._note(block, until, sequence // BLOCK)
                self.blocks -= 1
                if not self.blocks or state.quiet.skip(view, sequence, now) != sequence:
                    self.position = sequence
                    return
                block, until = sequence // BLOCK, NEVER
            record = layout.decode_record(value)
            if sequence in state.pinned:
                record.ends = PINNED
            until = min(until, _hidden_until(record, view, now))
            if record.expires <= now:
                self._expired.append(key)
            yield sequence, record
        self._note(block, until, self._open_block)

    def _note(self, block: int, until: int, next_block: int) -> None:
        """A block was walked to its end; the blocks between it and the next one are empty."""
        if until > self._now and block < self._open_block:
            self._marks[block] = until
        for empty in range(block + 1, min(next_block, self._open_block, block + MAX_EMPTY)):
            self._marks[empty] = NEVER
        if len(self._marks) >= HANDFUL:
            self.leave_marks()  # early: whoever walks the same stretch now need not walk it to its end

    def leave_marks(self) -> None:
        """Hand on what was learnt, unless a message was made visible earlier meanwhile; and what had expired."""
        if self._expired:
            self._state.around.leftovers.meet(self._expired, self._now)
            self._expired = []
        if self._marks:
            with self._state.lock:
                if self._state.quiet.wakings == self._wakings:
                    self._state.quiet.mark(self._view, self._marks)
            self._marks = {}
