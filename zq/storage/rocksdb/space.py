# SPDX-License-Identifier: Apache-2.0
"""The free space of the file system that contains the store."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from zq.model.stats import Measure

# Default minimum: this part of the file system.
DEFAULT_PART: Final = 0.05
# Lower bound of the default minimum in bytes.
MIN_DEFAULT: Final = 1 << 30
# Upper bound of the default minimum, as a part of the file system.
MAX_DEFAULT_PART: Final = 0.2
# Maximum default in bytes. A large file system may be nearly full for years.
MAX_DEFAULT: Final = 10 << 30
# Free space at which posts are accepted again, as a multiple of the minimum.
RECOVERY: Final = 2


class DiskUsage(Protocol):
    """The total and the free size of a file system in bytes."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...


class SpaceGuard:
    """A check for low free disk space.

    ``minimum`` is the minimum free space in bytes. If it is None, the minimum depends on the size of the file system.
    If it is 0, free space is never low.
    """

    def __init__(
        self, path: Path, minimum: int | None, disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage
    ) -> None:
        self._path = path
        self._minimum = minimum
        self._disk_usage = disk_usage
        self._is_low = False

    def measures(self) -> list[Measure]:
        """Return the free space and the size of the file system. Raises ``OSError`` if they are unknown."""
        usage, labels = self._disk_usage(self._path), (("path", str(self._path)),)
        return [Measure("disk_free_bytes", usage.free, labels), Measure("disk_size_bytes", usage.total, labels)]

    def is_low(self) -> bool:
        """Return whether free disk space is low: it fell below the minimum, and has not recovered.

        Free space has recovered when it reaches the lesser of two values: twice the minimum, and the mean of the
        minimum and the total size of the file system.
        """
        usage = self._disk_usage(self._path)
        minimum, recovered = thresholds(usage.total, self._minimum)
        self._is_low = usage.free < (recovered if self._is_low else minimum)
        return self._is_low


def thresholds(total: int, minimum: int | None) -> tuple[int, int]:
    """Return the free bytes below which posts are refused, and from which they are accepted again.

    ``total`` is the size of the file system. ``minimum`` is the configured minimum, or None for the default.
    """
    chosen = default_minimum(total) if minimum is None else minimum
    return chosen, min(chosen * RECOVERY, (chosen + total) // 2)


def default_minimum(total: int) -> int:
    """Return the default minimum of free bytes for a file system of ``total`` bytes."""
    return int(min(max(DEFAULT_PART * total, MIN_DEFAULT), MAX_DEFAULT, MAX_DEFAULT_PART * total))
