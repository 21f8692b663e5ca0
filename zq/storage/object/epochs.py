# SPDX-License-Identifier: Apache-2.0
"""Who owns the store: taking it over from an owner that may still be alive, and proving that it is still one's own.

An owner of epoch e puts ``log/e/p`` and then looks whether there is a ``fence/e``; only if not does it acknowledge. A
taker puts ``fence/e`` and then reads ``log/e``. So either the owner's look comes before the fence, and then its record
was there before the taker read; or it sees the fence and acknowledges nothing. No clock takes part. Which records of an
epoch count is fixed by the next one that opens, in its chain: one that lands later is met by nobody.
``api-ref/decisions`` has the proof; ``tests/model`` enumerates it. ``restoring.seal`` is the other way of fencing.

Reads are proven by the clock's rate alone: an owner answers only within a lease of its last look, and a taker serves
only a lease after its fence.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from zq.errors import Deposed, StartRefused, StoreDamaged, Unavailable
from zq.storage.object.objects import Objects

T = TypeVar("T")
# The layout of a store whose owner does not note it: that of version 0.1.0.
UNNUMBERED: Final = "5"
# Fraction by which owners shorten a lease, because clock rates differ.
MARGIN: Final = 0.1
# Seconds that a verb waits for a proof.
PATIENCE: Final = 1.0
# Seconds for which it counts that the object store has answered.
RECENT: Final = 1.0


class Taken(Exception):
    """Another server has taken over the store."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The last valid position of an epoch's log, which begins after the preceding span.

    ``by_position`` is explained in ``log_name``.
    """

    epoch: int
    last: int
    by_position: bool = False


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint in ``checkpoint/<epoch>/<position>``, which has the state up to that position.

    ``epoch`` belongs to its creator; ``moment`` is in milliseconds.
    """

    position: int
    moment: int
    epoch: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a restore can use: all records after ``removed``, and the checkpoints, the newest last.

    ``unsettled`` has the names of objects of unfinished or partly removed checkpoints, which may or may not exist.
    """

    removed: int = 0
    checkpoints: list[Mark] = []
    unsettled: list[str] = []


class Opening(Kept, frozen=True, kw_only=True):
    """The opening of an epoch in ``open/<epoch>``: its owner, its start, and the preceding log.

    Attributes:
        chain: The spans of the log from ``removed`` up to the epoch.
        by_position: Whether the epoch is fenced by position.
        layout: Layout number of the log and the checkpoints.
    """

    owner: str
    moment: int
    chain: list[Span]
    by_position: bool = False
    layout: str = UNNUMBERED


class Head(Kept, frozen=True, kw_only=True):
    """The progress of an epoch's owner in ``head/<epoch>``, written repeatedly.

    ``released`` is the last position of an owner that has stopped for good, else -1.
    """

    acknowledged: int = 0
    released: int = -1
    moment: int = 0


def log_name(epoch: int, position: int, by_position: bool = False) -> str:
    """Return the name of a record's object. Epochs fenced by position share one sequence of names."""
    return f"log/{position}" if by_position else f"log/{epoch}/{position}"


def fence_name(epoch: int) -> str:
    """Return the name of the object that deposes an epoch."""
    return f"fence/{epoch}"


def read(objects: Objects, name: str, kind: type[T]) -> T | None:
    """Read a small object; return None if it does not exist. Raises ``StoreDamaged`` with its name."""
    value = objects.get(name)
    try:
        return None if value is None else msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"The object {name} is damaged: it cannot be read.") from error


def write(objects: Objects, name: str, value: object) -> None:
    """Store a small object."""
    objects.put(name, msgspec.msgpack.encode(value))


def newest(objects: Objects, known: int = 0) -> int:
    """Return the highest number for which a server has run for election, or 0.

    The numbers have no gaps; ``known`` is one of them.
    """
    low, high = known, known + 1
    while objects.elected(high):
        low, high = high, 2 * high - known
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if objects.elected(middle) else (low, middle)
    return low


def win(objects: Objects) -> int:
    """Be elected for a number above all others. Raises ``Unavailable``."""
    number = newest(objects) + 1
    while not objects.elect(number):
        number += 1
    return number


def newest_opened(objects: Objects, known: int = 0) -> tuple[int, Opening | None]:
    """Return the newest opened epoch and its opening, or (0, None). The epoch may be deposed already.

    ``known`` is a number for which a server has run for election.
    """
    for epoch in range(newest(objects, known), 0, -1):
        opening = read(objects, f"open/{epoch}", Opening)
        if opening is not None:
            return epoch, opening
    return 0, None


def depose(objects: Objects, below: int) -> tuple[int, Opening | None]:
    """Fence all lower epochs down to the newest opened one; return that epoch and its opening, or (0, None)."""
    for epoch in range(below - 1, 0, -1):
        objects.put(fence_name(epoch), b"")
        opening = read(objects, f"open/{epoch}", Opening)
        if opening is not None:
            return epoch, opening
    return 0, None


def open_epoch(objects: Objects, epoch: int, opening: Opening) -> None:
    """Write the opening of an epoch. Raises ``Taken`` if the epoch was deposed before."""
    write(objects, f"open/{epoch}", opening)
    if objects.exists(fence_name(epoch)):
        raise Taken


def check_layout(opening: Opening, layout: str) -> None:
    """Refuse a store of another layout. Raises ``StartRefused``; nothing is written before."""
    if opening.layout != layout:
        raise StartRefused(
            f"The store has layout {opening.layout}, this zq needs {layout}: "
            "use the zq that wrote it, or another store."
        )


def joined(chain: Sequence[Span], span: Span, removed: int) -> list[Span]:
    """Return the chain with another span, without spans that are completely removed."""
    return [known for known in (*chain, span) if known.last > removed]


class Proof:
    """The proof of this server's ownership, extended by each check that finds no fence."""

    def __init__(self, objects: Objects, epoch: int, lease: float, clock: Callable[[], float]) -> None:
        """Create a proof. ``clock`` must be a clock that cannot be set and that runs during suspension."""
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
        """Look from now on, often enough that an idle server can answer at once."""
        self._thread.start()

    def look(self) -> None:
        """Ask the object store. Raises ``Deposed``, and ``Unavailable`` if it does not answer."""
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
        """Confirm the ownership after a record was stored. Raises the errors of ``look``.

        With fencing by position, the free name of the record proves the ownership, unless a successor may have fenced
        and removed the log since; that takes ten leases after the last proof.
        """
        if not by_position or not self.valid:
            self.look()

    @property
    def now(self) -> float:
        """The time of the clock used for proofs."""
        return self._clock()

    @property
    def valid(self) -> bool:
        """Whether this server owned the store less than a lease ago and is not known to be deposed."""
        return not self.fenced and self._clock() < self._until

    def extend(self, moment: float) -> None:
        """Extend the proof, because this server owned the store at ``moment``."""
        self._until = max(self._until, moment + self._lease * (1 - MARGIN))

    def give_up(self) -> None:
        """Give up the ownership, because another server has written to this epoch's log."""
        with self._changed:
            self.fenced = True
            self._changed.notify_all()

    @property
    def age(self) -> float:
        """Seconds since the newest look that found no fence began."""
        return self._clock() - self._until + self._lease * (1 - MARGIN)

    def check(self) -> None:
        """Check that this server still owns the store.

        Raises ``Unavailable`` if that cannot be proven within a second, or ``Deposed``.
        """
        if not self.valid:
            self._ask(lambda: self.valid)

    def confirm(self) -> None:
        """Check that the object store has confirmed the ownership recently. Raises the errors of ``check``."""
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
