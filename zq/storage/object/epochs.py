# SPDX-License-Identifier: Apache-2.0
"""The ownership of a store: takeover from an owner that may still be running, and proof of ownership.

**Writes.** The owner of epoch e stores the record ``log/e/p``, and acknowledges it only if ``fence/e`` does not exist
afterwards. A successor stores ``fence/e`` before it reads ``log/e``. If the owner's check precedes the fence, the
successor reads the record. Otherwise the owner finds the fence and does not acknowledge the record. The protocol
requires no clocks.

The successor fixes the valid records of the epoch in its chain, so a record that is uploaded later is ignored.
``api-ref/decisions`` contains the proof, and ``tests/model`` enumerates the interleavings. Fencing by position is
implemented in ``restoring.seal``.

**Reads.** An owner answers reads only within one lease of its last successful check. A successor starts serving one
lease after its fence. This requires only that clocks run at similar rates.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from zq.errors import Deposed, StartRefused, StoreDamaged, Unavailable
from zq.storage.object.objects import Objects

T = TypeVar("T")
# Layout number of stores written by version 0.1.0, which did not record it.
UNNUMBERED: Final = "5"
# Fraction by which owners shorten a lease, to allow for different clock rates.
MARGIN: Final = 0.1
# Maximum seconds that a verb waits for proof of ownership.
PATIENCE: Final = 1.0
# Maximum age in seconds of a response from the object store that counts as recent.
RECENT: Final = 1.0


class Taken(Exception):
    """Raised when another server has taken over the store."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The part of the log that belongs to an epoch, from the end of the preceding span up to ``last``.

    ``by_position``: whether the epoch is fenced by position, which determines the names of its records; see
    ``log_name``.
    """

    epoch: int
    last: int
    by_position: bool = False


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint of the state up to a log position, stored in ``checkpoint/<epoch>/<position>``.

    ``epoch`` is the epoch in which it was created, and ``moment`` the creation time in milliseconds.
    """

    position: int
    moment: int
    epoch: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The data that is available for a restore.

    Attributes:
        removed: The position up to which log records are removed.
        checkpoints: The complete checkpoints, newest last.
        unsettled: The names of objects of incomplete or partly removed checkpoints, which may or may not exist.
    """

    removed: int = 0
    checkpoints: list[Mark] = []
    unsettled: list[str] = []


class Opening(Kept, frozen=True, kw_only=True):
    """The record that opens an epoch, stored in ``open/<epoch>``.

    Attributes:
        owner: The server that opened the epoch.
        moment: The start of the epoch, in milliseconds.
        chain: The spans of the log from ``removed`` up to the epoch.
        by_position: Whether the epoch is fenced by position.
        layout: The layout number of the log and the checkpoints.
    """

    owner: str
    moment: int
    chain: list[Span]
    by_position: bool = False
    layout: str = UNNUMBERED


class Head(Kept, frozen=True, kw_only=True):
    """The progress of an epoch's owner, regularly written to ``head/<epoch>``.

    ``acknowledged`` is the last acknowledged position. ``released`` is the last position of an owner that has released
    the store, else -1.
    """

    acknowledged: int = 0
    released: int = -1
    moment: int = 0


def log_name(epoch: int, position: int, by_position: bool = False) -> str:
    """Return the object name of a log record. Epochs that are fenced by position share one sequence of names."""
    return f"log/{position}" if by_position else f"log/{epoch}/{position}"


def fence_name(epoch: int) -> str:
    """Return the name of the object that deposes an epoch."""
    return f"fence/{epoch}"


def read(objects: Objects, name: str, kind: type[T]) -> T | None:
    """Read and decode a small object. Return None if it does not exist. Raises ``StoreDamaged``."""
    value = objects.get(name)
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"The object {name} is damaged: it cannot be read.") from error


def write(objects: Objects, name: str, value: object) -> None:
    """Encode and store a small object."""
    objects.put(name, msgspec.msgpack.encode(value))


def newest(objects: Objects, known: int = 0) -> int:
    """Return the highest epoch number for which an election was held, or 0.

    Election numbers have no gaps. ``known`` is a number for which an election was held, or 0.
    """
    low, high = known, known + 1
    while objects.elected(high):
        low, high = high, 2 * high - known
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if objects.elected(middle) else (low, middle)
    return low


def win(objects: Objects) -> int:
    """Win the election for a new highest epoch number and return the number. Raises ``Unavailable``."""
    number = newest(objects) + 1
    while not objects.elect(number):
        number += 1
    return number


def newest_opened(objects: Objects, known: int = 0) -> tuple[int, Opening | None]:
    """Return the newest opened epoch and its opening, or (0, None). The epoch may already be deposed.

    ``known`` is a number for which an election was held, or 0.
    """
    for epoch in range(newest(objects, known), 0, -1):
        opening = read(objects, f"open/{epoch}", Opening)
        if opening is not None:
            return epoch, opening
    return 0, None


def depose(objects: Objects, below: int) -> tuple[int, Opening | None]:
    """Fence the epochs below the number ``below``, from the highest down to the newest opened epoch.

    Return that epoch and its opening, or (0, None) if no epoch is open.
    """
    for epoch in range(below - 1, 0, -1):
        objects.put(fence_name(epoch), b"")
        opening = read(objects, f"open/{epoch}", Opening)
        if opening is not None:
            return epoch, opening
    return 0, None


def open_epoch(objects: Objects, epoch: int, opening: Opening) -> None:
    """Write the opening of an epoch. Raises ``Taken`` if the epoch is already deposed."""
    write(objects, f"open/{epoch}", opening)
    if objects.exists(fence_name(epoch)):
        raise Taken


def check_layout(opening: Opening, layout: str) -> None:
    """Check the store's layout before anything is written. Raises ``StartRefused`` if it is not ``layout``."""
    if opening.layout != layout:
        raise StartRefused(
            f"The store has layout {opening.layout}, this zq needs {layout}: "
            "use the zq that wrote it, or another store."
        )


def joined(chain: Sequence[Span], span: Span, removed: int) -> list[Span]:
    """Return the chain extended by a span, without spans whose records are all removed."""
    return [known for known in (*chain, span) if known.last > removed]


class Proof:
    """This server's proof of ownership, extended by each check that finds no fence."""

    def __init__(self, objects: Objects, epoch: int, lease: float, clock: Callable[[], float]) -> None:
        """Initialize the proof. ``clock`` must be monotonic and must continue while the machine is suspended."""
        self.epoch = epoch
        self.fenced = False
        self._objects = objects
        self._lease = lease
        self._clock = clock
        self._until = 0.0
        self._changed = threading.Condition()
        self._closing = False
        self._asked = False
        self._thread = threading.Thread(target=self._run, name="zq-owner", daemon=True)

    def start(self) -> None:
        """Start regular checks in a thread, so that an idle server can answer requests immediately."""
        self._thread.start()

    def look(self) -> None:
        """Check the object store for a fence and extend the proof. Raises ``Deposed`` or ``Unavailable``."""
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
        """Confirm ownership after a record was stored. Raises the errors of ``look``.

        With fencing by position, the successful creation of the record proves ownership while the last proof is valid.
        After that, a successor may already have fenced and removed that part of the log, so a check is needed.
        """
        if not by_position or not self.valid:
            self.look()

    @property
    def now(self) -> float:
        """The current time of the proof's clock."""
        return self._clock()

    @property
    def valid(self) -> bool:
        """Whether this server owned the store less than a lease ago and is not known to be deposed."""
        return not self.fenced and self._clock() < self._until

    def extend(self, moment: float) -> None:
        """Extend the proof to one lease after ``moment``, a time at which this server owned the store."""
        self._until = max(self._until, moment + self._lease * (1 - MARGIN))

    def give_up(self) -> None:
        """Mark this server as deposed, because another server has written to this epoch's log."""
        with self._changed:
            self.fenced = True
            self._changed.notify_all()

    @property
    def age(self) -> float:
        """Seconds since the start of the latest check that found no fence."""
        return self._clock() - self._until + self._lease * (1 - MARGIN)

    def check(self) -> None:
        """Check that this server still owns the store.

        Raises ``Deposed``, or ``Unavailable`` if ownership cannot be proven within a second.
        """
        if not self.valid:
            self._ask(lambda: self.valid)

    def confirm(self) -> None:
        """Check that the object store has confirmed ownership recently. Raises the errors of ``check``."""
        if not self._closing and (self.fenced or self.age > RECENT):
            self._ask(lambda: self.age <= RECENT)

    def _ask(self, proven: Callable[[], bool]) -> None:
        with self._changed:
            self._asked = True
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
                self._changed.wait_for(lambda: self._closing or self._asked, self._lease / 4)
                if self._closing or self.fenced:
                    return
                self._asked = False
                due = self.age >= min(self._lease / 4, RECENT)
            if due:
                with suppress(Unavailable):
                    self.look()
