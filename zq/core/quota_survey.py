# SPDX-License-Identifier: Apache-2.0
"""A survey of which projects use most of their quotas, for metrics."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from zq.core.quotas import Quotas

# Number of projects whose usage is read at a time.
PAGE: Final = 20


class LargestUse(NamedTuple):
    """The project that uses the largest fraction of its quota, and this fraction (``ratio``)."""

    ratio: float
    project: str


class QuotaSurvey:
    """A survey that finds, for each quota, the project that uses the largest fraction.

    Each call of ``next_page`` reads the usage of some projects from the store. A round of calls covers all projects.
    Until a round ends, the results of the previous round remain.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._marker = ""
        self._previous: dict[str, LargestUse] = {}
        self._found: dict[str, LargestUse] = {}

    def next_page(self) -> Mapping[str, LargestUse]:
        """Read the usage of the next projects, and return the largest use by quota name.

        Raises ``Unavailable`` if the store is unavailable. Concurrent calls are not allowed.
        """
        page = self._quotas.list(self._marker, PAGE)
        for project, _ in page.items:
            for name, (used, limit) in self._quotas.uses(project).items():
                self._found[name] = max(self._found.get(name, LargestUse(0.0, "")), LargestUse(used / limit, project))
        largest = {
            name: max(each[name] for each in (self._previous, self._found) if name in each)
            for name in self._previous | self._found
        }
        self._marker = page.next or ""
        if page.next is None or len(page.items) < PAGE:
            self._marker, self._previous, self._found = "", self._found, {}
        return largest
