# SPDX-License-Identifier: Apache-2.0
"""What is not in its metric yet: adding one value costs microseconds, so many are added together."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

ENOUGH: Final = 1000
"""Values that are to be added though nobody reads the page."""


class Pending:
    """Values for one metric. ``note`` (one) and ``extend`` (several) return at once and may be called by any thread."""

    def __init__(self, add: Callable[[list[float]], None]) -> None:
        self._add = add
        self._values: list[float] = []
        self.note = self._values.append
        self.extend = self._values.extend

    def __len__(self) -> int:
        return len(self._values)

    def flush(self) -> None:
        """Add what has come so far. One thread at a time; the others may go on noting."""
        count = len(self._values)
        if count:
            values = self._values[:count]
            del self._values[:count]
            self._add(values)


def summed(counter: Any, number: Any = None) -> Callable[[list[float]], None]:
    """Adds amounts to a counter, and how many they are to another."""

    def add(values: list[float]) -> None:
        counter.inc(sum(values))
        if number is not None:
            number.inc(len(values))

    return add


def spread(histogram: Any, number: Any = None) -> Callable[[list[float]], None]:
    """Adds values to a histogram, and how many they are to a counter."""
    bounds, buckets, total = histogram._upper_bounds, histogram._buckets, histogram._sum

    def add(values: list[float]) -> None:
        for bucket, count in Counter([bisect_left(bounds, value) for value in values]).items():
            buckets[bucket].inc(count)
        total.inc(sum(values))
        if number is not None:
            number.inc(len(values))

    return add
