# SPDX-License-Identifier: Apache-2.0
"""The lines in which messages of one group stand in a grouped queue, and the one entry that each line has in the index
of claims (decision 0129). How claims walk along them is in ``groups``.

A line's key is the queue's number and its group's hash. There it has a *head* while something lives in it: the moment
of its entry in ``available``, and the place of the message that this is about. A place is (order, sequence); the order
is nothing in an ordered queue, and the moment at which the message is available in a fair one.
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

# Bytes of a line's key: a queue's number, and a hash.
LINE: Final = 16
# Messages that have expired, or cannot be read, that are stepped over for the head of a line.
MAX_GONE: Final = 64
# The same where a claim has walked along the line.
PATIENCE: Final = 4096


def line_of(queue: int, group: str) -> bytes:
    """The key of a group's line."""
    name = group.encode("utf-8", "surrogatepass")
    return layout.number.pack(queue) + blake2b(name, digest_size=LINE - layout.number.size).digest()


def slot_of(grouping: Grouping, available: int, sequence: int) -> bytes:
    """Where a message stands in its line."""
    return layout.pair.pack(available if grouping == Grouping.FAIR else 0, sequence)


def entry_of(line: bytes, head: bytes) -> tuple[bytes, bytes]:
    """The entry in ``available`` that a line with this head has."""
    moment, _, sequence = layout.triple.unpack(head)
    return line[: layout.number.size] + layout.pair.pack(moment, sequence), line[layout.number.size :]


class Met:
    """The records of a line that a claim has read, in the order of their places; None for a removed message.

    ``is_all``: there are none behind them.
    """

    __slots__ = ("head", "is_all", "records")

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.records: dict[bytes, StoredMessage | None] = {}
        self.is_all = False

    def extend(self, records: Iterable[tuple[bytes, StoredMessage | None]], is_all: bool) -> None:
        """Add the next records by their places; ``is_all``: there are none behind them."""
        self.records.update(records)
        self.is_all = is_all


class _Line:
    """What a change does to one line. ``slots``: records by their places, None for places that are left; ``stored``:
    those of the places that the store has; ``met``: what the claim has that makes the change."""

    __slots__ = ("key", "met", "slots", "state", "stored")

    def __init__(self, state: QueueState, key: bytes) -> None:
        self.state, self.key = state, key
        self.slots: dict[bytes, StoredMessage | None] = {}
        self.stored: set[bytes] = set()
        self.met: Met | None = None


class Lines:
    """What one change does to lines."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[bytes, _Line] = {}
        self._groups: dict[tuple[int, str], _Line] = {}
        """The same, by queue and group."""

    def join(self, state: QueueState, sequence: int, record: StoredMessage) -> None:
        """A message stands where its record says from now on."""
        self._line(state, record.line).slots[slot_of(state.grouping, record.available, sequence)] = record

    def leave(self, state: QueueState, sequence: int, group: str, available: int) -> None:
        """A message that was available then leaves its place."""
        _leave(self._line(state, group), slot_of(state.grouping, available, sequence))

    def shift(self, state: QueueState, sequence: int, record: StoredMessage, available: int) -> None:
        """A message that was available then stands where its record says from now on."""
        line, grouping = self._line(state, record.line), state.grouping
        _leave(line, slot_of(grouping, available, sequence))
        line.slots[slot_of(grouping, record.available, sequence)] = record

    def walked(self, state: QueueState, key: bytes, met: Met) -> None:
        """A claim has walked along a line, of which nothing was changed before: its head may be gone."""
        self._lines.setdefault(key, _Line(state, key)).met = met

    def writes(self, now: int) -> Iterator[tuple[QueueState, list[Write], bytes]]:
        """What is to be written of each line: places, head and entry; the key of a new entry, b"" = there is none."""
        for key, line in self._lines.items():
            writes: list[Write] = [
                ("lines", key + slot, None if record is None else b"")
                for slot, record in line.slots.items()
                if record is None or slot not in line.stored
            ]
            head = line.met.head if line.met else self._store.get("lines", key) or b""
            new = self._head(line, head, now)
            entry = b""
            if new != head:
                if head:
                    writes.append(("available", entry_of(key, head)[0], None))
                if new:
                    entry, hashed = entry_of(key, new)
                    writes.append(("available", entry, hashed))
                writes.append(("lines", key, new or None))
            yield line.state, writes, entry

    def _head(self, line: _Line, head: bytes, now: int) -> bytes:
        """The head that the line has after the change; b"" = nothing lives in it. What stands before the head that it
        had is gone."""
        kept, met = head[layout.number.size :], line.met
        joined = sorted(slot for slot, record in line.slots.items() if record is not None)
        if joined and (not head or joined[0] <= kept):
            first = line.slots[joined[0]]
            if first is not None and first.expires > now:
                return layout.number.pack(max(now, first.available)) + joined[0]
        elif head and met is None and kept not in line.slots:
            return head
        most = MAX_GONE if met is None else PATIENCE
        slots = (slot for slot in self._places(line, kept) if slot not in line.slots) if head else ()
        for slot in merge(joined, slots):
            record = line.slots.get(slot) or self._record(line, slot)
            if record is None or record.expires <= now:
                most -= 1
                if most:
                    continue
            elif slot == kept and slot not in line.slots:
                return head
            return layout.number.pack(now if record is None else max(now, record.available)) + slot
        return b""

    def _line(self, state: QueueState, group: str) -> _Line:
        line = self._groups.get((state.number, group))
        if line is None:
            key = line_of(state.number, group)
            line = self._groups[state.number, group] = self._lines.setdefault(key, _Line(state, key))
        return line

    def _places(self, line: _Line, kept: bytes) -> Iterator[bytes]:
        """Those of a line in the store, from its head on."""
        lower = line.key + kept
        if line.met:
            yield from line.met.records
            if line.met.is_all:
                return
            lower = line.key + next(reversed(line.met.records), kept) + b"\0"
        for key, _ in self._store.scan("lines", lower, layout.after(line.key), spare=True):
            yield key[LINE:]

    def _record(self, line: _Line, slot: bytes) -> StoredMessage | None:
        """The record of the message that stands there; None if there is none that can be read."""
        if line.met and slot in line.met.records:
            return line.met.records[slot]
        key = line.key[: layout.number.size] + slot[layout.number.size :]
        [value] = self._store.get_many("messages", [key], spare=True)
        return layout.decode_record(value) if value else None


def _leave(line: _Line, slot: bytes) -> None:
    if slot not in line.slots:
        line.stored.add(slot)
    line.slots[slot] = None
