# SPDX-License-Identifier: Apache-2.0
"""Places of one server that requests hold for long: to wait, or for a stream. No project gets more than its share."""

from collections import Counter
from typing import Final

SHARE: Final = 4
"""One project gets the places divided by this, at least one."""


class Places:
    """A bounded number of places. The caller serialises calls with a lock of its own."""

    def __init__(self, most: int) -> None:
        self._free = most
        self.share = max(1, most // SHARE)
        """How many places one project gets."""
        self._taken: Counter[str] = Counter()

    def take(self, project: str) -> bool:
        """Take a place for the project; False if there is none for it."""
        if self._free <= 0 or self._taken[project] >= self.share:
            return False
        self._free -= 1
        self._taken[project] += 1
        return True

    def give_back(self, project: str) -> None:
        """Give back a place that the project took."""
        self._free += 1
        self._taken[project] -= 1
        if not self._taken[project]:
            del self._taken[project]
