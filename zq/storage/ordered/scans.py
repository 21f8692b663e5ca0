# SPDX-License-Identifier: Apache-2.0
"""Listings of messages in order of sequence, and lookups by id.

A caller of ``locate`` that changes the messages holds the queue's lock. Listings acquire the lock only to record hints.
"""

from collections.abc import Iterator, Sequence

from zq.model import ListFilter, Message
from zq.storage import inline
from zq.storage.inline import LongScan
from zq.storage.ordered import layout
from zq.storage.ordered.changes import read_bodies
from zq.storage.ordered.hints import BLOCK, NEVER
from zq.storage.ordered.layout import Found, StoredMessage
from zq.storage.ordered.registry import RESERVED, QueueState
from zq.storage.ordered.store import BODY_READ_SIZE, Store

# Maximum number of consecutive empty blocks that a scan records.
MAX_EMPTY = 1 << 15
# Number of blocks after which a scan counts as long. Only one listing of a queue runs a long scan at a time.
SHORT_SCAN_BLOCKS = 16
# Number of blocks for which a scan collects times before it records them in the visibility index.
UNRECORDED_BLOCKS = 8


def page(
    store: Store, state: QueueState, marker: int, limit: int, list_filter: ListFilter, now: int, max_bytes: int
) -> list[Message]:
    """Return at most ``limit`` matching messages above the sequence ``marker``.

    The total size of the messages is at most ``max_bytes``, except that the first message may exceed this limit.
    """
    messages: list[Message] = []
    left = max_bytes
    while (want := limit - len(messages)) > 0:
        found = _find_visible(store, state, marker, want, list_filter, now)
        for (sequence, record), body in zip(found, _read_texts(store, state.number, found), strict=True):
            if body is not None:  # otherwise the message was removed or has expired in the meantime
                left -= len(body) + len(record.attributes)
                if left < 0 and messages:
                    return messages
                messages.append(layout.build_message(sequence, record, body, now))
        if len(found) < want:
            break
        marker = found[-1][0]
    return messages


def _read_texts(store: Store, queue: int, found: Sequence[Found]) -> Iterator[bytes | None]:
    for start in range(0, len(found), BODY_READ_SIZE):
        yield from read_bodies(store, queue, found[start : start + BODY_READ_SIZE])


def find_edge(store: Store, state: QueueState, now: int, newest: bool) -> Found | None:
    """Return (sequence, record) of the oldest unexpired message, or of the newest if ``newest`` is true.

    Return None if the queue has no unexpired message.
    """
    for key, value in store.scan("messages", *state.bounds(), backwards=newest, spare=True):
        record = layout.decode_record(value)
        if record.expires > now:
            return layout.pair.unpack(key)[1], record
    return None


def _find_visible(
    store: Store, state: QueueState, marker: int, limit: int, list_filter: ListFilter, now: int
) -> list[Found]:
    found: list[Found] = []
    position = _advance(store, state, marker + 1, limit, list_filter, now, found, SHORT_SCAN_BLOCKS)
    if position is not None:
        if inline.current() is not None:
            raise LongScan
        # Long scans run one at a time, so that the next scan skips the blocks that the last scan has recorded.
        with state.long_scan_lock:
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
    """Add up to ``limit`` matching messages to ``found``, beginning at the sequence ``position``.

    The scan reads at most ``blocks`` blocks of sequences. If this limit ends the scan, return the sequence from which
    to continue. Otherwise, return None.
    """
    while len(found) < limit:
        position = state.visibility.skip(list_filter, position, now)
        scan = _Scan(state, list_filter, now, blocks)
        scan.collect(store, position, found, limit)
        scan.record_blocks()
        if scan.position is None or len(found) == limit:
            break
        position, blocks = scan.position, scan.blocks
        if not blocks:
            return position
    return None


def _hidden_until(record: StoredMessage, list_filter: ListFilter, now: int) -> int:
    """Return the earliest time at which the record may match the filter, in Unix milliseconds.

    Return 0 if the record matches now, and ``NEVER`` if it has expired. The function ignores the part of the filter
    that hides a client's own messages.
    """
    if record.expires <= now:
        return NEVER
    if record.ends > now and record.claim:
        if list_filter.claimed:
            return 0
        return record.ends if list_filter.delayed else max(record.ends, record.available)
    if record.available > now and not list_filter.delayed:
        return record.available
    return 0


class _Scan:
    """A scan of a queue's messages for matches of a filter.

    Sequences are grouped into blocks. The scan records the blocks without matches, so that later scans skip them. It
    ends before the next block that an earlier scan has recorded.
    """

    def __init__(self, state: QueueState, list_filter: ListFilter, now: int, blocks: int) -> None:
        self._state, self._filter, self._now = state, list_filter, now
        self.blocks = blocks
        """The number of blocks that may still be read."""
        self._invalidations = state.visibility.invalidations
        self._open_block = state.tally.sequence // BLOCK
        """The block of the last sequence. Messages may still be added to this block and to later ones."""
        self._times: dict[int, int] = {}
        self._own_times: dict[int, int] = {}
        """For each block, the time until which scans that hide the client's own messages can skip the block."""
        self._expired: list[bytes] = []
        self.position: int | None = None
        """The position from which to continue, or None at the end of the queue."""

    def collect(self, store: Store, start: int, found: list[Found], limit: int) -> None:
        """Add up to ``limit`` matching messages to ``found``, beginning at the sequence ``start``."""
        list_filter, now, reserved, unpack = self._filter, self._now, self._state.reserved, layout.pair.unpack
        without = list_filter.without or None  # None equals no client
        block = start // BLOCK
        until = own = NEVER if start <= 1 or start % BLOCK == 0 else 0
        lower = layout.pair.pack(self._state.number, min(start, NEVER))
        for key, value in store.scan("messages", lower, self._state.bounds()[1]):
            sequence = unpack(key)[1]
            if sequence // BLOCK != block:
                self._note(block, until, own, sequence // BLOCK)
                self.blocks -= 1
                if not self.blocks or self._state.visibility.skip(list_filter, sequence, now) != sequence:
                    self.position = sequence
                    return
                block, until, own = sequence // BLOCK, NEVER, NEVER
            record = layout.decode_record(value)
            if sequence in reserved:
                record.ends = RESERVED
            hidden = _hidden_until(record, list_filter, now)
            if hidden and record.expires <= now:
                self._expired.append(key)
            if hidden < until:
                until = hidden
            if record.client == without:
                continue
            if hidden < own:
                own = hidden
            if not hidden:
                found.append((sequence, record))
                if len(found) == limit:
                    return
        self._note(block, until, own, self._open_block)

    def _note(self, block: int, until: int, own: int, next_block: int) -> None:
        """Record that later scans can skip a block of sequences until a certain time, in Unix milliseconds.

        A filter may hide the messages of one client. Scans that hide the messages of the same client can skip the block
        until ``own``, and other scans with the same filter until ``until``. The blocks between ``block`` and
        ``next_block`` are recorded as empty.
        """
        if until > self._now and block < self._open_block:
            self._times[block] = until
        elif own > self._now and block < self._open_block:
            self._own_times[block] = own
        for empty in range(block + 1, min(next_block, self._open_block, block + MAX_EMPTY)):
            self._times[empty] = NEVER
        if len(self._times) + len(self._own_times) >= UNRECORDED_BLOCKS:
            self.record_blocks()  # early, so that concurrent scans of the same blocks can use them

    def record_blocks(self) -> None:
        """Store the collected times in the queue's visibility index, so that later scans skip these blocks.

        If the index was invalidated during the scan, discard the times. Queue the expired messages that the scan has
        found for removal.
        """
        if self._expired:
            self._state.context.lazy_queue.offer(self._expired, self._now)
            self._expired = []
        if self._times or self._own_times:
            with self._state.lock:
                if self._state.visibility.invalidations == self._invalidations:
                    self._state.visibility.record(self._filter, self._times, self._own_times)
            self._times, self._own_times = {}, {}


def locate(store: Store, state: QueueState, ids: Sequence[str], now: int) -> list[tuple[int, StoredMessage]]:
    """Return (sequence, record) of the unexpired messages with these ids, in the order of ``ids``.

    Missing and duplicate ids are skipped. A message appears as claimed if a transaction commit in progress will delete
    it.
    """
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
