# SPDX-License-Identifier: Apache-2.0
"""How a store gives back the space of what has expired: the options, and the pace of a round of removing.

Values that pass between a server and its store; what expires when is not decided here, and no reader waits for any of
this: what has expired is invisible at once (L3).
"""

from typing import Final, Protocol

from msgspec import Struct

from zq.model import QueueRef

STEP: Final = 1000
ROUND: Final = 100_000


class Expiry(Struct, frozen=True, kw_only=True):
    """The options of section ``[expiry]`` that stores know, under their names. Each driver takes those that it has."""

    sweep: bool = True
    sweep_batch_size: int = STEP
    sweep_max_deletes: int = ROUND
    delete_on_read: bool = True
    delete_queue_size: int = 10_000
    compaction_filter: bool = True
    compaction_filter_grace: int = 60
    """Seconds after its expiry that the filter leaves a message to the other layers."""
    compaction_interval: int = 3600
    """Seconds after which files are compacted though nothing else asks for it."""


class Pace(Protocol):
    """How fast one round of removing goes; asked before and told after each step."""

    def step(self) -> int:
        """How many things the next step may remove, after a rest where one is due; 0 ends the round."""
        ...

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        """A step has removed so many expired messages of the queue, or so much else (None)."""
        ...


class Steps:
    """A pace without rests: steps of ``size`` until ``most`` things are gone."""

    def __init__(self, size: int = STEP, most: int = ROUND) -> None:
        self._size = size
        self.left = most

    def step(self) -> int:
        return min(self._size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        self.left = max(0, self.left - count)
