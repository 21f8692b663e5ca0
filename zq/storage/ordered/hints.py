# SPDX-License-Identifier: Apache-2.0
"""Hints in memory that make claims, listings and expiry faster. They may be dropped at any time but are never wrong.

- ``ReadyCursor``: the position from which claims search for ready messages.
- ``VisibilityIndex``: the ranges of a queue without visible messages, which a listing can skip.
- ``LazyExpiryQueue``: expired messages that readers have found.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final, NamedTuple

from zq.model import ListFilter
from zq.storage.ordered.store import Store


class LazyExpiryQueue:
    """A queue of the keys of expired messages that readers have found, without duplicates, for one removing thread."""

    def __init__(self) -> None:
        self._met: dict[bytes, int] = {}
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self.capacity = 0
        """Maximum number of waiting keys; 0 disables lazy expiry."""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._met)

    def resize(self, capacity: int) -> None:
        """Change the capacity; waiting keys are kept."""
        self.capacity = capacity

    def offer(self, keys: Iterable[bytes], now: int) -> None:
        """Add the keys of messages that had expired at ``now``. If the queue is full, drop the keys."""
        if not self.capacity:
            return
        with self._changed:
            for key in keys:
                if len(self._met) < self.capacity:
                    self._met.setdefault(key, now)
                elif key not in self._met:
                    self.dropped += 1
            self._changed.notify()

    def wait(self) -> bool:
        """Wait for keys; return False after ``close``."""
        with self._changed:
            self._changed.wait_for(lambda: self._met or self._closed)
            return not self._closed

    def take(self, most: int) -> dict[bytes, int]:
        """Remove and return the oldest keys, each with a time at which the message had expired."""
        with self._changed:
            taken = dict(islice(self._met.items(), most))
            for key in taken:
                del self._met[key]
        return taken

    def close(self) -> None:
        """Discard all keys and end ``wait``."""
        with self._changed:
            self._met.clear()
            self._closed = True
            self._changed.notify()


class ReadyCursor(NamedTuple):
    """The position from which claims search for ready messages, so that no entry is read twice.

    In the index ``available``, only entries between ``head`` and ``low`` and from ``high`` on may be ready. Claims have
    already passed the entries before ``head`` and those between ``low`` and ``high``; what is left there has expired.
    The second range arises if claims have passed it and then a message becomes available before it.
    """

    head: bytes
    low: bytes
    high: bytes

    def entries(self, store: Store, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of ``available`` below the key ``upper`` that may be ready."""
        if self.head < min(self.low, upper):
            yield from store.scan("available", self.head, min(self.low, upper), spare=True)
        if self.high < upper:
            yield from store.scan("available", self.high, upper, spare=True)

    def may_have(self, upper: bytes) -> bool:
        """Return whether any entry below the key ``upper`` may be ready."""
        return self.head < min(self.low, upper) or self.high < upper

    def passed(self, head: bytes) -> "ReadyCursor":
        """Return the cursor after a claim that read up to ``head``."""
        return (
            ReadyCursor(head, self.low, self.high) if head < self.low else ReadyCursor(head, head, max(head, self.high))
        )

    def joined(self, keys: Sequence[bytes]) -> "ReadyCursor":
        """Return the cursor with its ranges extended so that they include new entries."""
        early = [key for key in keys if key < self.high]
        if not early:
            return self
        low = max(early) + b"\0"
        if self.head >= self.low:  # the range before ``low`` has been passed too
            return ReadyCursor(min(early), low, self.high)
        return ReadyCursor(min(self.head, *early), max(self.low, low), self.high)


# Number of sequences in a block. A listing reads the messages of a block one by one.
BLOCK: Final = 64
# Number of blocks in the next larger block.
FANOUT: Final = 64
# Number of sequences in a block of each level.
SIZES: Final = (BLOCK, BLOCK * FANOUT, BLOCK * FANOUT * FANOUT)
# An upper bound of all times, in milliseconds.
NEVER: Final = 1 << 62
# Maximum number of recorded blocks per level.
MAX_BLOCKS: Final = 1 << 18

# Maximum number of clients per queue whose own messages have recorded blocks. ``CLIENTS_BLOCKS`` applies to each.
MAX_CLIENTS: Final = 16
CLIENTS_BLOCKS: Final = MAX_BLOCKS // MAX_CLIENTS

# Times by block number, for each of ``SIZES``.
Levels = tuple[dict[int, int], ...]
# ``claimed`` and ``delayed`` of a ``ListFilter``, and the client whose messages are hidden ("": none are hidden).
FilterKind = tuple[bool, bool, str]


class VisibilityIndex:
    """The blocks of one queue that have no visible message for some time, so that a listing can skip them.

    Without the index, a listing might read a million claimed or delayed messages to find the ten messages of a page.
    Sequences are grouped into blocks, and blocks into larger blocks. For each kind of ``ListFilter``, a block may have
    a time before which none of its messages becomes visible. Because a filter may hide a client's own messages, there
    are additional times for some clients. A change that makes a message visible earlier discards its blocks' times,
    and a walk that began before the change records nothing. The callers of ``record`` and ``invalidate`` hold the
    queue's lock.
    """

    __slots__ = ("_clients", "_kinds", "invalidations")

    def __init__(self) -> None:
        self._kinds: dict[FilterKind, Levels] = {}
        self._clients: deque[FilterKind] = deque()
        """The kinds with a client, oldest first."""
        self.invalidations = 0
        """Number of calls of ``invalidate``, which a walk compares before it records blocks."""

    def skip(self, list_filter: ListFilter, sequence: int, now: int) -> int:
        """Return the first sequence, not below ``sequence``, whose message may be visible."""
        if not self._kinds:
            return sequence
        kinds = ((list_filter.claimed, list_filter.delayed, client) for client in {"", list_filter.without})
        known = [levels for levels in map(self._kinds.get, kinds) if levels is not None]
        while known:
            skipped = sequence
            for levels in known:
                skipped = _skip(levels, skipped, now)
            if skipped == sequence:
                break
            sequence = skipped
        return sequence

    def record(self, list_filter: ListFilter, moments: Mapping[int, int], own: Mapping[int, int]) -> None:
        """Record the times of blocks, by block number, and update the larger blocks that contain them.

        ``own`` has additional times for the client whose messages the filter hides. If there are too many times, the
        oldest are dropped.
        """
        if moments:
            self._note((list_filter.claimed, list_filter.delayed, ""), moments, MAX_BLOCKS)
        if own:
            kind = (list_filter.claimed, list_filter.delayed, list_filter.without)
            if kind not in self._kinds:
                self._clients.append(kind)
                if len(self._clients) > MAX_CLIENTS:
                    del self._kinds[self._clients.popleft()]
            self._note(kind, own, CLIENTS_BLOCKS)

    def _note(self, kind: FilterKind, moments: Mapping[int, int], most: int) -> None:
        levels = self._kinds.setdefault(kind, ({}, {}, {}))
        levels[0].update(moments)
        changed: Iterable[int] = moments
        for blocks, parents in pairwise(levels):
            changed = {block // FANOUT for block in changed}
            for parent in changed:
                children = [blocks.get(child, 0) for child in range(parent * FANOUT, (parent + 1) * FANOUT)]
                parents[parent] = min(children)
        for blocks in levels:
            if len(blocks) > most:
                for block in list(islice(blocks, most // 8)):
                    del blocks[block]

    def invalidate(self, sequences: Iterable[int]) -> None:
        """Discard the times of these messages' blocks, because a message may become visible earlier."""
        self.invalidations += 1
        for levels in self._kinds.values():
            for size, blocks in zip(SIZES, levels, strict=True):
                for sequence in sequences:
                    blocks.pop(sequence // size, None)


def _skip(levels: Levels, sequence: int, now: int) -> int:
    """Return the first sequence, not below ``sequence``, in a block without a recorded time after ``now``."""
    while True:
        for size, blocks in zip(reversed(SIZES), reversed(levels), strict=True):
            if blocks.get(sequence // size, 0) > now:
                sequence = (sequence // size + 1) * size
                break
        else:
            return sequence
