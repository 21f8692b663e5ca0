# SPDX-License-Identifier: Apache-2.0
"""The free space of the file system that contains the store."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

# Default minimum: this part of the file system.
DEFAULT_PART: Final = 0.05
# Lower bound of the default minimum in bytes.
MIN_DEFAULT: Final = 1 << 30
# Upper bound of the default minimum, as a part of the file system.
MAX_DEFAULT_PART: Final = 0.2
# Free space above which posts are accepted again, as a multiple of the minimum.
RECOVERY: Final = 2


class DiskUsage(Protocol):
    """Sizes of a file system in bytes."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...


class SpaceGuard:
    """A check for low free space, with hysteresis.

    Args:
        minimum: Minimum free bytes. None for the default, 0 for no check.
        disk_usage: Returns the sizes of the file system that contains a path.
    """

    def __init__(
        self, path: Path, minimum: int | None, disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage
    ) -> None:
        self._path = path
        self._minimum = minimum
        self._disk_usage = disk_usage
        self._is_low = False

    def is_low(self) -> bool:
        """Return whether free space is below the minimum, and after that, whether it is below twice the minimum."""
        usage = self._disk_usage(self._path)
        minimum = default_minimum(usage.total) if self._minimum is None else self._minimum
        self._is_low = usage.free < (minimum * RECOVERY if self._is_low else minimum)
        return self._is_low


def default_minimum(total: int) -> int:
    """Return the default minimum of free bytes for a file system of ``total`` bytes."""
    return int(min(max(DEFAULT_PART * total, MIN_DEFAULT), MAX_DEFAULT_PART * total))
