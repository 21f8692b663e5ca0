# SPDX-License-Identifier: Apache-2.0
"""What ``zq top`` shows: figures of queues, how they changed from one look to the next, and their sum, in an order."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from zq.cli.output import console, table
from zq.cli.session import Session
from zq.client import Stats

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

COLUMNS: Final = ("name", "messages", "claimed", "in/s", "out/s", "change/s", "oldest")
AROUND: Final = 4
"""Lines of the terminal that are no queue: header, sum, keys, and the cursor's."""


class Figures(Struct, frozen=True, rename={"came": "in/s", "left": "out/s", "change": "change/s"}):
    """Of one queue, or of all; ages in seconds, None if it is empty; rates None if they are not known."""

    name: str
    total: int
    free: int
    claimed: int
    oldest: int | None = None
    newest: int | None = None
    came: float | None = None
    left: float | None = None
    change: float | None = None


SORTS: Final[dict[str, Callable[[Figures], float | None]]] = {
    "name": lambda _: None,
    "messages": lambda row: row.total,
    "in": lambda row: row.came,
    "out": lambda row: row.left,
    "oldest": lambda row: row.oldest,
}
"""What queues are ordered by, the largest first; queues of which it is not known come last, by name."""
KEYS: Final = {"n": "name", "m": "messages", "i": "in", "o": "out", "a": "oldest"}
"""What to press for each."""


class Look(NamedTuple):
    """What a queue told, and when."""

    stats: Stats
    moment: float


class Looks:
    """Looks at the queues whose names hold ``part``, at ``limit`` of them."""

    def __init__(self, session: Session, part: str | None, limit: int) -> None:
        self._client = session.client
        self._part = part
        self._limit = limit
        self._before: dict[str, Look] = {}
        self.more = False
        """Whether there are queues beyond the limit."""

    def take(self) -> list[Figures]:
        """Figures of each, with rates since the look before if it had the queue."""
        listed = [*islice(self._client.queues(name=self._part), self._limit + 1)]
        self.more = len(listed) > self._limit
        now = {one.name: self._look(one.name) for one in listed[: self._limit]}
        rows = [figures(name, look, self._before.get(name)) for name, look in now.items()]
        self._before = now
        return rows

    def _look(self, name: str) -> Look:
        return Look(self._client.queue(name).stats(), time.monotonic())


def figures(name: str, now: Look, before: Look | None) -> Figures:
    """Of a queue; what came less what it grew by is what left."""
    stats = now.stats
    oldest, newest = (mark.age if mark else None for mark in (stats.oldest, stats.newest))
    found = Figures(name, stats.total, stats.free, stats.claimed, oldest, newest)
    if before is None:
        return found
    seconds, change = now.moment - before.moment, stats.total - before.stats.total
    found = replace(found, change=round(change / seconds, 1))
    came = (stats.entered or 0) - (before.stats.entered or 0)
    if stats.entered is None or before.stats.entered is None or came < 0:
        return found
    return replace(found, came=round(came / seconds, 1), left=round(max(0, came - change) / seconds, 1))


def summed(rows: Sequence[Figures], more: bool) -> Figures:
    """All of them as one; rates of those that have some."""
    name = f"{'first ' if more else ''}{len(rows):,} queue{'' if len(rows) == 1 else 's'}"
    total, free, claimed = (sum(getattr(row, member) for row in rows) for member in ("total", "free", "claimed"))
    oldest = max((row.oldest for row in rows if row.oldest is not None), default=None)
    rates = (total_rate(getattr(row, member) for row in rows) for member in ("came", "left", "change"))
    return Figures(name, total, free, claimed, oldest, None, *rates)


def total_rate(rates: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None if none is."""
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 1) if known else None


def ordered(rows: Iterable[Figures], sort: str) -> list[Figures]:
    """In one of the orders."""
    by = SORTS[sort]

    def key(row: Figures) -> tuple[bool, float, str]:
        value = by(row)
        return value is None, -(value or 0), row.name

    return sorted(rows, key=key)


def drawn(rows: Sequence[Figures], more: bool, sort: str, most: int | None, keys: bool) -> "Group":
    """The sum, and the first of them in an order: ``most``, or as many as the terminal has lines for."""
    from rich.console import Group

    shown = ordered(rows, sort)[: most or max(1, console().height - AROUND)]
    sums = summed(rows, more)
    parts: list[RenderableType] = [table(COLUMNS, [cells(row) for row in (sums, *shown)])]
    if keys:
        press = ", ".join(f"{key} {name}" for key, name in KEYS.items())
        parts.append(f"{len(shown):,} of {len(rows):,} by {sort}. Press {press}, q quit.")
    return Group(*parts)


def cells(row: Figures) -> Sequence[object]:
    """Of a table."""
    return row.name, row.total, row.claimed, row.came, row.left, row.change, row.oldest
