# SPDX-License-Identifier: Apache-2.0
"""Layer 2 of giving space back: rounds that remove what has expired, and what purged and deleted queues left.

The expiry index is read from the front and only as far as it is due, so a round costs what there is to remove, not what
lives. A message is removed under its queue's lock, and only if the index entry still tells its expiry. What else
expires goes the same way by the index ``due``, without locks but for stages and records.
"""

import time
from collections.abc import Callable
from itertools import islice
from typing import Final

from zq.errors import StoreDamaged
from zq.expiry import Pace
from zq.storage.rocksdb import batches, due, layout, past, records, stages
from zq.storage.rocksdb.keeper import Keeper, Opened
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.remains import Remains
from zq.storage.rocksdb.removal import by_queue, remove
from zq.storage.rocksdb.ruins import Ruins, forget_hidden
from zq.storage.rocksdb.stripes import Stripes

SLICE: Final = 100
"""Things removed in one write, which holds up every thread for as long as it lasts: about a millisecond."""
BREATH: Final = 0.0001
"""Seconds after each slice: a thread that waits for the interpreter would else wait for five milliseconds."""
AFRESH: Final = 3600.0
"""Seconds after which the indexes are read from their beginnings again."""


class Sweeper:
    """One round at a time: no two threads may be in one."""

    def __init__(self, keeper: Keeper, stripes: Stripes) -> None:
        self._keeper = keeper
        self._stripes = stripes
        self.position = b""
        self._due_position = b""
        """No entry of ``expiry`` and ``due`` that is due lies before these: what is written expires later than now,
        unless a verb stood still for longer than its message was to live."""
        self._afresh = 0.0
        self._first = 0
        self._ruins = Ruins()
        self._remains = Remains()
        self._keys_went = True
        """So that something hidden may have no key any more. True at first: the last server may have left some."""
        self.removed = 0

    def sweep(self, now: int, pace: Pace) -> int:
        """One round; returns how many expired messages went.

        After one that had to end early the next begins with another kind, so that none waits for all of the others.
        """
        before = self.removed
        if time.monotonic() > self._afresh:
            self._afresh = time.monotonic() + AFRESH
            self.position = self._due_position = b""
        kinds: list[Callable[[Opened, int], int]] = [
            lambda opened, size: self._ruins.clear_doomed(opened.store, size, pace),
            lambda opened, size: self._clear_dropped(opened, size, pace),
            lambda opened, size: self._remains.clear_fallen(opened, size, pace),
            lambda opened, size: self._remains.clear_purged(opened, size, pace),
        ]
        if self._keeper.around.expiry.sweep:
            kinds[:0] = (
                lambda opened, size: self._remove_expired(opened, now, size, pace),
                lambda opened, size: self._remove_due(opened.store, now, size, pace),
            )
        first = self._first % len(kinds)
        ended = [self._by_steps(pace, kind) for kind in kinds[first:] + kinds[:first]]
        self._first = 0 if all(ended) else first + 1
        return self.removed - before

    def _by_steps(self, pace: Pace, step: Callable[[Opened, int], int]) -> bool:
        """Steps of one kind, in slices, until one found less than it might remove; False if the pace ended it."""
        while left := pace.step():
            while left:
                asked = min(left, SLICE)
                with self._keeper as opened:
                    try:
                        if step(opened, asked) < asked:
                            return True
                    except StoreDamaged:  # noted where it was met; the other kinds go on
                        return True
                left -= asked
                time.sleep(BREATH)
        return False

    def _remove_expired(self, opened: Opened, now: int, size: int, pace: Pace) -> int:
        index = opened.store.scan("expiry", self.position, layout.number.pack(now + 1), spare=True)
        entries = [key for key, _ in islice(index, size)]
        for number, told in by_queue((entry[8:], layout.number.unpack_from(entry)[0]) for entry in entries):
            count, queue = remove(opened, number, told, sweeping=True)
            if count:
                self.removed += count
                pace.removed(count, queue)
        if entries:
            self.position = entries[-1] + b"\0"
        return len(entries)

    def _clear_dropped(self, opened: Opened, size: int, pace: Pace) -> int:
        if self._keys_went:
            self._keys_went = False
            forget_hidden(opened)
        return self._ruins.clear_dropped(opened.store, size, pace)

    def _remove_due(self, store: Store, now: int, size: int, pace: Pace) -> int:
        index = store.scan("due", self._due_position, layout.number.pack(now + 1), spare=True)
        entries = list(islice(index, size))
        writes: list[Write] = []
        for entry, note in entries:
            family, key = due.named(entry)
            gone: list[Write] = [("due", entry, None), (family, key, None)]
            if family == "history":
                gone += past.traces(key, note)
            elif family == "batches":
                gone.append(batches.trace(key, note))
            elif family == "keys":
                self._keys_went = True
            elif family == "stages":
                with self._stripes.held(stages.name(key[:-8])):  # no commit may be reading it
                    store.write([*gone, ("default", layout.DROPPED + note, b"")])
            elif family == "records":
                with self._stripes.held(records.name(key)):  # it may have got a longer life
                    store.write(gone if records.expired(store, key, layout.number.unpack_from(entry)[0]) else [])
                continue
            writes += gone
        if entries:
            store.write(writes)
            pace.removed(len(entries))
            self._due_position = entries[-1][0] + b"\0"
        return len(entries)
