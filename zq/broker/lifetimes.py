# SPDX-License-Identifier: Apache-2.0
"""How long messages live when neither they nor their queue's metadata say so: the operator's table, changed at will."""

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Final

MOST_REMEMBERED: Final = 10_000
"""Names of queues whose ttl a server remembers."""

Patterns = Sequence[tuple[str, int]]
"""(pattern of queue names with ``*`` and ``?``, seconds); the first that fits counts."""


class Lifetimes:
    """The default ttl of every queue's messages. Any thread may ask while another changes it."""

    def __init__(self, default: int, by_name: Patterns = ()) -> None:
        self._table = default, _finder(default, by_name)

    @property
    def default(self) -> int:
        """Where no pattern fits."""
        return self._table[0]

    def of(self, queue: str) -> int:
        """For queues of this name."""
        return self._table[1](queue)

    def replace(self, default: int, by_name: Patterns) -> None:
        """Every message that is drafted from now on lives so long; nothing else remembers what held before."""
        self._table = default, _finder(default, by_name)


def _finder(default: int, by_name: Patterns) -> Callable[[str], int]:
    patterns = [(re.compile(translate(pattern)).match, ttl) for pattern, ttl in by_name]

    @lru_cache(maxsize=MOST_REMEMBERED)
    def find(queue: str) -> int:
        return next((ttl for fits, ttl in patterns if fits(queue)), default)

    return find
