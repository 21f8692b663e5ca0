# SPDX-License-Identifier: Apache-2.0
"""From a commit to the object store: what waits is uploaded in groups, and acknowledged in the order of the log.

A record is put again and again, with the same bytes, until the object store has it; the look for a fence comes after.
Nothing here knows what the batches mean.
"""

import logging
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
from zq.storage.ordered.store import Range, Write

LOG = logging.getLogger(__name__)
# Bytes of one record, before they are compressed; a single batch may have more.
MOST: Final = 4 << 20
# Bytes that may wait before writes are refused.
MOST_WAITING: Final = 64 << 20
# Seconds after which what nobody waits for is uploaded.
UNHURRIED: Final = 1.0
# Seconds between two attempts, at first and at the most; and where the object store has refused.
PAUSE: Final = (0.05, 2.0)
REFUSED_PAUSE: Final = 5.0
UNKNOWN: Final = "The object store has not confirmed this in time: it is not known to be stored.{} Try again later."
FULL: Final = "The object store is slower than this server is asked to write. Try again later."


class _Waiting(NamedTuple):
    """A batch that is in no record yet. ``since``: of the monotonic clock."""

    batch: Batch
    size: int
    since: float


class Cut:
    """A place between two batches where a record ends. ``position``: of that record, None until it is made."""

    def __init__(self, serial: int, position: int | None) -> None:
        """``serial``: the number of the last batch before it."""
        self.serial = serial
        self.position = position


class Shipper:
    """The log of one epoch, by its owner; ``uploads`` threads of its own."""

    def __init__(
        self,
        objects: Objects,
        proof: Proof,
        position: int,
        uploads: int = 4,
        linger: float = 0.0,
        patience: float = 10.0,
        *,
        now: Callable[[], float],
    ) -> None:
        """``position``: the last one of the log so far. ``linger``: least seconds between two starts of uploads.
        ``patience``: seconds that ``wait`` takes at most."""
        self._objects = objects
        self._proof = proof
        self._linger = linger
        self._patience = patience
        self._now = now
        self._changed = threading.Condition()
        self._encoding = threading.Lock()
        """Held from taking a group to having its record: records are made in the order of their positions."""
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._appended = 0
        self._waiters = 0
        self._taken = 0
        self._serials: dict[int, int] = {}
        """By position of a record that is under way, or not acknowledged yet: the number of its last batch."""
        self._cuts: deque[Cut] = deque()
        """Those that no record has come to yet."""
        self._done: set[int] = set()
        self._durations: deque[float] = deque([0.0], maxlen=32)
        self._started = 0.0
        self._last = position
        self._checksum = 0
        self._acknowledged = position
        self._shipped = 0
        self._closing = False
        self._refusal = ""
        """What the object store says instead of doing what it is asked."""
        self.uploads = dict.fromkeys(("stored", "failed", "refused"), 0)
        """How many went how."""
        self.seconds = 0.0
        """What those took that were stored."""
        self.stored_bytes = 0
        """Bytes of the records so far, as they are stored."""
        self._threads = [threading.Thread(target=self._run, name="zq-upload", daemon=True) for _ in range(uploads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def admit(self) -> None:
        """Raises ``Unavailable`` where too much is waiting, and ``Deposed``."""
        if self._proof.fenced:
            raise Deposed
        if self._bytes > MOST_WAITING:
            raise Unavailable(FULL)

    def append(self, writes: Sequence[Write], gone: Sequence[Range]) -> None:
        """Add what was just written. The caller sees to it that the order is that of the writes."""
        size = sum(len(key) + len(value or b"") for _, key, value in writes)
        with self._changed:
            self._waiting.append(_Waiting(Batch(writes, gone), size, time.monotonic()))
            self._bytes += size
            self._appended += 1

    def wait(self) -> None:
        """Return when all that was appended before is in the object store, and this server owned it after that.

        Raises ``Unavailable`` if that takes longer than ``patience``: it may still come about. Raises ``Deposed``.
        """
        wanted = self._appended
        self._settle(lambda: self._shipped >= wanted)

    def _settle(self, settled: Callable[[], bool]) -> None:
        with self._changed:
            self._waiters += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: settled() or self._proof.fenced, self._patience)
            finally:
                self._waiters -= 1
            if settled():
                return
        if self._proof.fenced:
            raise Deposed
        raise Unavailable(UNKNOWN.format(self._refusal))

    def cut(self) -> Cut:
        """Have a record end with what was appended last."""
        with self._changed:
            made = Cut(self._appended, self._last if self._taken == self._appended else None)
            if made.position is None:
                self._cuts.append(made)
            return made

    def reached(self, cut: Cut) -> int:
        """Its position, once that is acknowledged. Raises ``Unavailable`` as ``wait`` does."""
        self._settle(lambda: cut.position is not None and self._acknowledged >= cut.position)
        assert cut.position is not None
        return cut.position

    def check(self) -> None:
        """Raises ``Unavailable`` with what the object store says while it refuses the log."""
        if self._refusal:
            raise Unavailable(f"The object store refuses what is written.{self._refusal}")

    @property
    def commits(self) -> int:
        """Batches in the records that are acknowledged."""
        return self._shipped

    @property
    def acknowledged(self) -> int:
        """The last position that was acknowledged."""
        return self._acknowledged

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are in no acknowledged record yet."""
        return self._bytes

    def close(self) -> int:
        """Upload what waits, and end; the last position, -1 if not all could be acknowledged."""
        try:
            self.wait()
        except Unavailable:
            whole = False
        else:
            whole = True
        with self._changed:
            self._closing = True
            self._changed.notify_all()
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
        """Wait for a group whose turn it is; None when there will be none."""
        with self._changed:
            while True:
                if self._proof.fenced or (self._closing and not self._waiting):
                    return None
                pause = self._pause()
                if pause is not None and pause <= 0:
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

    def _pause(self) -> float | None:
        """Seconds until an upload may begin; None while nothing waits. A second one begins only when the oldest has
        waited for half an upload: else groups are small."""
        if not self._waiting:
            return None
        now, oldest = time.monotonic(), self._waiting[0].since
        hurried = self._waiters > 0 or self._closing or self._bytes > MOST
        start = oldest if hurried else oldest + UNHURRIED
        if self._serials and self._bytes <= MOST:
            start = max(start, oldest + statistics.median(self._durations) / 2)
        return max(start, self._started + self._linger) - now

    def _upload(self, position: int, value: bytes, size: int) -> bool:
        """Put the record, look for the fence, acknowledge; False where this server owns the store no more."""
        name, began = log_name(self._proof.epoch, position), time.monotonic()
        try:
            self._insist(lambda: self._put(name, value))
            duration = time.monotonic() - began
            self._insist(self._proof.look)
        except Deposed:
            with self._changed:
                self._changed.notify_all()
            return False
        with self._changed:
            self._durations.append(duration)
            self.seconds += duration
            self.uploads["stored"] += 1
            self.stored_bytes += len(value)
            self._bytes -= size
            self._done.add(position)
            while self._acknowledged + 1 in self._done:
                self._acknowledged += 1
                self._done.remove(self._acknowledged)
                self._shipped = self._serials.pop(self._acknowledged)
            self._changed.notify_all()
        return True

    def _put(self, name: str, value: bytes) -> None:
        """Where something younger is said to be there, an earlier attempt has landed: it must be the same."""
        try:
            stored = self._objects.put(name, value)
        except Unavailable as error:
            with self._changed:
                self.uploads["refused" if isinstance(error, ObjectStoreRefuses) else "failed"] += 1
            raise
        if not stored and self._objects.get(name) != value:
            self._proof.give_up()
            raise Deposed

    def _insist(self, act: Callable[[], object]) -> None:
        """Until it is done. Raises ``Deposed``, also where this server is fenced meanwhile, or ends."""
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
