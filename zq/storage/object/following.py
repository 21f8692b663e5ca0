# SPDX-License-Identifier: Apache-2.0
"""The standby copy of a store that another server owns, built from the newest checkpoint and the log.

Every owner lists the valid parts of the log in its opening record (the chain), and regularly writes its progress to an
object (the head). Applied records cannot be undone, so a standby may apply only records that every successor will
include in its chain. A record in the object store does not meet this condition if it is unacknowledged or was uploaded
after a successor closed the epoch. A standby applies:

- From the newest epoch: the records that the owner has acknowledged, as stated in a later record or in the head. The
  owner stored these records and then found no fence, so every successor reads them.
- From earlier epochs: the records in the newest epoch's chain, once that epoch has a head. The owner writes a head only
  after it has opened the epoch and then found no fence, so every successor extends this chain. An opening
  without a head is not sufficient. Its owner may have been deposed before it served, and the next owner's chain may end
  at an earlier record.

``tests/model/test_ownership.py`` checks this protocol with slow servers and with records that some readers do not see.
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
from zq.storage.object.epochs import Head, Opening, RestorePoints, log_name
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import READ_AHEAD, acknowledged_position, read_chain, read_epoch
from zq.storage.object.store import ShippedStore

LOG = logging.getLogger(__name__)
# Seconds between two attempts to create the copy after an error.
RETRY_PAUSE: Final = 30.0
# Maximum size in bytes of the write buffers, which a takeover must flush first.
MAX_BUFFERED_BYTES: Final = 16 << 20


class StandbyCopy(NamedTuple):
    """A closed standby copy: a checkpoint with the log applied up to ``position``."""

    position: int
    manifest: Manifest | None


class Tail:
    """A reader of the current owner's log, which yields only records that every later owner is certain to keep."""

    def __init__(self, objects: Objects, position: int) -> None:
        self.position = position
        """The position of the last yielded record."""
        self._objects = objects
        self._read = (0, 0)
        """The epoch and position of the last record that was read, even if it was not yielded."""

    def read_new(self, epoch: int, opening: Opening, head: Head | None) -> Iterator[Entry]:
        """Yield the new records that every later owner will keep.

        Raises ``StoreDamaged`` if a record is damaged or missing.
        """
        if not is_confirmed(head):
            return
        yield from self._noted(read_chain(self._objects, self.position, opening.chain))
        self.position = max([self.position, *(span.last for span in opening.chain)])
        seen = self._read[1] if self._read[0] == epoch else 0
        following = log_name(epoch, max(self.position, seen) + 1, opening.by_position)
        if acknowledged_position(head) <= self.position and not self._objects.exists(following):
            return
        log = read_epoch(
            self._objects, epoch, self.position, None, acknowledged_position(head), by_position=opening.by_position
        )
        yield from self._noted(yield_acknowledged(self._remembered(log), acknowledged_position(head)))

    def _noted(self, records: Iterable[Entry]) -> Iterator[Entry]:
        for record in records:
            yield record
            self.position = record.position

    def _remembered(self, records: Iterable[Entry]) -> Iterator[Entry]:
        for record in records:
            self._read = record.epoch, record.position
            yield record


def is_confirmed(head: Head | None) -> bool:
    """Return whether every later owner will keep the log that an epoch's opening record describes.

    ``head`` is the epoch's progress record, or None if the owner has not written it yet.
    """
    return head is not None


def yield_acknowledged(records: Iterable[Entry], known: int) -> Iterator[Entry]:
    """Yield the records up to the position ``known``, and records that a later record reports as acknowledged."""
    held: deque[Entry] = deque()
    for record in records:
        known = max(known, record.acknowledged)
        held.append(record)
        while held and held[0].position <= known:
            yield held.popleft()
        if len(held) == READ_AHEAD:
            return


class Standby:
    """The standby copy of the store, in a local directory that only this process uses."""

    def __init__(self, objects: Objects, path: Path, opened: Callable[[], ShippedStore]) -> None:
        """Create a standby that has no copy yet.

        ``opened`` opens the local store without the compaction filter, because the copy must not expire data.
        """
        self._objects = objects
        self._path = path
        self._opened = opened
        self._store: ShippedStore | None = None
        self._manifest: Manifest | None = None
        self._tail = Tail(objects, 0)
        self._base = self._failed = -1
        """Checkpoint positions of the current copy (``_base``) and the last damaged copy (``_failed``); -1 = none."""
        self._again = 0.0
        """The earliest monotonic time of the next attempt to create the copy."""

    @property
    def position(self) -> int:
        """The log position of the copy, or -1 if there is no copy."""
        return self._tail.position if self._store is not None else -1

    def follow(self, epoch: int, opening: Opening, head: Head | None) -> None:
        """Apply new records of the log to the copy. The arguments are those of ``Tail.read_new``.

        If there is no copy yet, or the next records are removed or damaged, create a copy from the newest checkpoint.
        Errors are only logged, because a takeover does not depend on the copy.
        """
        kept: RestorePoints = head or opening
        newest = kept.checkpoints[-1].position if kept.checkpoints else 0
        oldest = kept.checkpoints[0].position if kept.checkpoints else 0
        if self.position < oldest:  # the next records may have been removed, and their names may have been reused
            self.drop()
        try:
            if self._store is None and newest > self._failed and time.monotonic() >= self._again:
                self._begin(newest, kept)
            if self._store is not None:
                for record in self._tail.read_new(epoch, opening, head):
                    self._store.restore(record)
                self._store.flush_beyond(MAX_BUFFERED_BYTES)
        except StoreDamaged as error:
            LOG.warning("The standby cannot follow the log until there is a newer checkpoint: %s", error)
            self._failed = self._base
            self.drop()
        except (OSError, StartRefused, Unavailable) as error:
            LOG.warning("The standby cannot follow the log now: %s", error)
            if self._store is None or self._store.failure is not None:
                self.drop()
                self._again = time.monotonic() + RETRY_PAUSE

    def stop(self) -> StandbyCopy | None:
        """Close the copy and return its position and checkpoint, or None if there is no usable copy."""
        if self._store is None:
            return None
        copy = StandbyCopy(self._tail.position, self._manifest)
        try:
            self._store.flush_families()
            self._store.close()
        except Unavailable:
            self.drop()
            return None
        self._store = None
        return copy

    def drop(self) -> None:
        """Delete the standby copy, if one exists."""
        if self._store is not None:
            self._store.close_unflushed()
            shutil.rmtree(self._path, ignore_errors=True)
        self._store = self._manifest = None

    def _begin(self, newest: int, kept: RestorePoints) -> None:
        self._base = newest
        shutil.rmtree(self._path, ignore_errors=True)
        self._manifest = download(self._objects, kept.checkpoints[-1], self._path) if kept.checkpoints else None
        self._store = self._opened()
        self._tail = Tail(self._objects, newest)
        LOG.info("This server is a standby and follows the log from position %d.", newest)
