# SPDX-License-Identifier: Apache-2.0
"""Which stretches of a queue have nothing to show for a while, so that a listing steps over them at once.

Without it a page of ten would walk over a million claimed or delayed messages that lie in front. Sequences are grouped
in blocks, blocks in larger ones; for each kind of view a block may carry a moment before which no message of it becomes
visible. An entry is only a hint: it may be forgotten at any time, but must never be wrong, so whatever makes a message
visible earlier wakes its blocks, and a walk that began before such a change may not leave a mark.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from zq.model import View

BLOCK: Final = 64
"""Sequences in a block: what a walk can still have to step over, one by one, in front of a visible message."""
FANOUT: Final = 64
"""Blocks in a larger one."""
SIZES: Final = (BLOCK, BLOCK * FANOUT, BLOCK * FANOUT * FANOUT)
NEVER: Final = 1 << 62
MAX_BLOCKS: Final = 1 << 18

Levels = tuple[dict[int, int], ...]
"""Block number to moment, for each of ``SIZES``."""


class Quiet:
    """The quiet blocks of one queue. ``mark`` and ``wake`` are called with the queue's lock held."""

    __slots__ = ("_kinds", "wakings")

    def __init__(self) -> None:
        self._kinds: dict[tuple[bool, bool], Levels] = {}
        self.wakings = 0
        """Rises with every wake: what a walk has to compare before it marks."""

    def skip(self, view: View, sequence: int, now: int) -> int:
        """The first sequence from ``sequence`` on that may have something to show."""
        levels = self._kinds.get((view.claimed, view.delayed))
        while levels is not None:
            for size, blocks in zip(reversed(SIZES), reversed(levels), strict=True):
                if blocks.get(sequence // size, 0) > now:
                    sequence = (sequence // size + 1) * size
                    break
            else:
                break
        return sequence

    def mark(self, view: View, marks: Mapping[int, int]) -> None:
        """Note moments of blocks, and of the larger blocks that they complete."""
        levels = self._kinds.setdefault((view.claimed, view.delayed), ({}, {}, {}))
        if len(levels[0]) + len(marks) > MAX_BLOCKS:
            for blocks in levels:
                blocks.clear()
        levels[0].update(marks)
        changed: Iterable[int] = marks
        for blocks, parents in pairwise(levels):
            changed = {block // FANOUT for block in changed}
            for parent in changed:
                children = [blocks.get(child, 0) for child in range(parent * FANOUT, (parent + 1) * FANOUT)]
                parents[parent] = min(children)

    def wake(self, sequences: Iterable[int]) -> None:
        """Forget what was known of these messages' blocks: one of them may show earlier."""
        self.wakings += 1
        for levels in self._kinds.values():
            for size, blocks in zip(SIZES, levels, strict=True):
                for sequence in sequences:
                    blocks.pop(sequence // size, None)
