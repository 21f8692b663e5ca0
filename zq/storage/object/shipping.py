# SPDX-License-Identifier: Apache-2.0
"""The upload of commits to the object store. Commits are uploaded in groups and acknowledged in log order.

The upload of a record is repeated with the same bytes until the object store has it. Then the server checks for a
fence. This module does not interpret the content of batches.
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
from zq.storage.object.objects import Objects, ObjectStoreRefuses
from zq.storage.object.restoring import WINDOW
from zq.storage.ordered.store import Range, Write

LOG = logging.getLogger(__name__)
# Maximum uncompressed size of a record in bytes, except for a record with a single batch.
MOST: Final = 4 << 20
# Maximum size in bytes of the waiting changes; beyond it, writes are refused.
MOST_WAITING: Final = 64 << 20
# Number of recent uploads whose durations determine the spacing of the next ones.
RECENT: Final = 8
# Seconds after which changes without a waiting caller are uploaded.
UNHURRIED: Final = 1.0
# Minimum and maximum seconds between two attempts. ``REFUSED_PAUSE`` applies after the object store rejected a record.
PAUSE: Final = (0.05, 2.0)
REFUSED_PAUSE: Final = 5.0
UNKNOWN: Final = "The object store has not confirmed this in time: it is not known to be stored.{} Try again later."
FULL: Final = "The object store is slower than this server is asked to write. Try again later."


class _Waiting(NamedTuple):
    """A batch that is not in a record yet. ``since`` is the monotonic time at which it was appended."""

    batch: Batch
    size: int
    since: float


class _Turn(NamedTuple):
    """A thread that waits until all batches up to ``wanted`` are acknowledged; ``gate`` is then released."""

    wanted: int
    gate: threading.Lock


class Cut:
    """A place between two batches at which a record ends.

    ``position`` is the position of that record, or None until the record exists.
    """

    def __init__(self, serial: int, position: int | None) -> None:
        """Create a cut after the batch ``serial``."""
        self.serial = serial
        self.position = position


class Shipper:
    """The uploader of one epoch's log, which the owner runs with ``uploads`` threads."""

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
        """Create the shipper.

        Args:
            position: Last position of the log so far.
            linger: Minimum seconds between the starts of two uploads.
            patience: Maximum seconds of ``wait``.
            by_position: Whether the log is fenced by position.
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

        Only the thread that holds ``_encoding`` waits for it. Callers that wait for an upload have their own gates, so
        that an upload does not wake all waiting threads.
        """
        self._encoding = threading.Lock()
        """Held while a group is taken and encoded, so that records are created in the order of their positions."""
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._appended = 0
        self._taken = 0
        self._turns: list[_Turn] = []
        self._wanted = 0
        """The number of the last batch for which a caller has waited."""
        self._serials: dict[int, int] = {}
        """The number of the last batch of each unacknowledged record, by position."""
        self._cuts: deque[Cut] = deque()
        """Cuts that the records have not reached yet."""
        self._done: dict[int, float] = {}
        """Time of the proof before the upload of each stored but unacknowledged record, by position."""
        self._durations: deque[float] = deque(maxlen=RECENT)
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
        """The reason why the object store rejects records, or an empty text."""
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
        """Raise ``Unavailable`` if too many changes are waiting, or ``Deposed``."""
        if self._proof.fenced:
            raise Deposed
        if self._bytes > MOST_WAITING:
            raise Unavailable(FULL)

    def append(self, writes: Sequence[Write], gone: Sequence[Range]) -> None:
        """Append a batch that was just written to the store. The caller appends batches in the order of the writes."""
        size = sum(len(key) + len(value or b"") for _, key, value in writes)
        with self._changed:
            self._waiting.append(_Waiting(Batch(writes, gone), size, time.monotonic()))
            self._bytes += size
            self._appended += 1

    def wait(self) -> None:
        """Wait until all appended changes are in the object store and this server's ownership was confirmed afterwards.

        Raises ``Unavailable`` after ``patience`` seconds, although the changes may still be stored. Raises ``Deposed``.
        """
        wanted = self._appended
        self._settle(wanted)

    def _settle(self, wanted: int) -> None:
        with self._changed:
            if self._shipped >= wanted:
                return
            if self._proof.fenced:
                raise Deposed
            turn = _Turn(wanted, threading.Lock())
            turn.gate.acquire()
            self._turns.append(turn)
            if wanted > self._wanted:
                hurried, self._wanted = self._wanted > self._taken, wanted
                if not hurried:
                    self._changed.notify()
        turn.gate.acquire(timeout=self._patience)
        if self._shipped >= wanted:
            return
        with self._changed:
            if turn in self._turns:
                self._turns.remove(turn)
        if self._proof.fenced:
            raise Deposed
        raise Unavailable(UNKNOWN.format(self._refusal))

    def _open(self, wanted: int) -> None:
        """Wake the waiters for changes up to ``wanted``. The caller holds ``_changed``."""
        turns, self._turns = self._turns, []
        for turn in turns:
            if turn.wanted <= wanted:
                turn.gate.release()
            else:
                self._turns.append(turn)

    def cut(self) -> Cut:
        """Make a record end with the last appended batch, and return the place of its end."""
        with self._changed:
            made = Cut(self._appended, self._last if self._taken == self._appended else None)
            if made.position is None:
                self._cuts.append(made)
            return made

    def reached(self, cut: Cut) -> int:
        """Wait until the cut's record is acknowledged; return its position. Raises the errors of ``wait``."""
        self._settle(cut.serial)
        assert cut.position is not None
        return cut.position

    def check(self) -> None:
        """Raise ``Unavailable`` with the reason while the object store rejects the log."""
        if self._refusal:
            raise Unavailable(f"The object store refuses what is written.{self._refusal}")

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
        """Total size in bytes of the changes that are not acknowledged yet."""
        return self._bytes

    def close(self) -> int:
        """Upload the waiting changes and stop; return the last position, or -1 if some changes are unacknowledged."""
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
        """Wait for the next group of batches; return its position, batches and size, or None after the last group."""
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
            while len(batches) < end and self._waiting and (not batches or size + self._waiting[0].size <= MOST):
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
        """Return the seconds until the next upload may begin, or until the next check if nothing is waiting."""
        if not self._waiting or self._last - self._acknowledged >= self._ahead:
            return UNHURRIED / 2
        now, oldest = time.monotonic(), self._waiting[0].since
        hurried = self._wanted > self._taken or self._closing or self._bytes > MOST
        start = oldest if hurried else oldest + UNHURRIED / 2
        if self._serials and self._bytes <= MOST:
            start = max(start, self._started + self._spacing)
        return max(start, self._started + self._linger) - now

    def _upload(self, position: int, value: bytes, size: int) -> bool:
        """Upload a record, check for a fence and acknowledge. Return False if this server is deposed or stops."""
        name, began = log_name(self._proof.epoch, position, self.by_position), time.monotonic()
        moment, alone = self._proof.now, len(self._serials) == 1
        try:
            self._insist(lambda: self._put(name, value))
            put = time.monotonic()
            self._insist(lambda: self._proof.after_put(self.by_position))
        except Deposed:
            with self._changed:
                self._open(self._appended)
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
                if self.by_position:  # this record and all before it got their names, so there was no fence before
                    self._proof.extend(moment)
                self._shipped = self._serials.pop(self._acknowledged)
            self._open(self._shipped)
            self._changed.notify()
        return True

    def _pace(self, duration: float, alone: bool) -> None:
        """Adjust the spacing of uploads: evenly, and longer if concurrent uploads slow each other down.

        With a distant store, uploads mostly wait, so all run concurrently. With a busy store they run one after the
        other, each with all waiting changes, because concurrent uploads would only be smaller.
        """
        self._durations.append(duration)
        self._alone = duration if alone else min(self._alone, duration)
        together = statistics.median(self._durations) - self._alone
        self._spacing = self._alone / len(self._threads) + max(0.0, together)

    def _put(self, name: str, value: bytes) -> None:
        try:
            there = stored(self._objects, name, value, self.by_position)
        except Unavailable as error:
            with self._changed:
                self.uploads["refused" if isinstance(error, ObjectStoreRefuses) else "failed"] += 1
            raise
        if not there:
            self._proof.give_up()
            raise Deposed

    def _insist(self, act: Callable[[], object]) -> None:
        """Repeat the action until it succeeds. Raises ``Deposed``, also if this server is fenced or stops."""
        pause = PAUSE[0]
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
                if isinstance(error, ObjectStoreRefuses):
                    LOG.critical("The object store refuses the log: %s", error)
                    pause, self._refusal = REFUSED_PAUSE, f" {error}"
                time.sleep(pause)
                pause = min(PAUSE[1], pause * 2)


def stored(objects: Objects, name: str, value: bytes, by_position: bool) -> bool:
    """Store a record; return False if the name has other content. Raises ``Unavailable``.

    If the response to an earlier attempt was lost, the name already has this content.
    """
    if objects.put_new(name, value) if by_position else objects.put(name, value):
        return True
    found = objects.get(name)
    if found is None:  # a successor has removed it in between
        raise Unavailable
    return found == value
