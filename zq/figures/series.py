# SPDX-License-Identifier: Apache-2.0
"""Time series in ring buffers of fixed size. The series of a queue takes 18 kB.

A window is the length and resolution of a series, such as ten minutes in steps of ten seconds (``FINE``). A slot is the
number of a point, counted in steps since the epoch.
"""

from array import array
from collections.abc import Sequence
from math import isnan, nan
from typing import Final, NamedTuple

from zq.figures.counting import RATES
from zq.model import Seconds
from zq.model.stats import Depth
from zq.wire.figures import DepthSeries, RateSeries

# The columns of a queue's depth, in order. The columns of ``RATES`` follow them.
DEPTHS: Final = ("ready", "delayed", "claimed", "oldest_ready")
WIDTH: Final = len(DEPTHS) + len(RATES)


class Window(NamedTuple):
    """The length and resolution of a time series. ``points`` is the number of points, ``step`` seconds apart."""

    step: int
    points: int


# A mapping from length in seconds to window. In the first window, only watched queues have depths, and the rates are
# those of the second window.
WINDOWS: Final = {
    300: Window(2, 150),
    600: Window(10, 60),
    10_800: Window(60, 180),
    86_400: Window(600, 144),
    604_800: Window(3600, 168),
}
CLOSE, FINE, COARSE, DAY, WEEK = WINDOWS.values()
# Windows for which only the number of ``FINE`` slots with known rates is stored, but not the slots themselves.
LONG_WINDOWS: Final = (DAY, WEEK)
# Number of ``FINE`` slots before the start of a series whose rates also count, because rates arrive later than depths.
SLOTS_BEFORE_START: Final = 2


class Ring:
    """A ring buffer of points, one per time step (slot). Each point has several columns."""

    def __init__(self, window: Window, width: int) -> None:
        self._size, self._width = window.points, width
        self._values = array("f", [nan]) * (self._size * width)
        self._last: int | None = None

    def put(self, slot: int, first: int, values: Sequence[float]) -> None:
        """Set the columns of a slot (time step), starting with column ``first``. Ignore a slot that is too old."""
        at = self._index(slot)
        if at is not None:
            self._values[at + first : at + first + len(values)] = array("f", values)

    def add(self, slot: int, first: int, values: Sequence[float]) -> None:
        """Add to the columns of a slot (time step), starting with column ``first``. Ignore a slot that is too old."""
        at = self._index(slot)
        if at is not None:
            for number, value in enumerate(values, at + first):
                former = self._values[number]
                self._values[number] = value if isnan(former) else former + value

    def column(self, number: int, end: int) -> list[float | None]:
        """Return a column's values, oldest first, up to and including the slot ``end``. Missing values are None."""
        first, last = end - self._size + 1, self._last
        if last is None:
            return [None] * self._size
        found: list[float | None] = []
        for slot in range(first, end + 1):
            kept = last - self._size < slot <= last
            value = self._values[slot % self._size * self._width + number] if kept else nan
            found.append(None if isnan(value) else value)
        return found

    def _index(self, slot: int) -> int | None:
        """Return the index of a slot's first value, or None if the slot is too old.

        If the slot is newer than all slots in the buffer, first clear this slot and all skipped slots.
        """
        last = self._last
        if last is None or slot > last:
            for passed in range(slot if last is None else max(last + 1, slot - self._size + 1), slot + 1):
                start = passed % self._size * self._width
                self._values[start : start + self._width] = array("f", [nan] * self._width)
            self._last = slot
        elif slot <= last - self._size:
            return None
        return slot % self._size * self._width


class KnownCounts:
    """The number of ten-second intervals with known message rates, for each point of the long time series.

    The long time series (``LONG_WINDOWS``) have points that each combine many ten-second intervals.
    """

    def __init__(self) -> None:
        self._counts: dict[Window, dict[int, int]] = {window: {} for window in LONG_WINDOWS}

    def add(self, slot: int) -> None:
        """Count a ten-second slot whose rates have become known."""
        for window, counts in self._counts.items():
            at = slot * FINE.step // window.step
            counts[at] = counts.get(at, 0) + 1
            if len(counts) > window.points:
                del counts[min(counts)]

    def count(self, slot: int, window: Window, began: int) -> int:
        """Return how many ten-second intervals of one point of a time series have known message rates.

        Args:
            slot: The number of the point.
            window: The length and resolution of the time series.
            began: The number of the first ten-second interval that may be counted.
        """
        each = window.step // FINE.step
        return min(self._counts[window].get(slot, 0), max(0, (slot + 1) * each - began))


class Series:
    """The time series of one queue or project."""

    def __init__(self, now: Seconds) -> None:
        self.began = now
        self._rings = {window: Ring(window, WIDTH) for window in (FINE, COARSE, *LONG_WINDOWS)}
        self.close: Ring | None = None
        """The points of a watched queue, every two seconds; None = the queue has never been watched."""

    def record(self, depth: Depth, now: Seconds) -> None:
        """Record the current depth in every window except the two-second window ``CLOSE``."""
        values = _values(depth, now)
        for window, ring in self._rings.items():
            ring.put(int(now // window.step), 0, values)

    def record_watched(self, depth: Depth, now: Seconds) -> None:
        """Record the current depth of a watched queue in the two-second window ``CLOSE``."""
        if self.close is None:
            self.close = Ring(CLOSE, len(DEPTHS))
        self.close.put(int(now // CLOSE.step), 0, _values(depth, now))

    def add_rates(self, slot: int, rates: Sequence[float]) -> None:
        """Add the rates of a ten-second slot to every window. The rates are in messages per second."""
        for window, ring in self._rings.items():
            ring.add(slot * FINE.step // window.step, len(DEPTHS), rates)

    def depths(self, window: Window, now: Seconds) -> DepthSeries:
        end = int(now // window.step)
        ring = self.close if window is CLOSE else self._rings[window]
        columns = [[None] * window.points if ring is None else ring.column(i, end) for i in range(len(DEPTHS))]
        return DepthSeries(*map(_round, columns))

    def rates(self, window: Window, now: Seconds, known: frozenset[int], counts: KnownCounts) -> RateSeries:
        """Return the message rates at each point of the window, in messages per second.

        ``known`` contains the ten-second slots whose rates are known.
        """
        kept = FINE if window is CLOSE else window
        end = int(now // kept.step)
        began = int(self.began // FINE.step) - SLOTS_BEFORE_START
        shown = range(end - kept.points + 1, end + 1)
        if kept in LONG_WINDOWS:
            slots = [counts.count(slot, kept, began) for slot in shown]
        else:
            slots = [_count_known(slot, kept, known, began) for slot in shown]
        found = []
        for number in range(len(DEPTHS), WIDTH):
            column = self._rings[kept].column(number, end)
            rates = [(value or 0.0) / count if count else None for value, count in zip(column, slots, strict=True)]
            found.append(_round(_repeat(rates, now) if window is CLOSE else rates))
        return RateSeries(*found)


def _count_known(slot: int, window: Window, known: frozenset[int], began: int) -> int:
    each = window.step // FINE.step
    return sum(began <= fine and fine in known for fine in range(slot * each, (slot + 1) * each))


def _repeat(rates: Sequence[float | None], now: Seconds) -> list[float | None]:
    end, last = int(now // CLOSE.step), int(now // FINE.step)
    slots = [slot * CLOSE.step // FINE.step for slot in range(end - CLOSE.points + 1, end + 1)]
    return [rates[slot - last - 1] for slot in slots]


def _values(depth: Depth, now: Seconds) -> list[float]:
    oldest = nan if depth.oldest_ready is None else max(0.0, now - depth.oldest_ready)
    return [depth.ready, depth.delayed, depth.claimed, oldest]


def _round(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]
