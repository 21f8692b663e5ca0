# SPDX-License-Identifier: Apache-2.0
"""The search for ready messages in queues with message groups; see the module ``group_index``.

The caller of ``take`` holds the queue's lock.
"""

from collections.abc import Iterator
from itertools import islice

from zq.errors import StoreDamaged
from zq.model import UNBOUNDED, Grouping, ReadyMessages, State
from zq.model.stats import Depth
from zq.storage.ordered import layout
from zq.storage.ordered.changes import Change, ReadyMessage, read_bodies
from zq.storage.ordered.group_index import GROUP_KEY_SIZE, MAX_SKIPPED, ScannedRecords
from zq.storage.ordered.layout import Found, StoredMessage
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import BODY_READ_SIZE, UNREADABLE, Store


def take(
    store: Store, state: QueueState, limit: int, now: int, change: Change, max_bytes: int = UNBOUNDED
) -> list[ReadyMessage]:
    """Return up to ``limit`` ready messages. The caller must claim or remove all of them in ``change``.

    The search takes as many messages as possible from a group before it proceeds to the next group. Raises
    ``StoreDamaged`` if all messages found are unreadable.
    """
    taken: list[ReadyMessage] = []
    scan = GroupScan(store, state, now)
    cursor = state.ready_cursor.head
    for key, group, head in scan.entries():
        size, scanned = len(taken), ScannedRecords(head)
        found = scan.ready(group, scanned, limit - len(taken))
        for sequence, record, body in _read_contents(store, state, found, limit - len(taken)):
            max_bytes -= len(body) + len(record.attributes)
            if max_bytes < 0 and taken:
                break
            taken.append(ReadyMessage(sequence, record, body))
        if scan.steps >= MAX_SKIPPED or (max_bytes < 0 and len(taken) == size):
            break
        change.group_indexes.add_scanned(state, group, scanned)
        cursor = key + b"\0"
        if max_bytes < 0 or len(taken) == limit:
            break
    else:
        cursor = max(cursor, layout.pair.pack(state.number, now + 1))
    if scan.expired:
        state.context.lazy_queue.offer(scan.expired, now)
    if scan.damaged and not taken:
        raise StoreDamaged(UNREADABLE)
    change.advance(state, cursor, 0)
    return taken


def count_ready(store: Store, state: QueueState, max_count: int, now: int) -> ReadyMessages:
    """Count up to ``max_count`` ready messages, and find when the next becomes ready; see ``QueueController.ready``."""
    scan = GroupScan(store, state, now)
    count = 0
    for _, group, head in scan.entries() if max_count else ():
        count += sum(1 for _ in islice(scan.ready(group, ScannedRecords(head), max_count - count), max_count - count))
        if count == max_count:
            break
    later = store.scan("available", layout.pair.pack(state.number, now + 1), state.bounds()[1], spare=True)
    moments = (layout.triple.unpack(key)[1] for key, _ in later)
    return ReadyMessages(count, next((moment / 1000 for moment in moments), None))


def count_depth(store: Store, state: QueueState, expired: int, now: int, max_count: int) -> Depth:
    """Count the messages of a grouped queue by state; see ``Storage.depth``.

    Read only the first ``max_count`` messages, and count all remaining messages as ready. ``expired`` is the number of
    expired messages, which the caller has counted.
    """
    counts = dict.fromkeys(State, 0)
    oldest = seen = 0
    for key, value in islice(store.scan("messages", *state.bounds(), spare=True), max_count):
        record = layout.decode_record(value)
        seen += 1
        if record.expires <= now:
            continue
        is_held = record.is_held(now) or int.from_bytes(key[-8:]) in state.reserved
        found = State.CLAIMED if is_held else State.DELAYED if record.available > now else State.READY
        counts[found] += 1
        if found is State.READY:
            oldest = min(oldest or record.available, record.available)
    ready = counts[State.READY] + state.tally.count - seen
    return Depth(ready, counts[State.DELAYED], counts[State.CLAIMED], expired, oldest / 1000 if oldest else None)


class GroupScan:
    """A scan of message groups for ready messages. ``steps`` counts scanned groups and skipped messages."""

    def __init__(self, store: Store, state: QueueState, now: int) -> None:
        self._store, self._state, self._now = store, state, now
        self.expired: list[bytes] = []
        self.steps = 0
        self.damaged = False

    def entries(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (entry key, group key, head) of each message group that may have ready messages, in claim order.

        The head is the encoded time, order and sequence of the group's first message.
        """
        number, size = layout.number.pack(self._state.number), layout.number.size
        upper = layout.pair.pack(self._state.number, self._now + 1)
        for key, value in self._state.ready_cursor.entries(self._store, upper):
            self.steps += 1
            group = number + value
            if self._state.grouping == Grouping.FAIR:
                head = self._store.get("lines", group) or b""
            else:
                head = key[size : 2 * size] + bytes(size) + key[2 * size :]
            yield key, group, head

    def ready(self, group: bytes, scanned: ScannedRecords, want: int) -> Iterator[Found]:
        """Yield (sequence, record) of the ready messages at the start of a group. Add each record read to ``scanned``.

        ``want`` is the number of messages that the caller needs.
        """
        state, now = self._state, self._now
        lower = group + (scanned.head[layout.number.size :] or b"\0")
        places = self._store.scan("lines", lower, layout.prefix_end(group), spare=True)
        while not scanned.is_all:
            some = [key for key, _ in islice(places, min(want + 1, BODY_READ_SIZE))]
            sequences = [int.from_bytes(place[-8:]) for place in some]
            keys = [layout.pair.pack(state.number, sequence) for sequence in sequences]
            values = self._store.get_many("messages", keys, spare=True)
            records = [layout.decode_record(value) if value else None for value in values]
            is_all = len(some) <= min(want, BODY_READ_SIZE - 1)
            scanned.extend(zip((place[GROUP_KEY_SIZE:] for place in some), records, strict=True), is_all)
            for key, sequence, value, record in zip(keys, sequences, values, records, strict=True):
                if record is None or record.expires <= now:
                    self._count_skipped(key, damaged=value == b"")
                elif sequence in state.reserved and state.grouping == Grouping.FAIR:
                    self.steps += 1
                elif sequence in state.reserved or record.available > now:
                    return
                else:
                    yield sequence, record
            if self.steps >= MAX_SKIPPED:
                return

    def _count_skipped(self, key: bytes, damaged: bool) -> None:
        self.steps += 1
        self.damaged |= damaged
        if not damaged:
            self.expired.append(key)


def _read_contents(
    store: Store, state: QueueState, found: Iterator[Found], limit: int
) -> Iterator[tuple[int, StoredMessage, bytes]]:
    while limit > 0 and (some := list(islice(found, min(limit, BODY_READ_SIZE)))):
        limit -= len(some)
        for (sequence, record), body in zip(some, read_bodies(store, state.number, some, spare=True), strict=True):
            if body:
                yield sequence, record, body
