# SPDX-License-Identifier: Apache-2.0
"""The ownership of a store: takeover from an owner that may still be running, and proof of ownership.

An epoch is the term of one owner. Its number is the number of the election that the owner has won.

**Writes.** The owner of epoch e stores the record ``log/e/p``, and then checks that ``fence/e`` does not exist before
it acknowledges the record. A successor stores ``fence/e`` before it reads ``log/e``. If the owner's check precedes the
fence, the successor reads the record. Otherwise the owner finds the fence and does not acknowledge the record. No
clocks are needed.

The successor writes the position of the epoch's last valid record to ``Opening.chain``, the list of the log's valid
parts. A record that arrives later is therefore ignored. ``api-ref/decisions`` contains the proof, and ``tests/model``
enumerates the interleavings. The module ``restoring`` explains fencing by position.

**Reads.** A lease is a fixed period of time. An owner serves reads only if it has found no fence within the last lease
period. A successor waits for a full lease period after it has stored its fence before it serves requests. This requires
only that the clocks of both servers run at similar rates.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from zq.errors import Deposed, StartRefused, StoreDamaged, Unavailable
from zq.storage.object.objects import Objects

T = TypeVar("T")
# Layout number of stores of version 0.1.0, which did not record it.
UNRECORDED_LAYOUT: Final = "5"
# Fraction by which owners shorten a lease, to allow for different clock rates.
MARGIN: Final = 0.1
# Maximum seconds for which an operation waits for proof of ownership.
PATIENCE: Final = 1.0
# Maximum age in seconds of a response from the object store that counts as recent.
MAX_RESPONSE_AGE: Final = 1.0


class TakeoverLost(Exception):
    """An error that is raised if another server takes over the store during this server's takeover."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The valid part of an epoch's log, after the preceding span and up to the position ``last``, inclusive."""

    epoch: int
    last: int
    by_position: bool = False


class CheckpointRef(msgspec.Struct, frozen=True, array_like=True):
    """A reference to the checkpoint ``checkpoint/<epoch>/<position>``.

    ``moment`` is the time of the checkpoint, in milliseconds since the Unix epoch.
    """

    position: int
    moment: int
    epoch: int


class RestorePoints(msgspec.Struct, frozen=True, kw_only=True):
    """The data that is available for a restore.

    ``removed`` is the position up to which log records are removed. ``checkpoints`` are complete, newest last.
    ``unsettled`` names objects to remove, which an incomplete checkpoint or removal may have left behind.
    """

    removed: int = 0
    checkpoints: list[CheckpointRef] = []
    unsettled: list[str] = []


class Opening(RestorePoints, frozen=True, kw_only=True):
    """The record that opens an epoch, stored in ``open/<epoch>``.

    ``owner`` is the name of the server that opened the epoch. ``moment`` is in milliseconds since the Unix epoch.
    ``chain`` has the spans of the log from the position ``removed`` to the start of this epoch. ``layout`` is the
    layout number of the log and the checkpoints.
    """

    owner: str
    moment: int
    chain: list[Span]
    by_position: bool = False
    layout: str = UNRECORDED_LAYOUT


class Head(RestorePoints, frozen=True, kw_only=True):
    """The progress of an epoch's owner, regularly written to ``head/<epoch>``.

    ``acknowledged`` is the last acknowledged position. ``released`` is the last position if the owner has stopped and
    released the store, else -1. ``moment`` is the time of the write, in milliseconds since the Unix epoch.
    """

    acknowledged: int = 0
    released: int = -1
    moment: int = 0


def log_name(epoch: int, position: int, by_position: bool = False) -> str:
    """Return the object name of a log record.

    If the epoch uses fencing by position (see ``restoring``), the name does not contain the epoch.
    """
    return f"log/{position}" if by_position else f"log/{epoch}/{position}"


def fence_name(epoch: int) -> str:
    """Return the name of the object whose existence ends (fences) an epoch."""
    return f"fence/{epoch}"


def read(objects: Objects, name: str, kind: type[T]) -> T | None:
    """Read and decode an object. If the object does not exist, return None.

    Raises ``StoreDamaged`` if decoding fails.
    """
    value = objects.get(name)
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"The object {name} is damaged: it cannot be read.") from error


def write(objects: Objects, name: str, value: object) -> None:
    """Encode and store an object."""
    objects.put(name, msgspec.msgpack.encode(value))


def newest(objects: Objects, known: int = 0) -> int:
    """Return the number of the newest election, or 0 if there was none.

    ``known`` is the number of an earlier election, or 0. Election numbers have no gaps, so the function searches only
    the numbers above ``known`` and uses a binary search.
    """
    low, high = known, known + 1
    while objects.has_election(high):
        low, high = high, 2 * high - known
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if objects.has_election(middle) else (low, middle)
    return low


def win_election(objects: Objects) -> int:
    """Run in new elections until this server wins one, and return the election's number, which is the new epoch."""
    number = newest(objects) + 1
    while not objects.elect(number):
        number += 1
    return number


def newest_opened(objects: Objects, known: int = 0) -> tuple[int, Opening | None]:
    """Return the newest opened epoch and its opening record, or (0, None) if no epoch was opened."""
    for epoch in range(newest(objects, known), 0, -1):
        opening = read(objects, f"open/{epoch}", Opening)
        if opening is not None:
            return epoch, opening
    return 0, None


def depose(objects: Objects, below: int) -> tuple[int, Opening | None]:
    """End (fence) the epochs before ``below``, from the highest one down to the newest opened one.

    Return the newest opened epoch and its opening record, or (0, None) if no epoch was opened.
    """
    for epoch in range(below - 1, 0, -1):
        objects.put(fence_name(epoch), b"")
        opening = read(objects, f"open/{epoch}", Opening)
        if opening is not None:
            return epoch, opening
    return 0, None


def open_epoch(objects: Objects, epoch: int, opening: Opening) -> None:
    """Write the opening record of an epoch. Raises ``TakeoverLost`` if another server has already fenced the epoch."""
    write(objects, f"open/{epoch}", opening)
    if objects.exists(fence_name(epoch)):
        raise TakeoverLost


def check_layout(opening: Opening, layout: str) -> None:
    """Raise ``StartRefused`` if the store's layout number is not ``layout``."""
    if opening.layout != layout:
        raise StartRefused(
            f"The store has layout {opening.layout}, but this version of zq requires {layout}. "
            "Use the version of zq that wrote the store, or another store."
        )


def extend_chain(chain: Sequence[Span], span: Span, removed: int) -> list[Span]:
    """Append ``span`` to ``chain``, drop the spans that end at or before ``removed``, and return the new chain."""
    return [known for known in (*chain, span) if known.last > removed]


class Proof:
    """The proof that this server owns the store.

    The server regularly checks that no successor has stored a fence. Each successful check makes the proof valid for
    ``lease`` seconds.
    """

    def __init__(self, objects: Objects, epoch: int, lease: float, clock: Callable[[], float]) -> None:
        """Create a proof that is not valid yet.

        ``lease`` is in seconds. ``clock`` must be monotonic and must run while the machine is suspended.
        """
        self.epoch = epoch
        self.fenced = False
        self._objects = objects
        self._lease = lease
        self._clock = clock
        self._until = 0.0
        self._changed = threading.Condition()
        self._closing = False
        self._check_requested = False
        self._thread = threading.Thread(target=self._run, name="zq-owner", daemon=True)

    def start(self) -> None:
        """Start regular checks in a thread, so that a request after an idle time needs no check."""
        self._thread.start()

    def check_fence(self) -> None:
        """Check the object store for a fence of this epoch, and extend the proof if there is none.

        Raises ``Deposed`` if there is a fence, or ``Unavailable`` if the object store does not respond.
        """
        began = self._clock()
        fenced = self._objects.exists(fence_name(self.epoch))
        with self._changed:
            self.fenced = self.fenced or fenced
            if not fenced:
                self.extend(began)
            self._changed.notify_all()
        if self.fenced:
            raise Deposed

    def after_put(self, by_position: bool) -> None:
        """Confirm that this server owned the store when it stored a log record.

        Call ``check_fence``, unless the proof is valid and ``by_position`` is true: the epoch then uses fencing by
        position (see ``restoring``), so only the owner can store a record. Raises the same errors as ``check_fence``.
        """
        # With fencing by position, a successor writes its fence under the name of the next record. This server was able
        # to create the record, so there was no fence. If the proof has expired, the successor may have written the
        # fence and removed it again.
        if not by_position or not self.is_valid:
            self.check_fence()

    @property
    def now(self) -> float:
        """The current time of the monotonic clock that limits this proof, in seconds."""
        return self._clock()

    @property
    def is_valid(self) -> bool:
        """Whether the proof has not expired, and this server does not know of a successor."""
        return not self.fenced and self._clock() < self._until

    def extend(self, moment: float) -> None:
        """Make the proof valid for ``lease`` seconds from ``moment``, minus a safety margin.

        ``moment`` is a reading of this proof's clock from a time at which this server owned the store.
        """
        self._until = max(self._until, moment + self._lease * (1 - MARGIN))

    def mark_deposed(self) -> None:
        """Record that another server has taken over the store, without checking for a fence."""
        with self._changed:
            self.fenced = True
            self._changed.notify_all()

    @property
    def age(self) -> float:
        """Seconds since the start of the latest check that found no fence."""
        return self._clock() - self._until + self._lease * (1 - MARGIN)

    def check(self) -> None:
        """Wait until the proof is valid.

        Raises ``Deposed`` if another server has taken over, or ``Unavailable`` if the proof is still not valid after
        ``PATIENCE`` seconds.
        """
        if not self.is_valid:
            self._request_check(lambda: self.is_valid)

    def confirm(self) -> None:
        """Wait for a new ownership check, unless the last one is at most ``MAX_RESPONSE_AGE`` seconds old."""
        if not self._closing and (self.fenced or self.age > MAX_RESPONSE_AGE):
            self._request_check(lambda: self.age <= MAX_RESPONSE_AGE)

    def _request_check(self, proven: Callable[[], bool]) -> None:
        with self._changed:
            self._check_requested = True
            self._changed.notify_all()
            known = self._changed.wait_for(lambda: self.fenced or proven(), PATIENCE)
        if self.fenced:
            raise Deposed
        if not known:
            raise Unavailable

    def close(self) -> None:
        """Stop the regular checks."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._check_requested, self._lease / 4)
                if self._closing or self.fenced:
                    return
                self._check_requested = False
                due = self.age >= min(self._lease / 4, MAX_RESPONSE_AGE)
            if due:
                with suppress(Unavailable):
                    self.check_fence()
