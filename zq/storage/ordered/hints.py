# SPDX-License-Identifier: Apache-2.0
"""Hints in memory that speed up claims, listings and expiry. Hints are always correct, and may be dropped at any time.

- ``ReadyCursor``: the position from which claims search for ready messages.
- ``VisibilityIndex``: ranges of sequence numbers without visible messages, which a listing skips.
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
    """A bounded queue of message keys. Readers add the keys of the expired messages that they find.

    The queue contains each key only once.
    """

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self.capacity = 0
        """Maximum number of keys in the queue; 0 disables lazy expiry."""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._keys)

    def resize(self, capacity: int) -> None:
        self.capacity = capacity

    def offer(self, keys: Iterable[bytes], now: int) -> None:
        """Add the keys of messages that had expired by ``now``. Drop and count the keys that do not fit."""
        if not self.capacity:
            return
        with self._changed:
            for key in keys:
                if len(self._keys) < self.capacity:
                    self._keys.setdefault(key, now)
                elif key not in self._keys:
                    self.dropped += 1
            self._changed.notify()

    def wait(self) -> bool:
        """Wait until the queue has keys and return True, or return False after ``close``."""
        with self._changed:
            self._changed.wait_for(lambda: self._keys or self._closed)
            return not self._closed

    def take(self, max_keys: int) -> dict[bytes, int]:
        """Remove and return up to ``max_keys`` keys, oldest first.

        The value of each key is a time. The key's message expired at or before this time.
        """
        with self._changed:
            taken = dict(islice(self._keys.items(), max_keys))
            for key in taken:
                del self._keys[key]
        return taken

    def close(self) -> None:
        """Discard all keys and wake the thread in ``wait``."""
        with self._changed:
            self._keys.clear()
            self._closed = True
            self._changed.notify()


class ReadyCursor(NamedTuple):
    """The two ranges of the index ``available`` in which claims search for ready messages.

    - From ``high`` to the end: entries that no claim has read yet.
    - From ``head`` up to, but not including, ``low``: entries that were added after claims had passed this part of the
      index. This range is usually empty.

    Messages outside these ranges are not ready: they have expired, are unreadable, or will be deleted by a transaction
    commit in progress.
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

    def move_to(self, head: bytes) -> "ReadyCursor":
        """Return the cursor for the next claim. The last claim has searched all entries before the key ``head``."""
        return (
            ReadyCursor(head, self.low, self.high) if head < self.low else ReadyCursor(head, head, max(head, self.high))
        )

    def extend(self, keys: Sequence[bytes]) -> "ReadyCursor":
        """Return a cursor that also covers new entries of the index ``available``, given the keys of these entries."""
        early = [key for key in keys if key < self.high]
        if not early:
            return self
        low = max(early) + b"\0"
        if self.head >= self.low:  # claims have also passed the first range
            return ReadyCursor(min(early), low, self.high)
        return ReadyCursor(min(self.head, *early), max(self.low, low), self.high)


# Number of sequences in a block of the lowest level.
BLOCK: Final = 64
# Number of blocks in the next larger block.
FANOUT: Final = 64
# Number of sequences in a block of each level.
SIZES: Final = (BLOCK, BLOCK * FANOUT, BLOCK * FANOUT * FANOUT)
# A time in milliseconds above all others.
NEVER: Final = 1 << 62
# Maximum number of recorded blocks per level and filter.
MAX_BLOCKS: Final = 1 << 18

# Maximum number of filters per queue that hide a client's messages.
MAX_CLIENTS: Final = 16
# Maximum number of recorded blocks per level for a filter that hides a client's messages.
CLIENTS_BLOCKS: Final = MAX_BLOCKS // MAX_CLIENTS

# Times by block number, one table for each of ``SIZES``.
Levels = tuple[dict[int, int], ...]
# ``claimed`` and ``delayed`` of a ``ListFilter``, and the client whose messages it hides ("" for no client).
FilterKind = tuple[bool, bool, str]


class VisibilityIndex:
    """An index of ranges of messages that a listing can skip, because none of these messages is visible.

    A message is visible if it matches the filter of the listing. Without the index, a listing might read a million
    claimed or delayed messages to find the ten messages of a page.

    - Messages are grouped by sequence into blocks, and blocks into larger blocks.
    - The index can store a time for each block and filter. Until this time, the block has no visible message. A filter
      that hides the messages of a certain client has separate times.
    - If a change makes a message visible earlier, the times of its blocks are discarded. If this happens during a scan,
      the scan must not record times.

    The callers of ``record`` and ``invalidate`` hold the queue's lock.
    """

    __slots__ = ("_clients", "_kinds", "invalidations")

    def __init__(self) -> None:
        self._kinds: dict[FilterKind, Levels] = {}
        self._clients: deque[FilterKind] = deque()
        """The kinds of filters that hide a client's own messages, oldest first."""
        self.invalidations = 0
        """Number of calls of ``invalidate``. If it has changed since a scan began, the scan must not record blocks."""

    def skip(self, list_filter: ListFilter, sequence: int, now: int) -> int:
        """Return the first sequence at or above ``sequence`` whose message may match the filter."""
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
        """Record times of blocks of sequences. Before its time, a block has no visible message.

        Both mappings have the time of each block in Unix milliseconds. The times in ``moments`` are valid for all
        clients. The times in ``own`` are valid only for the client whose messages the filter hides.
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

    def _note(self, kind: FilterKind, moments: Mapping[int, int], max_blocks: int) -> None:
        levels = self._kinds.setdefault(kind, ({}, {}, {}))
        levels[0].update(moments)
        changed: Iterable[int] = moments
        for blocks, parents in pairwise(levels):
            changed = {block // FANOUT for block in changed}
            for parent in changed:
                children = [blocks.get(child, 0) for child in range(parent * FANOUT, (parent + 1) * FANOUT)]
                parents[parent] = min(children)
        for blocks in levels:
            if len(blocks) > max_blocks:
                for block in list(islice(blocks, max_blocks // 8)):
                    del blocks[block]

    def invalidate(self, sequences: Iterable[int]) -> None:
        """Discard the recorded times of the blocks that contain these sequences.

        Call this method if the messages may become visible earlier than recorded.
        """
        self.invalidations += 1
        for levels in self._kinds.values():
            for size, blocks in zip(SIZES, levels, strict=True):
                for sequence in sequences:
                    blocks.pop(sequence // size, None)


def _skip(levels: Levels, sequence: int, now: int) -> int:
    while True:
        for size, blocks in zip(reversed(SIZES), reversed(levels), strict=True):
            if blocks.get(sequence // size, 0) > now:
                sequence = (sequence // size + 1) * size
                break
        else:
            return sequence
