# SPDX-License-Identifier: Apache-2.0
"""The lines in which messages of one group stand in a grouped queue, and the one entry that each line has in the index
of claims (decision 0129). How claims walk along them is in ``groups``.

A line's key is the queue's number and its group's hash. There it has a *head* while something lives in it: the moment
of its entry in ``available``, and the place of the message that this is about. A place is (order, sequence); the order
is nothing in an ordered queue, and the moment at which the message is available in a fair one.
"""

from collections.abc import Iterator
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


class Lines:
    """What one change does to lines."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes: dict[tuple[QueueState, bytes], dict[bytes, StoredMessage | None]] = {}
        """Records by their places, None for places that are left, by line."""
        self._walked: set[bytes] = set()

    def join(self, state: QueueState, sequence: int, record: StoredMessage) -> None:
        """A message stands where its record says from now on."""
        self._slots(state, record.line)[slot_of(state.grouping, record.available, sequence)] = record

    def leave(self, state: QueueState, sequence: int, group: str, available: int) -> None:
        """A message that was available then leaves its place."""
        self._slots(state, group)[slot_of(state.grouping, available, sequence)] = None

    def walked(self, state: QueueState, line: bytes) -> None:
        """A claim has walked along a line: its head may be gone."""
        self._changes.setdefault((state, line), {})
        self._walked.add(line)

    def writes(self, now: int) -> Iterator[tuple[QueueState, Write]]:
        """What is to be written: places, heads and their entries."""
        for (state, line), changed in self._changes.items():
            for slot, record in changed.items():
                yield state, ("lines", line + slot, b"" if record is not None else None)
            head = self._store.get("lines", line) or b""
            new = self._head(state, line, head, changed, now)
            if new == head:
                continue
            if head:
                yield state, ("available", entry_of(line, head)[0], None)
            if new:
                yield state, ("available", *entry_of(line, new))
            yield state, ("lines", line, new or None)

    def _head(
        self, state: QueueState, line: bytes, head: bytes, changed: dict[bytes, StoredMessage | None], now: int
    ) -> bytes:
        """The head that the line has after the change; b"" = nothing lives in it."""
        joined = sorted(slot for slot, record in changed.items() if record is not None)
        kept = head[layout.number.size :]
        if head and line not in self._walked and kept not in changed and (not joined or kept < joined[0]):
            return head
        most = PATIENCE if line in self._walked else MAX_GONE
        slots = (key[LINE:] for key, _ in self._store.scan("lines", line + b"\0", layout.after(line), spare=True))
        for slot in merge(joined, (slot for slot in slots if slot not in changed)):
            record = changed.get(slot) or self._record(state, slot)
            if record is None or record.expires <= now:
                most -= 1
                if most:
                    continue
            elif slot == kept and slot not in changed:
                return head
            return layout.number.pack(now if record is None else max(now, record.available)) + slot
        return b""

    def _slots(self, state: QueueState, group: str) -> dict[bytes, StoredMessage | None]:
        return self._changes.setdefault((state, line_of(state.number, group)), {})

    def _record(self, state: QueueState, slot: bytes) -> StoredMessage | None:
        """The record of the message that stands there; None if there is none that can be read."""
        key = layout.number.pack(state.number) + slot[layout.number.size :]
        [value] = self._store.get_many("messages", [key], spare=True)
        return layout.decode_record(value) if value else None
