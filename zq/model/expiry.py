# SPDX-License-Identifier: Apache-2.0
"""Removal of expired data from a store: options, and pacing of removal rounds.

Expired data is invisible at once, so readers never wait for its removal (L3).
"""

from typing import Final, Protocol

from msgspec import Struct

from zq.model import QueueRef

STEP: Final = 1000
ROUND: Final = 100_000


class Expiry(Struct, frozen=True, kw_only=True):
    """The options of the configuration section ``[expiry]``. Each driver uses those that it supports."""

    sweep: bool = True
    sweep_batch_size: int = STEP
    sweep_max_deletes: int = ROUND
    delete_on_read: bool = True
    delete_queue_size: int = 10_000
    compaction_filter: bool = True
    compaction_filter_grace: int = 60
    """Seconds after expiry for which the compaction filter leaves a message to other removal methods."""
    compaction_interval: int = 3600
    """Seconds after which files are compacted even if nothing else triggers a compaction."""


class Pace(Protocol):
    """The pacing of one removal round, called before and after each step."""

    def step(self) -> int:
        """Return the maximum number of items for the next step, after a pause if one is due; 0 ends the round."""
        ...

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        """Record that a step has removed ``count`` expired messages of the queue, or other items if it is ``None``."""
        ...


class Steps:
    """A pace without pauses: steps of ``size`` items, up to ``most`` items in total."""

    def __init__(self, size: int = STEP, most: int = ROUND) -> None:
        self._size = size
        self.left = most

    def step(self) -> int:
        return min(self._size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        self.left = max(0, self.left - count)
