# SPDX-License-Identifier: Apache-2.0
"""The indexes of message groups, and the entries of the groups in the index ``available``; see decision 0129.

Each group has an index of its messages in claim order. The key prefix of this index consists of the queue number and
the group's hash. The position of a message in its index is called its *slot*: (order, sequence). The order is 0 in an
ordered queue, and the message's available-at in a fair queue.

A group with live messages has one entry in ``available``, and a record called its *head*: the time in this entry, and
the slot of the group's first message. The module ``groups`` searches the indexes for ready messages.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from heapq import merge
from typing import Final

from zq.model import Grouping
from zq.storage.ordered import layout
from zq.storage.ordered.layout import StoredMessage
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store, Write

# Size in bytes of a group's key.
GROUP_KEY_SIZE: Final = 16
# Maximum number of expired or unreadable messages that a change skips to find the head of a group.
MAX_GONE: Final = 64
# Maximum number of expired or unreadable messages that a claim skips. If the claim has read the group, the limit also
# applies to the claim's change, instead of ``MAX_GONE``.
MAX_SKIPPED: Final = 4096


def group_key(queue: int, group: str) -> bytes:
    name = group.encode("utf-8", "surrogatepass")
    return layout.number.pack(queue) + blake2b(name, digest_size=GROUP_KEY_SIZE - layout.number.size).digest()


def encode_slot(grouping: Grouping, available: int, sequence: int) -> bytes:
    """Encode the position (slot) of a message in the index of its group."""
    return layout.pair.pack(available if grouping == Grouping.FAIR else 0, sequence)


def group_entry(group: bytes, head: bytes) -> tuple[bytes, bytes]:
    """Return (key, value) of a message group's entry in ``available``. ``group`` is the key of the group's index."""
    moment, _, sequence = layout.triple.unpack(head)
    return group[: layout.number.size] + layout.pair.pack(moment, sequence), group[layout.number.size :]


class ScannedRecords:
    """The records that a claim has read in one message group.

    Attributes:
        head: The group's head before the claim. It consists of the time of the group's entry in ``available`` and the
            position of the group's first message.
        records: Records by position (slot), in the order of the group; None if removed or unreadable.
    """

    __slots__ = ("head", "is_all", "records")

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.records: dict[bytes, StoredMessage | None] = {}
        self.is_all = False

    def extend(self, records: Iterable[tuple[bytes, StoredMessage | None]], is_all: bool) -> None:
        """Add (slot, record) of the next messages of the group. ``is_all`` is true if no more messages follow."""
        self.records.update(records)
        self.is_all = is_all


class _GroupIndexChange:
    """The changes to the index of one message group.

    Attributes:
        slots: The new records by slot (position in the index); None for a slot that a message leaves.
        stored: The slots whose index entries the store already has.
    """

    __slots__ = ("key", "scanned", "slots", "state", "stored")

    def __init__(self, state: QueueState, key: bytes) -> None:
        self.state, self.key = state, key
        self.slots: dict[bytes, StoredMessage | None] = {}
        self.stored: set[bytes] = set()
        self.scanned: ScannedRecords | None = None


class GroupIndexChanges:
    """The changes to the indexes of message groups within one ``Change``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._indexes: dict[bytes, _GroupIndexChange] = {}
        self._groups: dict[tuple[int, str], _GroupIndexChange] = {}

    def join(self, state: QueueState, sequence: int, record: StoredMessage) -> None:
        self._index(state, record.message_group).slots[encode_slot(state.grouping, record.available, sequence)] = record

    def leave(self, state: QueueState, sequence: int, group: str, available: int) -> None:
        """Remove a message from the index of its group. ``available`` is the available-at in the stored record."""
        _leave(self._index(state, group), encode_slot(state.grouping, available, sequence))

    def shift(self, state: QueueState, sequence: int, record: StoredMessage, available: int) -> None:
        """Move a message within the index of its group. ``available`` is the available-at in the old record."""
        index, grouping = self._index(state, record.message_group), state.grouping
        _leave(index, encode_slot(grouping, available, sequence))
        index.slots[encode_slot(grouping, record.available, sequence)] = record

    def add_scanned(self, state: QueueState, key: bytes, scanned: ScannedRecords) -> None:
        """Add the records that a claim has read in the group.

        If the claim takes the first message of the group, the method ``writes`` searches these records for the new
        first message.
        """
        self._indexes.setdefault(key, _GroupIndexChange(state, key)).scanned = scanned

    def writes(self, now: int) -> Iterator[tuple[QueueState, list[Write], bytes]]:
        """Yield (queue, writes, entry) for each changed group.

        ``entry`` is the key of the group's new entry in ``available``, or b"" if the group has no new entry.
        """
        for key, index in self._indexes.items():
            writes: list[Write] = [
                ("lines", key + slot, None if record is None else b"")
                for slot, record in index.slots.items()
                if record is None or slot not in index.stored
            ]
            head = index.scanned.head if index.scanned else self._store.get("lines", key) or b""
            new = self._head(index, head, now)
            entry = b""
            if new != head:
                if head:
                    writes.append(("available", group_entry(key, head)[0], None))
                if new:
                    entry, hashed = group_entry(key, new)
                    writes.append(("available", entry, hashed))
                writes.append(("lines", key, new or None))
            yield index.state, writes, entry

    def _head(self, index: _GroupIndexChange, head: bytes, now: int) -> bytes:
        """Return the head of a group after the change, or b"" if the group has no live messages.

        A head consists of the time of the group's entry in ``available`` and the position of the group's first message.
        ``head`` is the head before the change.
        """
        kept, scanned = head[layout.number.size :], index.scanned
        joined = sorted(slot for slot, record in index.slots.items() if record is not None)
        if joined and (not head or joined[0] <= kept):
            first = index.slots[joined[0]]
            if first is not None and first.expires > now:
                return layout.number.pack(max(now, first.available)) + joined[0]
        elif head and scanned is None and kept not in index.slots:
            return head
        remaining = MAX_GONE if scanned is None else MAX_SKIPPED
        slots = (slot for slot in self._stored_slots(index, kept) if slot not in index.slots) if head else ()
        for slot in merge(joined, slots):
            record = index.slots.get(slot) or self._record(index, slot)
            if record is None or record.expires <= now:
                remaining -= 1
                if remaining:
                    continue
            elif slot == kept and slot not in index.slots:
                return head
            return layout.number.pack(now if record is None else max(now, record.available)) + slot
        return b""

    def _index(self, state: QueueState, group: str) -> _GroupIndexChange:
        index = self._groups.get((state.number, group))
        if index is None:
            key = group_key(state.number, group)
            index = self._groups[state.number, group] = self._indexes.setdefault(key, _GroupIndexChange(state, key))
        return index

    def _stored_slots(self, index: _GroupIndexChange, kept: bytes) -> Iterator[bytes]:
        lower = index.key + kept
        if index.scanned:
            yield from index.scanned.records
            if index.scanned.is_all:
                return
            lower = index.key + next(reversed(index.scanned.records), kept) + b"\0"
        for key, _ in self._store.scan("lines", lower, layout.prefix_end(index.key), spare=True):
            yield key[GROUP_KEY_SIZE:]

    def _record(self, index: _GroupIndexChange, slot: bytes) -> StoredMessage | None:
        if index.scanned and slot in index.scanned.records:
            return index.scanned.records[slot]
        key = index.key[: layout.number.size] + slot[layout.number.size :]
        [value] = self._store.get_many("messages", [key], spare=True)
        return layout.decode_record(value) if value else None


def _leave(index: _GroupIndexChange, slot: bytes) -> None:
    if slot not in index.slots:
        index.stored.add(slot)
    index.slots[slot] = None
