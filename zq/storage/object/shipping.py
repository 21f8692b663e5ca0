# SPDX-License-Identifier: Apache-2.0
"""The upload of the log to the object store.

Each log record is one object with a group of batches. Batches are acknowledged in log order. A failed upload is
repeated with the same bytes.

After an upload, the server checks for a fence: an object with which another server takes over the store. If there is a
fence, the batches are not acknowledged.
"""

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from zq.errors import Deposed, Unavailable
from zq.storage.object import entries
from zq.storage.object.entries import Batch
from zq.storage.object.epochs import Proof, log_name
from zq.storage.object.objects import Objects, ObjectStoreRejection
from zq.storage.object.restoring import WINDOW
from zq.storage.ordered.store import Range, Write

LOG = logging.getLogger(__name__)
# Maximum uncompressed size of a record in bytes, except for a record with a single batch.
MAX_RECORD_BYTES: Final = 4 << 20
# Size in bytes of the unacknowledged batches above which writes are rejected.
MAX_WAITING_BYTES: Final = 64 << 20
# Number of recent uploads whose durations determine the spacing of the next ones.
RECENT_UPLOADS: Final = 8
# Maximum delay in seconds of batches for which no caller waits.
MAX_UNAWAITED_DELAY: Final = 1.0
# Seconds between two attempts: for the first retry, and at most.
RETRY_PAUSES: Final = (0.05, 2.0)
# Seconds until the next attempt if the object store has rejected a record.
REFUSED_PAUSE: Final = 5.0
UNKNOWN_OUTCOME: Final = (
    "The object store did not confirm the change in time. The change may have been stored.{} Try again later."
)
OVERLOAD_ERROR: Final = "The object store cannot keep up with the writes of this server. Try again later."


class _Waiting(NamedTuple):
    """A batch of writes that is not part of a log record yet.

    ``size`` is in bytes. ``since`` is the monotonic time in seconds at which the batch was appended.
    """

    batch: Batch
    size: int
    since: float


class _Waiter(NamedTuple):
    """A thread that waits until all batches up to the number ``wanted`` are acknowledged."""

    wanted: int
    gate: threading.Lock


class LogCut:
    """A point between two batches at which a log record ends.

    ``position`` is the position of this record, or None until the record exists.
    """

    def __init__(self, serial: int, position: int | None) -> None:
        self.serial = serial
        self.position = position


class Shipper:
    """The uploader of the log during one epoch (one server's term of ownership)."""

    def __init__(
        self,
        objects: Objects,
        proof: Proof,
        position: int,
        uploads: int = 4,
        linger: float = 0.0,
        patience: float = 10.0,
        by_position: bool = False,
        *,
        now: Callable[[], float],
    ) -> None:
        """Prepare the upload threads without starting them.

        ``position`` is the last position of the log so far. ``uploads`` is the number of threads. ``linger`` is the
        minimum time in seconds between the starts of two uploads. ``patience`` is the timeout of ``wait`` in seconds.
        ``now`` returns the Unix time in seconds.
        """
        self._objects = objects
        self._proof = proof
        self._linger = linger
        self._patience = patience
        self.by_position = by_position
        self._ahead = WINDOW if by_position else math.inf
        self._now = now
        self._changed = threading.Condition(threading.Lock())
        """Notified when an upload may be due.

        Only the upload thread that holds ``_encoding`` waits for this condition. Each caller of ``wait`` has a gate of
        its own, so that an upload does not wake all callers.
        """
        self._encoding = threading.Lock()
        """Held while a record is built, so that records are built in the order of their positions."""
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._appended = 0
        self._taken = 0
        self._waiters: list[_Waiter] = []
        self._wanted = 0
        """The highest number of a batch for which a caller waits or has waited."""
        self._serials: dict[int, int] = {}
        """The number of the last batch of each unacknowledged record, by position."""
        self._cuts: deque[LogCut] = deque()
        """Cuts whose records do not exist yet."""
        self._done: dict[int, float] = {}
        """The start of the upload of each stored but unacknowledged record, by position, on the proof's clock."""
        self._durations: deque[float] = deque(maxlen=RECENT_UPLOADS)
        self._alone = 0.0
        self._spacing = 0.0
        """Minimum seconds between the starts of two concurrent uploads."""
        self._started = 0.0
        self._last = position
        self._checksum = 0
        self._acknowledged = position
        self._shipped = 0
        self._closing = False
        self._refusal = ""
        """The reason why the object store rejects records, or ""."""
        self.uploads = dict.fromkeys(("stored", "failed", "refused"), 0)
        """Number of uploads by outcome."""
        self.seconds = 0.0
        """Total duration of all successful uploads in seconds."""
        self.stored_bytes = 0
        """Total size in bytes of the stored records."""
        self._threads = [threading.Thread(target=self._run, name="zq-upload", daemon=True) for _ in range(uploads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def admit(self) -> None:
        """Raise ``Unavailable`` if too many bytes wait for upload, or ``Deposed`` if another server owns the store."""
        if self._proof.fenced:
            raise Deposed
        if self._bytes > MAX_WAITING_BYTES:
            raise Unavailable(OVERLOAD_ERROR)

    def append(self, writes: Sequence[Write], removed_ranges: Sequence[Range]) -> None:
        """Append a batch to the log, and return before the batch is uploaded.

        Batches must be appended in the order in which they are written to the local store.
        """
        size = sum(len(key) + len(value or b"") for _, key, value in writes)
        with self._changed:
            self._waiting.append(_Waiting(Batch(writes, removed_ranges), size, time.monotonic()))
            self._bytes += size
            self._appended += 1

    def wait(self) -> None:
        """Wait until all appended batches are durable.

        A batch is durable if its upload has succeeded and this server still owned the store after the upload.

        Raises ``Deposed`` if another server owns the store, and ``Unavailable`` if the batches are not durable within
        ``patience`` seconds. After ``Unavailable``, the batches may still become durable.
        """
        wanted = self._appended
        self._wait_for(wanted)

    def _wait_for(self, position: int) -> None:
        with self._changed:
            if self._shipped >= position:
                return
            if self._proof.fenced:
                raise Deposed
            waiter = _Waiter(position, threading.Lock())
            waiter.gate.acquire()
            self._waiters.append(waiter)
            if position > self._wanted:
                hurried, self._wanted = self._wanted > self._taken, position
                if not hurried:
                    self._changed.notify()
        waiter.gate.acquire(timeout=self._patience)
        if self._shipped >= position:
            return
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if self._proof.fenced:
            raise Deposed
        raise Unavailable(UNKNOWN_OUTCOME.format(self._refusal))

    def _wake(self, position: int) -> None:
        """Wake the threads that wait for batches up to ``position``. The caller holds ``_changed``."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.wanted <= position:
                waiter.gate.release()
            else:
                self._waiters.append(waiter)

    def cut(self) -> LogCut:
        """End the current record after the last appended batch, and return this point of the log."""
        with self._changed:
            made = LogCut(self._appended, self._last if self._taken == self._appended else None)
            if made.position is None:
                self._cuts.append(made)
            return made

    def wait_for_cut(self, cut: LogCut) -> int:
        """Wait for the acknowledgement of the last record before the cut, and return the position of this record."""
        self._wait_for(cut.serial)
        assert cut.position is not None
        return cut.position

    def check(self) -> None:
        """Raise ``Unavailable`` with the reason if the object store currently rejects uploads."""
        if self._refusal:
            raise Unavailable(f"The object store rejects writes.{self._refusal}")

    @property
    def commits(self) -> int:
        """Number of batches in acknowledged records."""
        return self._shipped

    @property
    def acknowledged(self) -> int:
        """The last acknowledged position."""
        return self._acknowledged

    @property
    def waiting_bytes(self) -> int:
        """Total size in bytes of the unacknowledged batches."""
        return self._bytes

    def close(self) -> int:
        """Upload the waiting batches and stop. Return the last position, or -1 if a batch is not acknowledged."""
        try:
            self.wait()
        except Unavailable:
            whole = False
        else:
            whole = True
        with self._changed:
            self._closing = True
            self._changed.notify()
        for thread in self._threads:
            thread.join(self._patience)
        return self._last if whole else -1

    def _run(self) -> None:
        while True:
            with self._encoding:
                group = self._next()
                if group is None:
                    return
                position, batches, size = group
                moment = int(self._now() * 1000)
                value, self._checksum = entries.encode(
                    self._proof.epoch, position, self._acknowledged, moment, self._checksum, batches
                )
            if not self._upload(position, value, size):
                return

    def _next(self) -> tuple[int, list[Batch], int] | None:
        """Wait until the next record is due, and return its position, batches and uncompressed size.

        Return None if this server no longer owns the store, or if the shipper is closing and no batches are waiting.
        """
        with self._changed:
            while True:
                if self._proof.fenced or (self._closing and not self._waiting):
                    return None
                pause = self._pause()
                if pause <= 0:
                    break
                self._changed.wait(pause)
            batches: list[Batch] = []
            size = 0
            end = self._cuts[0].serial - self._taken if self._cuts else len(self._waiting)
            while (
                len(batches) < end
                and self._waiting
                and (not batches or size + self._waiting[0].size <= MAX_RECORD_BYTES)
            ):
                waiting = self._waiting.popleft()
                batches.append(waiting.batch)
                size += waiting.size
            self._taken += len(batches)
            self._last += 1
            self._serials[self._last] = self._taken
            self._end_at(self._last)
            self._started = time.monotonic()
            return self._last, batches, size

    def _end_at(self, position: int) -> None:
        while self._cuts and self._cuts[0].serial == self._taken:
            self._cuts.popleft().position = position

    def _pause(self) -> float:
        """Return the seconds to wait before the next upload. If the result is 0 or less, an upload may begin now.

        If no batch is waiting or too many records are unacknowledged, return the seconds until the caller must check
        again.
        """
        if not self._waiting or self._last - self._acknowledged >= self._ahead:
            return MAX_UNAWAITED_DELAY / 2
        now, oldest = time.monotonic(), self._waiting[0].since
        hurried = self._wanted > self._taken or self._closing or self._bytes > MAX_RECORD_BYTES
        start = oldest if hurried else oldest + MAX_UNAWAITED_DELAY / 2
        if self._serials and self._bytes <= MAX_RECORD_BYTES:
            start = max(start, self._started + self._spacing)
        return max(start, self._started + self._linger) - now

    def _upload(self, position: int, value: bytes, size: int) -> bool:
        """Upload a record and check whether this server still owns the store.

        Return False if another server owns the store, or if the shipper is closing and the upload has failed.
        Otherwise, return True. The record is then acknowledged as soon as all records before it are stored.

        ``size`` is the record's uncompressed size in bytes.
        """
        name, began = log_name(self._proof.epoch, position, self.by_position), time.monotonic()
        moment, alone = self._proof.now, len(self._serials) == 1
        try:
            self._retry(lambda: self._put(name, value))
            put = time.monotonic()
            self._retry(lambda: self._proof.after_put(self.by_position))
        except Deposed:
            with self._changed:
                self._wake(self._appended)
            return False
        with self._changed:
            self._pace(time.monotonic() - began, alone and self._last == position)
            self.seconds += put - began
            self.uploads["stored"] += 1
            self.stored_bytes += len(value)
            self._bytes -= size
            self._done[position] = moment
            while self._acknowledged + 1 in self._done:
                self._acknowledged += 1
                moment = self._done.pop(self._acknowledged)
                if self.by_position:  # all records up to this one got their names, so the epoch was not fenced then
                    self._proof.extend(moment)
                self._shipped = self._serials.pop(self._acknowledged)
            self._wake(self._shipped)
            self._changed.notify()
        return True

    def _pace(self, duration: float, alone: bool) -> None:
        """Adjust the minimum interval between the starts of uploads, after an upload that took ``duration`` seconds.

        ``alone`` is true if no other upload ran at the same time. If concurrent uploads take longer than a single
        upload, the object store is busy. In this case, the interval grows, so that each upload contains more batches.
        """
        self._durations.append(duration)
        self._alone = duration if alone else min(self._alone, duration)
        together = statistics.median(self._durations) - self._alone
        self._spacing = self._alone / len(self._threads) + max(0.0, together)

    def _put(self, name: str, value: bytes) -> None:
        try:
            there = store_record(self._objects, name, value, self.by_position)
        except Unavailable as error:
            with self._changed:
                self.uploads["refused" if isinstance(error, ObjectStoreRejection) else "failed"] += 1
            raise
        if not there:
            self._proof.mark_deposed()
            raise Deposed

    def _retry(self, act: Callable[[], object]) -> None:
        pause = RETRY_PAUSES[0]
        while True:
            try:
                act()
                self._refusal = ""
                return
            except Deposed:
                raise
            except Unavailable as error:
                if self._proof.fenced or self._closing:
                    raise Deposed from error
                if isinstance(error, ObjectStoreRejection):
                    LOG.critical("The object store rejects writes to the log: %s", error)
                    pause, self._refusal = REFUSED_PAUSE, f" {error}"
                time.sleep(pause)
                pause = min(RETRY_PAUSES[1], pause * 2)


def store_record(objects: Objects, name: str, value: bytes, by_position: bool) -> bool:
    """Store a log record in the object ``name``. Return False if the object already exists with other content.

    If the object exists with the same content, an earlier attempt has succeeded. The function then returns True.

    Raises ``Unavailable`` if the object store does not respond, or if another server removes the existing object before
    its content is compared.
    """
    if objects.put_new(name, value) if by_position else objects.put(name, value):
        return True
    found = objects.get(name)
    if found is None:  # a successor has removed the object in the meantime
        raise Unavailable
    return found == value
