# SPDX-License-Identifier: Apache-2.0
"""Removal of expired data from a store: options, and the pace of removal rounds.

Expired data becomes invisible immediately, so readers never wait for its removal (L3).
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
    """Seconds after expiry before the compaction filter may remove a message."""
    compaction_interval: int = 3600
    """Seconds after which files are compacted if nothing else has triggered a compaction."""


class Pace(Protocol):
    """The pace of one removal round, which is consulted before and after each step."""

    def step(self) -> int:
        """Return the maximum number of items for the next step, after a pause if one is due. 0 ends the round."""
        ...

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        """Record the removal of ``count`` expired items.

        Args:
            queue: Queue whose messages were removed; ``None`` = the items are not messages.
        """
        ...


class Steps:
    """A pace without pauses: up to ``most`` items in steps of ``size``."""

    def __init__(self, size: int = STEP, most: int = ROUND) -> None:
        self._size = size
        self.left = most

    def step(self) -> int:
        return min(self._size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        self.left = max(0, self.left - count)
