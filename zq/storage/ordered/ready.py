# SPDX-License-Identifier: Apache-2.0
"""The search for ready messages in claim order, for claims and pops.

A message is ready if available <= now < expires and no transaction commit in progress will delete it. The available-at
of a claimed message is the end of the claim plus the redelivery delay. When a claim lapses, its messages therefore
become ready without a write.

Fresh messages were posted without a delay and are not yet claimed. They need no index, because their available-at
increases with their sequences. The search merges them with the index ``available``, which has all other messages. The
caller of ``take`` holds the queue's lock.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

from zq.errors import StoreDamaged
from zq.model import UNBOUNDED
from zq.storage.ordered import groups, layout
from zq.storage.ordered.changes import Change, ReadyMessage, read_bodies
from zq.storage.ordered.hints import NEVER
from zq.storage.ordered.layout import StoredMessage
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import BODY_READ_SIZE, UNREADABLE, Store

# A claim reads at most ``EXTRA_STEPS`` entries and ``STEPS_PER_MESSAGE`` more per requested message.
STEPS_PER_MESSAGE = 4
EXTRA_STEPS = 4096
# Number of scans after which a claim fails if each of them has found only unreadable messages.
MAX_DAMAGED = 64
# Milliseconds beyond the present up to which a claim scans the index. If this range is empty, the claims of the next
# second need not scan the index.
HORIZON: Final = 1000
# Number of sequences that are read one by one after a scan of fresh messages has found damage.
MAX_PROBES: Final = 256


# (available-at, sequence, expires, whether the message is indexed, record). The record is None if the message is
# unreadable, or indexed and not read yet.
Candidate = tuple[int, int, int, bool, StoredMessage | None]


def take(
    store: Store, state: QueueState, limit: int, now: int, change: Change, max_bytes: int = UNBOUNDED
) -> list[ReadyMessage]:
    """Return up to ``limit`` ready messages in claim order. The caller must claim or remove all of them in ``change``.

    The search skips a bounded number of expired messages. Unless lazy expiry is disabled, a background thread then
    removes them. The search also skips unreadable messages, so that damaged data does not stop the queue. Raises
    ``StoreDamaged`` if all messages found are unreadable.
    """
    if state.grouping:
        return groups.take(store, state, limit, now, change, max_bytes)
    damaged = False
    for _ in range(MAX_DAMAGED):
        scan = _Scan(store, state, limit, now)
        if scan.expired:
            state.context.lazy_queue.offer(scan.expired, now)
        ready, unread, read = _read_messages(store, state, scan.live, max_bytes)
        scan.go_back(scan.live[read:])
        change.advance(state, scan.head, scan.fresh_head)
        if ready or not unread:
            break
        damaged = True
        # These messages cannot be claimed, even if the change is not committed.
        state.skip_unreadable(scan.head, scan.fresh_head)
    if damaged and not ready:
        raise StoreDamaged(UNREADABLE)
    return ready


def _read_messages(
    store: Store, state: QueueState, candidates: Sequence[Candidate], max_bytes: int
) -> tuple[list[ReadyMessage], int, int]:
    """Read candidates until their size exceeds ``max_bytes``.

    Return the messages, the number of unreadable candidates, and the number of processed candidates.
    """
    ready: list[ReadyMessage] = []
    unread, left = 0, max_bytes
    for at, (sequence, record, body) in enumerate(_read_contents(store, state.number, candidates)):
        if record is not None and body is not None:
            left -= len(body) + len(record.attributes)
            if left < 0 and ready:
                return ready, unread, at
            ready.append(ReadyMessage(sequence, record, body))
        elif body is not None:
            unread += 1
    return ready, unread, len(candidates)


def _read_contents(
    store: Store, queue: int, candidates: Sequence[Candidate]
) -> Iterator[tuple[int, StoredMessage | None, bytes | None]]:
    """Yield (sequence, record, body) of each candidate. If a candidate cannot be claimed, its record is None.

    The body is then b"" if the message is unreadable, or None if the message was removed.
    """
    for start in range(0, len(candidates), BODY_READ_SIZE):
        some = candidates[start : start + BODY_READ_SIZE]
        unknown = [layout.pair.pack(queue, candidate[1]) for candidate in some if candidate[4] is None]
        values = iter(store.get_many("messages", unknown, spare=True))
        read: list[tuple[int, StoredMessage | None, bytes | None]] = []
        for _, sequence, _, _, record in some:
            value = next(values) if record is None else None
            read.append((sequence, layout.decode_record(value) if value else record, value))
        texts = iter(
            read_bodies(store, queue, [(item[0], item[1]) for item in read if item[1] is not None], spare=True)
        )
        for sequence, record, value in read:
            body = value if record is None else next(texts)
            yield sequence, record if record is None or body or record.body is not None else None, body


class _Scan:
    """A scan of a queue's messages in claim order.

    Attributes:
        head: The key in the index ``available`` from which the next claim searches.
        fresh_head: The sequence after which the next claim searches for fresh messages.
    """

    def __init__(self, store: Store, state: QueueState, limit: int, now: int) -> None:
        self._store, self._state, self._now = store, state, now
        self.live: list[Candidate] = []
        self.expired: list[bytes] = []
        self.head = state.ready_cursor.head
        self.fresh_head = state.tally.fresh_head
        present = layout.pair.pack(state.number, now + 1)
        looks = state.ready_cursor.may_have(present)
        self._horizon = layout.pair.pack(state.number, now + HORIZON) if looks else present
        self._run(limit)

    def go_back(self, candidates: Sequence[Candidate]) -> None:
        """Move the cursors ``head`` and ``fresh_head`` back, so that the next claim finds these candidates again."""
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
            if available > now:  # all following candidates are available even later
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
        # There are no further messages up to the horizon, so the next scan can begin there.
        self.head, self.fresh_head = max(self.head, self._horizon), max(self.fresh_head, self._state.tally.fresh_tail)

    def _candidates(self) -> Iterator[Candidate]:
        indexed, tally = self._indexed(), self._state.tally
        if tally.fresh_head >= tally.fresh_tail:
            return indexed
        first = next(indexed, None)
        if first is None:
            self.head = max(self.head, self._horizon)  # the next claims can skip the index up to there
            return scan_fresh(self._store, self._state)
        return heapq.merge(chain((first,), indexed), scan_fresh(self._store, self._state), key=itemgetter(0, 1))

    def _indexed(self) -> Iterator[Candidate]:
        for key, value in self._state.ready_cursor.entries(self._store, self._horizon):
            _, available, sequence = layout.triple.unpack(key)
            yield available, sequence, layout.number.unpack(value)[0], True, None


def scan_fresh(store: Store, state: QueueState, after: int = 0) -> Iterator[Candidate]:
    """Yield the fresh messages above the sequence ``after``, in order. The record of an unreadable message is None.

    A fresh message was posted without a delay and has no entry in the index ``available``.
    """
    tally, pack, decode, available = state.tally, layout.pair.pack, layout.decode_record, 0
    at, last = max(tally.fresh_head, after) + 1, tally.fresh_tail
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
            keys = [pack(state.number, place) for place in range(at, min(at + MAX_PROBES, last + 1))]
        for sequence, found in enumerate(store.get_many("messages", keys, spare=True), at):
            readable = decode(found) if found else None
            if readable is not None and not readable.indexed:
                available = readable.available
                yield available, sequence, readable.expires, False, readable
            elif found == b"":
                yield available, sequence, NEVER, False, None
        at += MAX_PROBES


def scan_fresh_times(store: Store, state: QueueState, now: int) -> Iterator[int]:
    """Yield the available-at of each unexpired fresh message in Unix milliseconds, in order of sequence.

    A fresh message was posted without a delay and has no entry in the index ``available``.
    """
    return (available for available, _, expires, _, record in scan_fresh(store, state) if record and expires > now)
