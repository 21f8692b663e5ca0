# SPDX-License-Identifier: Apache-2.0
"""A copy of a store that another server owns, kept by a server that waits: the newest checkpoint, then the log.

Whoever takes the store over reads what the chain of epochs counts, and a copy may hold nothing else: what it has
applied it cannot take back. A record that can be read need not be one: its upload may not be acknowledged yet, so
that later readers may miss it, or may land after the epoch was closed. So only what is certain is applied:

- Of the newest epoch, what its owner says to have acknowledged, in a later record or in its head. It put that record
  and all before, and then found no fence; so whoever deposes it reads them, and counts them.
- Of the epochs before, what the newest one's chain counts, and only once there is a head of that epoch. Its owner
  writes one after it has found no fence behind its opening; so whoever takes over from it reads that opening, and goes
  on with that chain. An opening alone is not enough: its server may have been deposed before it began, and the epoch
  above may have read the log anew and found less.

``tests/model/test_ownership.py`` runs this against servers that are slow, and records that not every reader sees.
"""

import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from zq.errors import StartRefused, StoreDamaged, Unavailable
from zq.storage.object.checkpoints import Manifest, download
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import Head, Kept, Opening, log_name
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import AHEAD, followed, said, whole_log
from zq.storage.object.store import ShippedStore

LOG = logging.getLogger(__name__)
# Seconds after which what could not be fetched or written is fetched again.
PAUSE: Final = 30.0
# Maximum bytes in memory between two checks, which a takeover has to write.
MOST_BUFFERED: Final = 16 << 20


class Copy(NamedTuple):
    """The content of the directory: the log up to ``position`` on top of the manifest's checkpoint."""

    position: int
    manifest: Manifest | None


class Tail:
    """The certain part of the log from a position on, as defined in the module's docstring."""

    def __init__(self, objects: Objects, position: int) -> None:
        self.position = position
        """The last that was given out."""
        self._objects = objects
        self._read = (0, 0)
        """An epoch, and the last position of it that was read, if not given out."""

    def new(self, epoch: int, opening: Opening, head: Head | None) -> Iterator[Entry]:
        """Yield the records that have become certain. Raise ``StoreDamaged`` if a record is missing."""
        if not began(head):
            return
        yield from self._noted(whole_log(self._objects, self.position, opening.chain))
        self.position = max([self.position, *(span.last for span in opening.chain)])
        seen = self._read[1] if self._read[0] == epoch else 0
        following = log_name(epoch, max(self.position, seen) + 1, opening.by_position)
        if said(head) <= self.position and not self._objects.exists(following):
            return
        log = followed(self._objects, epoch, self.position, None, said(head), by_position=opening.by_position)
        yield from self._noted(acknowledged(self._remembered(log), said(head)))

    def _noted(self, records: Iterable[Entry]) -> Iterator[Entry]:
        for record in records:
            yield record
            self.position = record.position

    def _remembered(self, records: Iterable[Entry]) -> Iterator[Entry]:
        for record in records:
            self._read = record.epoch, record.position
            yield record


def began(head: Head | None) -> bool:
    """Return whether every later owner will use the epoch's opening."""
    return head is not None


def acknowledged(records: Iterable[Entry], known: int) -> Iterator[Entry]:
    """Yield the records up to the last acknowledged position.

    That is ``known``, or a position that a later record acknowledges. Up to ``AHEAD`` records are buffered.
    """
    held: deque[Entry] = deque()
    for record in records:
        known = max(known, record.acknowledged)
        held.append(record)
        while held and held[0].position <= known:
            yield held.popleft()
        if len(held) == AHEAD:
            return


class Standby:
    """The copy in a local directory, which is this process's own."""

    def __init__(self, objects: Objects, path: Path, opened: Callable[[], ShippedStore]) -> None:
        """Create an empty standby copy.

        ``opened`` opens the store without the compaction filter, because no clock may destroy data of the copy.
        """
        self._objects = objects
        self._path = path
        self._opened = opened
        self._store: ShippedStore | None = None
        self._manifest: Manifest | None = None
        self._tail = Tail(objects, 0)
        self._base = self._failed = -1
        """The position of the checkpoint that the copy began with, and of one that did not do."""
        self._again = 0.0
        """Earliest time of a new beginning, in monotonic time."""

    @property
    def position(self) -> int:
        """The log position of the copy, or -1 without a copy."""
        return self._tail.position if self._store is not None else -1

    def follow(self, epoch: int, opening: Opening, head: Head | None) -> None:
        """Apply new records of the log.

        If the next records are removed or damaged, start again from a newer checkpoint. Errors are retried by the next
        call, because a takeover does not depend on the copy.
        """
        kept: Kept = head or opening
        newest = kept.checkpoints[-1].position if kept.checkpoints else 0
        oldest = kept.checkpoints[0].position if kept.checkpoints else 0
        if self.position < oldest:  # the next records may be removed and their names reused
            self.drop()
        try:
            if self._store is None and newest > self._failed and time.monotonic() >= self._again:
                self._begin(newest, kept)
            if self._store is not None:
                for record in self._tail.new(epoch, opening, head):
                    self._store.restore(record)
                self._store.flush_beyond(MOST_BUFFERED)
        except StoreDamaged as error:
            LOG.warning("The log cannot be followed before there is a newer checkpoint: %s", error)
            self._failed = self._base
            self.drop()
        except (OSError, StartRefused, Unavailable) as error:
            LOG.warning("The log cannot be followed at present: %s", error)
            if self._store is None or self._store.failure is not None:
                self.drop()
                self._again = time.monotonic() + PAUSE

    def stop(self) -> Copy | None:
        """Close the directory, and what it holds; None if there is nothing."""
        if self._store is None:
            return None
        copy = Copy(self._tail.position, self._manifest)
        try:
            self._store.flush_families()
            self._store.close()
        except Unavailable:
            self.drop()
            return None
        self._store = None
        return copy

    def drop(self) -> None:
        """Give the copy up, if there is one."""
        if self._store is not None:
            self._store.let_go()
            shutil.rmtree(self._path, ignore_errors=True)
        self._store = self._manifest = None

    def _begin(self, newest: int, kept: Kept) -> None:
        self._base = newest
        shutil.rmtree(self._path, ignore_errors=True)
        self._manifest = download(self._objects, kept.checkpoints[-1], self._path) if kept.checkpoints else None
        self._store = self._opened()
        self._tail = Tail(self._objects, newest)
        LOG.info("This server follows the log, from position %d on.", newest)
