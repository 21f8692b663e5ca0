# SPDX-License-Identifier: Apache-2.0
"""Points in time, kept in rings of a fixed size: 8 kB for each queue."""

from array import array
from collections.abc import Sequence
from math import isnan, nan
from typing import Final, NamedTuple

from zq.figures.counting import RATES
from zq.model import Seconds
from zq.model.stats import Depth

# What is kept of a queue's messages, in this order; the rates come after them.
DEPTHS: Final = ("ready", "delayed", "claimed", "oldest_ready")
WIDTH: Final = len(DEPTHS) + len(RATES)


class Window(NamedTuple):
    """A span of time, and how many seconds one point of it is."""

    step: int
    points: int


# By its seconds. The first is kept of watched queues alone, and without rates, which are those of the second.
WINDOWS: Final = {300: Window(2, 150), 600: Window(10, 60), 10_800: Window(60, 180)}
CLOSE, FINE, COARSE = WINDOWS.values()
# Slots of ``FINE`` before the first point whose rates are added all the same: they come later than the points.
BEFORE: Final = 2


class Ring:
    """The latest points of several figures. A slot is a point's moment, in steps since the epoch."""

    def __init__(self, window: Window, width: int) -> None:
        self._size, self._width = window.points, width
        self._values = array("f", [nan]) * (self._size * width)
        self._last: int | None = None

    def put(self, slot: int, first: int, values: Sequence[float]) -> None:
        """Set the figures from the number ``first`` on."""
        at = self._at(slot)
        if at is not None:
            self._values[at + first : at + first + len(values)] = array("f", values)

    def add(self, slot: int, first: int, values: Sequence[float]) -> None:
        """Add to these figures."""
        at = self._at(slot)
        if at is not None:
            for number, value in enumerate(values, at + first):
                former = self._values[number]
                self._values[number] = value if isnan(former) else former + value

    def column(self, number: int, end: int) -> list[float | None]:
        """One figure at each slot up to ``end``; None where nothing was put."""
        first, last = end - self._size + 1, self._last
        if last is None:
            return [None] * self._size
        found: list[float | None] = []
        for slot in range(first, end + 1):
            kept = last - self._size < slot <= last
            value = self._values[slot % self._size * self._width + number] if kept else nan
            found.append(None if isnan(value) else value)
        return found

    def _at(self, slot: int) -> int | None:
        """Where the slot's figures begin, after those in between were forgotten; None for one that is too old."""
        last = self._last
        if last is None or slot > last:
            for passed in range(slot if last is None else max(last + 1, slot - self._size + 1), slot + 1):
                start = passed % self._size * self._width
                self._values[start : start + self._width] = array("f", [nan] * self._width)
            self._last = slot
        elif slot <= last - self._size:
            return None
        return slot % self._size * self._width


class Series:
    """The points of one queue, or of one project."""

    def __init__(self, now: Seconds) -> None:
        self.began = now
        self._rings = {FINE: Ring(FINE, WIDTH), COARSE: Ring(COARSE, WIDTH)}
        self.close: Ring | None = None
        """What was seen every two seconds; None: it was not watched."""

    def saw(self, depth: Depth, now: Seconds) -> None:
        """So it is now."""
        values = _values(depth, now)
        for window, ring in self._rings.items():
            ring.put(int(now // window.step), 0, values)

    def watched(self, depth: Depth, now: Seconds) -> None:
        """So it is now, of a watched queue."""
        if self.close is None:
            self.close = Ring(CLOSE, len(DEPTHS))
        self.close.put(int(now // CLOSE.step), 0, _values(depth, now))

    def went(self, bucket: int, rates: Sequence[float]) -> None:
        """Add so much a second, in a slot of ``FINE``."""
        self._rings[FINE].add(bucket, len(DEPTHS), rates)
        self._rings[COARSE].add(bucket * FINE.step // COARSE.step, len(DEPTHS), rates)

    def depths(self, window: Window, now: Seconds) -> dict[str, list[float | None]]:
        """By the names of ``DEPTHS``."""
        end = int(now // window.step)
        ring = self.close if window is CLOSE else self._rings[window]
        columns = [[None] * window.points if ring is None else ring.column(i, end) for i in range(len(DEPTHS))]
        return {name: _rounded(column) for name, column in zip(DEPTHS, columns, strict=True)}

    def rates(self, window: Window, now: Seconds, known: frozenset[int]) -> dict[str, list[float | None]]:
        """By the names of ``RATES``. ``known``: slots of ``FINE`` of which it is known what went through."""
        kept = FINE if window is CLOSE else window
        end = int(now // kept.step)
        began = int(self.began // FINE.step) - BEFORE
        slots = [_known(slot, kept, known, began) for slot in range(end - kept.points + 1, end + 1)]
        found = {}
        for number, name in enumerate(RATES, len(DEPTHS)):
            column = self._rings[kept].column(number, end)
            rates = [(value or 0.0) / count if count else None for value, count in zip(column, slots, strict=True)]
            found[name] = _rounded(_repeated(rates, now) if window is CLOSE else rates)
        return found


def _known(slot: int, window: Window, known: frozenset[int], began: int) -> int:
    """Of how many slots of ``FINE`` that lie in this one it is known what went through."""
    each = window.step // FINE.step
    return sum(began <= fine and fine in known for fine in range(slot * each, (slot + 1) * each))


def _repeated(rates: Sequence[float | None], now: Seconds) -> list[float | None]:
    """Each once for every point of ``CLOSE``."""
    end, last = int(now // CLOSE.step), int(now // FINE.step)
    slots = [slot * CLOSE.step // FINE.step for slot in range(end - CLOSE.points + 1, end + 1)]
    return [rates[slot - last - 1] for slot in slots]


def _values(depth: Depth, now: Seconds) -> list[float]:
    oldest = nan if depth.oldest_ready is None else max(0.0, now - depth.oldest_ready)
    return [depth.ready, depth.delayed, depth.claimed, oldest]


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]
